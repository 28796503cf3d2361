//! `lens --all`, which is for a machine of one's own.

use std::process::{Child, Command};

use crate::harness::{Job, workload};

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
    let _before = start("sleep 50 1000");
    let watch = Job::lens("--all --for 3s --per command").start();
    std::thread::sleep(std::time::Duration::from_secs(1));
    let _after = start("pipe-block 50 1000");
    let report = watch.finish().success().report();
    assert!(report.call("nanosleep").count > 0);
    assert!(report.call("read").blocked_ns > 0);
}
