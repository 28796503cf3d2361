//! `lens --all`, which needs a machine without other users.

use std::process::{Child, Command};

use crate::harness::job::{sleeps_of, watches};
use crate::harness::{Job, eventually, workload};

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(arguments: &str) -> KillOnDrop {
    let words = workload(arguments);
    KillOnDrop(Command::new(&words[0]).args(&words[1..]).spawn().expect("the workload starts"))
}

#[test]
fn lens_all_sees_new_processes() {
    let before = start("sleep 50 1000");
    let watch = Job::lens("--all --per command").start();
    watches(&watch);
    let after = start("pipe-block 50 1000");
    // Waits until both have slept several times in calls that began after the lens.
    for process in [&before, &after] {
        let sleeps = || sleeps_of(process.0.id());
        let began = sleeps();
        eventually("its calls", || sleeps() >= began + 5);
    }
    watch.signal(libc::SIGINT);
    let report = watch.finish().success().report();
    assert!(report.call("nanosleep").count > 0);
    assert!(report.call("read").blocked_ns > 0);
}
