//! Several watches of the same tasks.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use super::subject::{CALLS, Subject};
use crate::harness::cgroup::TestCgroup;
use crate::harness::job::{kill, sleeps_of, wait_for_refresh, watches};
use crate::harness::{Job, Report, Running, eventually, words, workload, workloads};

fn interrupted(lens: Running) -> Report {
    lens.signal(libc::SIGINT);
    lens.finish().success().report().complete()
}

/// Checks that no thread has more time in calls than it has lived, nor a longer life than the
/// watch, and that each has one row.
#[track_caller]
fn check_lives(report: &Report) {
    let wall = |calls: &[crate::harness::report::Call]| -> u64 {
        calls.iter().map(|call| call.wall_ns).sum()
    };
    let account = report.account.as_ref().expect("a thread has lived");
    assert!(wall(&report.calls) <= account.lifetime_ns, "{report:?}");
    assert!(account.lifetime_ns <= account.threads * report.elapsed_ns, "{report:?}");
    let rows: BTreeSet<_> =
        report.groups.iter().map(|row| (row.pid, row.tid, &row.command)).collect();
    assert_eq!(rows.len(), report.groups.len(), "{:?}", report.groups);
    for row in &report.groups {
        let account = row.account.as_ref().expect("its threads have lived");
        assert!(wall(&row.calls) <= account.lifetime_ns, "{row:?}");
    }
}

/// Starts a process that is always asleep in a call of 5 ms.
fn sleeper() -> Running {
    let sleeper = Job::of(workload("sleep 5 720000")).start();
    let pid = sleeper.pid();
    eventually("its sleeps", || sleeps_of(pid) > 1);
    sleeper
}

#[test]
fn calls_after_the_end_of_the_outer_watch_do_not_count_in_it() {
    let sleeper = sleeper();
    let pid = sleeper.pid();
    for per in ["", "--per thread", "--per process"] {
        let watch = |per: &str| {
            let lens = Job::lens(&format!("-p {pid} {per}")).start();
            watches(&lens);
            lens
        };
        let (outer, inner) = (watch(per), watch("--per process"));
        let before = sleeps_of(pid);
        eventually("its sleeps", || sleeps_of(pid) > before + 5);
        check_lives(&interrupted(outer));
        check_lives(&interrupted(inner));
    }
    kill(pid as i32, libc::SIGKILL);
}

#[test]
fn watches_that_begin_together_have_their_own_lives() {
    let sleeper = sleeper();
    for _ in 0..3 {
        let watch =
            |per| Job::lens(&format!("-p {} --per {per} --for 200ms", sleeper.pid())).start();
        let lenses = ["thread", "process", "command"].map(watch);
        lenses.into_iter().for_each(|lens| {
            check_lives(&lens.finish().success().report().complete());
        });
    }
    kill(sleeper.pid() as i32, libc::SIGKILL);
}

#[test]
fn thread_has_one_row_whatever_the_rows_of_another_watch_are() {
    for inner_ends_first in [true, false] {
        for per in ["", "--per process", "--per command"] {
            let mut subject = Subject::new();
            let outer = Job::lens(&format!("-p {} --per thread", subject.pid())).start();
            watches(&outer);
            subject.make_calls();
            let inner = Job::lens(&format!("-p {} {per}", subject.pid())).start();
            watches(&inner);
            subject.make_calls();
            let (outer, inner) = if inner_ends_first {
                let inner = interrupted(inner);
                (interrupted(outer), inner)
            } else {
                let outer = interrupted(outer);
                (outer, interrupted(inner))
            };
            check_lives(&outer);
            check_lives(&inner);
            let calls: Vec<_> = outer.groups.iter().map(|row| row.count("getppid")).collect();
            assert_eq!(calls, [2 * CALLS], "{:?}", outer.groups);
            subject.end();
        }
    }
}

#[test]
fn child_has_its_own_row_while_a_watch_of_all_has_its_parent() {
    for per in ["process", "command"] {
        let mut command = words("sh -c");
        command.extend(["read x; \"$0\" calls 3; read x; :".into(), workloads().into()]);
        let mut subject = Subject::of({
            let mut job = Job::of(command);
            job.command.stdin(Stdio::piped());
            job
        });
        let outer = Job::lens(&format!("-p {} --per {per}", subject.pid())).start();
        watches(&outer);
        let inner = subject.watch();
        subject.send(b"\n");
        let (outer, inner) = (interrupted(outer), interrupted(inner));
        assert_eq!(inner.count("getppid"), 3);
        check_lives(&outer);
        let rows: Vec<_> = outer.groups.iter().filter(|row| row.count("getppid") == 3).collect();
        let [child] = rows[..] else { panic!("{:?}", outer.groups) };
        assert_eq!(child.command, "workloads", "{:?}", outer.groups);
        assert_eq!(outer.groups.len(), 2, "{:?}", outer.groups);
        subject.end();
    }
}

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
    let mut subject = Subject::new();
    let first = subject.watch();
    // It is in its next read afterwards.
    subject.make_calls();
    let second = subject.watch();
    // Longer than all else that it does.
    std::thread::sleep(Duration::from_millis(500));
    subject.end();
    let (first, second) = (first.finish().success(), second.finish().success());
    let (first, second) = (first.report().complete(), second.report().complete());
    assert_eq!((first.count("getppid"), first.count("read")), (CALLS, 1), "{:?}", first.counts());
    assert_eq!((second.count("getppid"), second.count("read")), (0, 0), "{:?}", second.counts());
    let account = second.account.expect("a thread has lived");
    assert!(account.calls_ns > account.lifetime_ns * 9 / 10, "{account:?}");
}

/// These tests use all rows of the gate, or load generations of their own.
mod alone {
    use std::fs;
    use std::path::Path;
    use std::process::Stdio;

    use super::super::subject::{CALLS, Subject};
    use crate::harness::cgroup::TestCgroup;
    use crate::harness::daemon::GuardDaemon;
    use crate::harness::guarded_program::Guarded;
    use crate::harness::report::SHARED_ROWS;
    use crate::harness::{Job, Running, eventually, words, workloads};

    /// A command that enters the control group, and executes a workload there.
    fn entering(cgroup: &Path, script: &str) -> Job {
        let mut command = words("sh -c");
        command.extend([script.into(), workloads().into(), cgroup.join("cgroup.procs").into()]);
        Job::of(command)
    }

    /// The generation of the gate that saw the call begin had no lens.
    #[test]
    fn call_of_a_guarded_thread_that_began_before_the_lens_does_not_count() {
        let (it, cgroup) = (Guarded::new(), TestCgroup::new());
        let daemon = GuardDaemon::start(&it, &cgroup, "--guard=learn");
        let mut subject = Subject::new();
        cgroup.add(subject.pid());
        // It is in its next read afterwards.
        eventually("its profile", || {
            subject.make_calls();
            daemon.program_named("workloads").is_some()
        });
        let lens = subject.watch();
        subject.make_calls();
        subject.end();
        let report = lens.finish().success().report().complete();
        let counts = (report.count("getppid"), report.count("read"));
        assert_eq!(counts, (CALLS, 1), "{:?}", report.counts());
        let account = report.account.expect("a thread has lived");
        assert!(account.unaccounted_ns < account.lifetime_ns / 10, "{account:?}");
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
