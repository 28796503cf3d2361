//! Several watches of the same tasks.

use super::subject::{CALLS, Subject};
use crate::harness::cgroup::TestCgroup;
use crate::harness::job::{is_in_call, wait_for_refresh, watches};
use crate::harness::{Job, eventually, workload};

#[test]
fn watches_of_a_control_group_count_each_call_once() {
    let cgroup = TestCgroup::new();
    let mut subject = Subject::new();
    let watch = || Job::lens(&format!("--cgroup {}", cgroup.0.display())).start();
    let lenses = [watch(), watch()];
    for lens in &lenses {
        eventually("its beginning", || lens.read("err").contains("watching for later ones"));
    }
    cgroup.add(subject.pid());
    // Each of them finds the process at its next poll once more.
    lenses.iter().for_each(wait_for_refresh);
    subject.make_calls();
    lenses.iter().for_each(wait_for_refresh);
    subject.end();
    for lens in lenses {
        lens.signal(libc::SIGINT);
        let report = lens.finish().success().report().complete();
        assert_eq!(report.count("getppid"), CALLS);
    }
}

#[test]
fn call_counts_in_the_watch_in_which_it_began() {
    let subject = Job::of(workload("sleep 1500")).start();
    let pid = subject.pid();
    let first = Job::lens(&format!("-p {pid}")).start();
    watches(&first);
    eventually("its sleep", || is_in_call(pid, libc::SYS_nanosleep));
    let second = Job::lens(&format!("-p {pid}")).start();
    watches(&second);
    subject.finish().success();
    let (first, second) = (first.finish().success(), second.finish().success());
    let (first, second) = (first.report().complete(), second.report().complete());
    // The first one may have been attached during the sleep.
    assert!(first.count("nanosleep") <= 1);
    assert_eq!(second.count("nanosleep"), 0, "{:?}", second.counts());
    let account = second.account.expect("a thread has lived");
    assert!(account.calls_ns > account.lifetime_ns * 9 / 10, "{account:?}");
}
