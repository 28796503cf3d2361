//! `--per`: rows of processes, threads and commands, which add up to the totals.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use crate::harness::job::is_in_read;
use crate::harness::report::{Call, CallKey};
use crate::harness::{Job, Report, eventually, observe, words, workloads};

/// The values that must add up.
type Sums = BTreeMap<CallKey, [u64; 8]>;

fn sums<'a>(calls: impl Iterator<Item = &'a Call>) -> Sums {
    let mut sums = Sums::new();
    for call in calls {
        let sum = sums.entry((call.name.clone(), call.abi.clone())).or_default();
        let parts = [
            call.count,
            call.errors.values().sum(),
            call.wall_ns,
            call.cpu_ns,
            call.blocked_ns,
            call.runqueue_ns,
            call.unfinished,
            call.minor_faults,
        ];
        for (sum, part) in sum.iter_mut().zip(parts) {
            *sum += part;
        }
    }
    sums
}

#[track_caller]
fn check_sums(report: &Report) {
    let rows = report.groups.iter().flat_map(|row| &row.calls);
    assert_eq!(sums(rows), sums(report.calls.iter()));
}

fn of_getppid(report: &Report) -> Vec<u64> {
    let calls = report.groups.iter().flat_map(|row| &row.calls);
    calls.filter(|call| call.name == "getppid").map(|call| call.count).collect()
}

#[test]
fn without_per_there_are_no_rows() {
    assert!(observe("", "calls 10").groups.is_empty());
}

#[test]
fn threads_of_a_process_share_its_row() {
    let report = observe("--per process", "threads 20 5");
    check_sums(&report);
    assert_eq!(report.groups.len(), 1);
    assert_eq!(of_getppid(&report), [100]);
}

#[test]
fn rows_of_commands() {
    let mut command = words("sh -c");
    let script = "i=0; while [ $i -lt 20 ]; do \"$0\" calls 1; i=$((i + 1)); done";
    command.extend([script.into(), workloads().into()]);
    let report = Job::run("--per command", command).finish().success().report().complete();
    check_sums(&report);
    let by_name = |name: &str| {
        let row = report.groups.iter().find(|row| row.command == name);
        row.unwrap_or_else(|| panic!("no {name} in {:?}", report.groups))
    };
    assert_eq!(report.groups.len(), 2, "{:?}", report.groups);
    let (parent, child) = (by_name("sh"), by_name("workloads"));
    let count = |calls: &[Call], name| {
        let call = calls.iter().find(|call| call.name == name);
        call.map_or(0, |call| call.count)
    };
    assert!(count(&parent.calls, "wait4") >= 20);
    assert_eq!(count(&child.calls, "getppid"), 20);
    // The shell calls it at its start.
    assert_eq!(count(&parent.calls, "getppid"), 1);
}

/// Tests that need most rows or counters of the gate, which tests that run at the same time share.
mod alone {
    use std::collections::BTreeSet;

    use super::{check_sums, of_getppid};
    use crate::harness::{observe, observe_crowd};

    #[test]
    fn rows_of_processes() {
        let report = observe("--per process", "short-processes 200");
        check_sums(&report);
        assert_eq!(report.groups.len(), 201);
        let pids: BTreeSet<_> = report.groups.iter().map(|row| row.pid).collect();
        assert_eq!(pids.len(), 201);
        assert_eq!(of_getppid(&report), [3; 200]);
        assert!(report.groups.iter().all(|row| row.command == "workloads"));
        assert!(report.groups.iter().all(|row| row.tid.is_none()));
    }

    #[test]
    fn rows_of_threads() {
        let report = observe("--per thread", "threads 200 5");
        check_sums(&report);
        assert_eq!(report.groups.len(), 201);
        assert_eq!(of_getppid(&report), [5; 200]);
        let pids: BTreeSet<_> = report.groups.iter().map(|row| row.pid).collect();
        let tids: BTreeSet<_> = report.groups.iter().map(|row| row.tid).collect();
        assert_eq!((pids.len(), tids.len()), (1, 201));
    }

