//! `lens --all`, which needs a machine without other users.

use crate::harness::job::{sleeps_of, watches};
use crate::harness::{Job, eventually, workload};

#[test]
fn lens_all_sees_new_processes() {
    let before = Job::of(workload("sleep 50 1000")).start();
    let watch = Job::lens("--all --per command").start();
    watches(&watch);
    let after = Job::of(workload("pipe-block 50 1000")).start();
    // Waits until both have slept several times in calls that began after the lens.
    for process in [&before, &after] {
        let sleeps = || sleeps_of(process.pid());
        let began = sleeps();
        eventually("its calls", || sleeps() >= began + 5);
    }
    watch.signal(libc::SIGINT);
    let report = watch.finish().success().report();
    assert!(report.call("nanosleep").count > 0);
    assert!(report.call("read").blocked_ns > 0);
}
