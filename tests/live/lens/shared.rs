//! Several watches of the same tasks.

use std::process::Stdio;

use crate::harness::cgroup::TestCgroup;
use crate::harness::job::{is_in_call, is_in_read, sleeps_of, wait_for_refresh, watches};
use crate::harness::{Job, eventually, workload};

#[test]
fn watches_of_a_control_group_count_each_call_once() {
    const CALLS: u64 = 1000;
    let cgroup = TestCgroup::new();
    let mut subject = {
        let mut job = Job::of(workload(&format!("calls-on-input {CALLS}")));
        job.command.stdin(Stdio::piped());
        job.start()
    };
    let pid = subject.pid();
    let mut stdin = subject.stdin();
    let watch = || Job::lens(&format!("--cgroup {}", cgroup.0.display())).start();
    let lenses = [watch(), watch()];
    for lens in &lenses {
        eventually("its beginning", || lens.read("err").contains("watching for later ones"));
    }
    eventually("its first read", || is_in_read(pid));
    cgroup.add(pid);
    // Each of them finds the process at its next poll once more.
    lenses.iter().for_each(wait_for_refresh);
    let before = sleeps_of(pid);
    std::io::Write::write_all(&mut stdin, b".").expect("it reads");
    eventually("its next read", || sleeps_of(pid) > before && is_in_read(pid));
    lenses.iter().for_each(wait_for_refresh);
    drop(stdin);
    subject.finish().success();
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
