//! Watches of the members of services.

use crate::harness::job::{kill, sleeps_of, watches};
use crate::harness::service_limits::start;
use crate::harness::{Job, eventually, workload};

/// The gate sees the calls of a member before a watch of it begins.
#[test]
fn call_that_began_before_the_watch_does_not_count() {
    let services = start(&[("any", "")]);
    let sleeper = Job::of(workload("sleep 5 720000")).start();
    let pid = sleeper.pid();
    eventually("its sleeps", || sleeps_of(pid) > 1);
    for _ in 0..3 {
        let lens = Job::lens(&format!("-p {pid}")).start();
        watches(&lens);
        let before = sleeps_of(pid);
        eventually("its sleeps", || sleeps_of(pid) > before + 5);
        lens.signal(libc::SIGINT);
        let report = lens.finish().success().report().complete();
        let account = report.account.expect("a thread has lived");
        let wall: u64 = report.calls.iter().map(|call| call.wall_ns).sum();
        assert!(wall <= account.lifetime_ns, "{:?}, {account:?}", report.calls);
    }
    kill(pid as i32, libc::SIGKILL);
    drop(services);
}
