//! `lens --all`, which is for a machine of one's own.

use std::process::{Child, Command};

use crate::harness::job::{sleeps_of, watches};
use crate::harness::{Job, eventually, workload};

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(arguments: &str) -> Ended {
    let words = workload(arguments);
    Ended(Command::new(&words[0]).args(&words[1..]).spawn().expect("the workload starts"))
}

#[test]
fn all_processes_are_watched_also_new_ones() {
    let before = start("sleep 50 1000");
    let watch = Job::lens("--all --per command").start();
    watches(&watch);
    let after = start("pipe-block 50 1000");
    // Both have slept several times in calls that began after the lens.
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
