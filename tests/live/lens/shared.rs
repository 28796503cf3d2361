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

/// Use all rows of the gate.
mod alone {
    use std::fs;
    use std::path::Path;
    use std::process::Stdio;

    use crate::harness::cgroup::TestCgroup;
    use crate::harness::report::SHARED_ROWS;
    use crate::harness::{Job, Running, eventually, words, workloads};

    /// A command that enters the control group, and executes a workload there.
    fn entering(cgroup: &Path, script: &str) -> Job {
        let mut command = words("sh -c");
        command.extend([script.into(), workloads().into(), cgroup.join("cgroup.procs").into()]);
        Job::of(command)
    }

    fn watch_of(cgroup: &TestCgroup, options: &str) -> Running {
        let lens = Job::lens(&format!("--cgroup {} {options}", cgroup.0.display())).start();
        eventually("its beginning", || lens.read("err").contains("Ctrl-C ends the watch"));
        lens
    }

    /// Watches of a control group, of which the later one takes its tasks over from the other.
    fn watches_of(cgroup: &TestCgroup, options: [&str; 2]) -> [Running; 2] {
        options.map(|options| watch_of(cgroup, options))
    }

    #[track_caller]
    fn check(lenses: [Running; 2], calls: u64) {
        for lens in lenses {
            lens.signal(libc::SIGINT);
            let report = lens.finish().success().report().complete_but(&SHARED_ROWS);
            assert_eq!(report.count("getppid"), calls, "losses: {:?}", report.losses);
        }
    }

    #[test]
    fn rows_of_ended_processes_are_reused_in_both_watches() {
        let cgroup = TestCgroup::new();
        // Each process needs a row of the first watch, and for each of its commands one of the
        // second watch. The gate has 960 rows.
        let lenses = watches_of(&cgroup, ["--per process", "--per command"]);
        let enter = r#"sh -c 'echo 0 > "$1"; exec "$0" calls 3' "$0" "$1""#;
        let script = format!("i=0; while [ $i -lt 400 ]; do {enter}; i=$((i + 1)); done");
        entering(&cgroup.0, &script).finish().success();
        check(lenses, 1200);
    }

    #[test]
    fn threads_without_a_row_count_in_both_watches() {
        let cgroup = TestCgroup::new();
        let lenses = watches_of(&cgroup, ["", "--per thread"]);
        entering(&cgroup.0, r#"echo 0 > "$1"; exec "$0" threads 1100 5"#).finish().success();
        check(lenses, 5500);
    }

    #[test]
    fn processes_without_a_row_count_in_both_watches() {
        let cgroup = TestCgroup::new();
        let watch = || watch_of(&cgroup, "--per process");
        let first = watch();
        let fork = r#"{ read x <&3; exec "$0" calls 3; } &"#;
        let script = format!(
            "exec 3<&0; echo 0 > \"$1\"; i=0; while [ $i -lt 600 ]; do {fork} i=$((i + 1)); done; \
            wait"
        );
        let mut job = entering(&cgroup.0, &script);
        job.command.stdin(Stdio::piped());
        let mut shell = job.start();
        let members = || fs::read_to_string(cgroup.0.join("cgroup.procs")).unwrap_or_default();
        eventually("its children", || members().lines().count() == 601);
        let second = watch();
        drop(shell.stdin());
        shell.finish().success();
        check([first, second], 1800);
    }
}
