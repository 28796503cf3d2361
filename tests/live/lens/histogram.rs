//! `--histogram`: every call is in it once.

use crate::harness::{Job, observe, workload};

#[test]
fn totals_agree_with_the_table() {
    let report = observe("--histogram getppid --histogram exit_group", "calls 5000 --threads 4");
    let call = report.call("getppid");
    let octaves = call.histogram.as_deref().expect("it is asked for");
    assert_eq!(octaves.iter().map(|octave| octave.count).sum::<u64>(), call.count);
    let last = octaves.last().expect("it has calls");
    let is_last = call.max_ns >= last.from_ns && last.to_ns.is_none_or(|to_ns| call.max_ns < to_ns);
    assert!(is_last, "{call:?}");
    // Its only call did not return.
    let empty = report.call("exit_group").histogram.as_deref().map(<[_]>::len);
    assert_eq!((report.unfinished("exit_group"), empty), (1, Some(0)));
    assert!(report.call("execve").histogram.is_none());
}

#[test]
fn calls_without_a_time_are_named() {
    let text = |arguments| {
        let mut job = Job::from_command_line("run --histogram getppid --histogram fsync --");
        job.command.args(workload(arguments));
        job.finish().success().err
    };
    let shown = text("seccomp 100");
    assert!(shown.contains("wall time of 0 calls of getppid; 100 more have no time"), "{shown}");
    assert!(shown.contains("there is no histogram of fsync: no such call has ended"), "{shown}");
    let shown = text("calls 100");
    assert!(shown.contains("wall time of 100 calls of getppid\n"), "{shown}");
    let is_bar = |line: &str| line.contains(" to ") && line.ends_with("####");
    assert!(shown.lines().any(is_bar), "{shown}");
}