    #[test]
    fn rows_are_reused() {
        // The gate has 960 rows; those of ended threads are read and reused. If that is not done in
        // time, calls count in a common row, and no call is lost.
        let report = observe_crowd("--per thread", "short-threads 1500");
        check_sums(&report);
        assert_eq!(report.count("getppid"), 4500);
        assert_eq!(report.unfinished("exit"), 1500);
    }
}

#[test]
fn processes_with_equal_numbers_have_tables_of_their_own() {
    let report = observe("--per process", "equal-numbers 3");
    let mut calls: Vec<_> = report.groups.iter().map(|row| row.count("getppid")).collect();
    calls.retain(|count| *count > 0);
    calls.sort_unstable();
    assert_eq!(calls, [10, 20, 30]);
}

#[test]
fn threads_have_their_own_names() {
    let report = observe("--per thread", "named-threads io-worker gc-worker");
    let names: Vec<_> = report.groups.iter().map(|row| row.command.as_str()).collect();
    for name in ["io-worker", "gc-worker", "workloads"] {
        assert_eq!(names.iter().filter(|found| **found == name).count(), 1, "{names:?}");
    }
    // Each thread counted from its beginning to its end.
    for row in &report.groups {
        assert!(row.elapsed_ns > 0 && row.elapsed_ns < report.elapsed_ns, "{row:?}");
    }
}

#[test]
fn commands_have_their_own_time() {
    const MS: u64 = 1_000_000;
    let mut command = words("sh -c");
    command.push("sleep 0.3; exec sleep 0.1".into());
    let report = Job::run("--per command", command).finish().success().report().complete();
    let elapsed = |name: &str| {
        let row = report.groups.iter().find(|row| row.command == name);
        row.unwrap_or_else(|| panic!("no {name} among {:?}", report.groups)).elapsed_ns
    };
    // The shell becomes the second sleep, and began before the first one.
    assert!(elapsed("sh") >= 300 * MS && elapsed("sh") < report.elapsed_ns - 90 * MS);
    assert!(elapsed("sleep") >= 400 * MS && elapsed("sleep") < report.elapsed_ns);
}

#[test]
fn life_before_execve_belongs_to_the_command_before() {
    const MS: u64 = 1_000_000;
    let mut command = words("sh -c");
    command.extend(["read x; exec \"$0\" calls 1".into(), workloads().into()]);
    let mut job = Job::run("--per command", command);
    job.command.stdin(Stdio::piped());
    let mut run = job.start();
    let shell = run.child_running("sh");
    eventually("its read", || is_in_read(shell));
    std::thread::sleep(Duration::from_millis(300));
    run.stdin().write_all(b"\n").expect("it reads");
    let report = run.finish().success().report().complete();
    let account = |name: &str| {
        let row = report.groups.iter().find(|row| row.command == name);
        let row = row.unwrap_or_else(|| panic!("no {name} among {:?}", report.groups));
        row.account.clone().expect("it has lived")
    };
    let (before, after) = (account("sh"), account("workloads"));
    assert!(before.calls_ns >= 300 * MS, "{before:?}");
    let total = report.account.clone().expect("a thread has lived");
    assert_eq!(before.lifetime_ns + after.lifetime_ns, total.lifetime_ns);
    assert_eq!(before.calls_ns + after.calls_ns, total.calls_ns);
    assert_eq!((before.threads, after.threads, total.threads), (0, 1, 1));
    let outside = total.lifetime_ns - total.calls_ns;
    assert!(after.lifetime_ns - after.calls_ns <= outside, "{after:?}, {total:?}");
    assert!(after.lifetime_ns < total.lifetime_ns - 300 * MS, "{after:?}, {total:?}");
}

#[test]
fn program_that_executes_itself_has_its_name() {
    let mut command = words("sh -c");
    command.push("exec /proc/self/exe -c :".into());
    let report = Job::run("--per command", command).finish().success().report().complete();
    let names: Vec<_> = report.groups.iter().map(|row| row.command.as_str()).collect();
    assert!(!names.contains(&"exe"), "{names:?}");
}
