//! Each workload makes the documented calls, and the same ones in every run. Needs strace.

use std::collections::BTreeMap;
use std::process::Command;

const WORKLOADS: &str = env!("CARGO_BIN_EXE_workloads");

/// Counts of calls by name; those of the other two tables as `32:getpid` and `x32:getpid`.
type CallCounts = BTreeMap<String, u64>;

fn strace(command: &str, program: &str) -> CallCounts {
    let directory = env!("CARGO_TARGET_TMPDIR");
    let summary = format!("{directory}/{}.strace", command.replace(['/', ' '], "_"));
    let finished = Command::new("strace")
        .args(["-c", "-f", "-o", &summary, program])
        .args(command.split_whitespace())
        .output()
        .expect("strace must be installed");
    let errors = String::from_utf8_lossy(&finished.stderr);
    assert!(errors.is_empty(), "{command}: {errors}");
    parse(&std::fs::read_to_string(&summary).expect("strace writes its summary"))
}

fn parse(summary: &str) -> CallCounts {
    let mut counts = CallCounts::new();
    let mut table = "";
    for line in summary.lines() {
        if line.contains("for 32 bit mode") {
            table = "32:";
        } else if line.contains("for x32 mode") {
            table = "x32:";
        }
        // % time, seconds, usecs/call, calls, errors (or nothing), syscall
        let fields: Vec<&str> = line.split_whitespace().collect();
        if let [share, _, _, calls, .., name] = fields[..]
            && share.parse::<f64>().is_ok()
            && name != "total"
        {
            let calls = calls.parse().expect("calls are a number");
            counts.insert(format!("{table}{name}"), calls);
        }
    }
    counts
}

#[track_caller]
fn check(command: &str, expected: &[(&str, u64)]) {
    let counts = strace(command, WORKLOADS);
    for &(name, calls) in expected {
        let actual = counts.get(name).copied().unwrap_or(0);
        assert_eq!(actual, calls, "{command}: calls of {name} in {counts:?}");
    }
    for _ in 0..2 {
        assert_eq!(strace(command, WORKLOADS), counts, "{command} again");
    }
}

#[test]
fn plain_calls() {
    check("calls 0", &[("getppid", 0)]);
    check("calls 1000", &[("getppid", 1000)]);
    check("calls 1001 --threads 4", &[("getppid", 1001), ("clone3", 4)]);
    // Its stdin is empty here.
    check("calls-on-input 5", &[("getppid", 0), ("read", 1)]);
    // The name of the type, and one call for each operation of its tasks.
    check("chained-tasks 100", &[("getppid", 102)]);
    check("own-tasks 50 0", &[("getppid", 101)]);
    check("threads 8 100", &[("getppid", 800), ("clone3", 8)]);
    check("threads 200 3", &[("getppid", 600), ("futex", 0)]);
    check("short-threads 120", &[("getppid", 360), ("clone3", 120)]);
    check("short-processes 120", &[("getppid", 360), ("clone", 120)]);
}

#[test]
fn other_tables() {
    check("int80 100", &[("32:getpid", 100), ("getppid", 100)]);
    check("x32 100", &[("x32:getpid", 100)]);
    let file = concat!(env!("CARGO_TARGET_TMPDIR"), "/elf32");
    for calls in [0, 50] {
        check(&format!("elf32 {file} {calls}"), &[("write", 1)]);
        let ran = Command::new(file).status().expect("an i386 program runs");
        assert!(ran.success());
        let counted = strace("", file).get("32:getpid").copied();
        assert_eq!(counted.unwrap_or(0), calls);
    }
}

#[test]
fn seccomp() {
    check("seccomp 100", &[("getppid", 100), ("getuid", 100)]);
    let trapped = [("getppid", 100), ("rt_sigreturn", 100)];
    check("seccomp-trap 100", &trapped);
    check("seccomp-kill", &[("getppid", 1)]);
}

#[test]
fn signals() {
    check("signals 200", &[("tgkill", 200), ("rt_sigreturn", 200)]);
    let restarted = [("nanosleep", 2), ("restart_syscall", 1)];
    check("nanosleep-restart", &restarted);
}

#[test]
fn children() {
    check("fork 50", &[("clone", 50), ("wait4", 50)]);
    check("fork-exec 30", &[("execve", 31), ("getppid", 30)]);
    check("vfork 30", &[("execve", 31), ("getppid", 30)]);
    check("exec-thread", &[("execve", 2), ("getppid", 10)]);
    check("daemon 100", &[("setsid", 1), ("nanosleep", 1), ("poll", 1)]);
}

#[test]
fn blocking() {
    check("sleep 2 10", &[("nanosleep", 10)]);
    check("pipe-block 2 10", &[("nanosleep", 10), ("read", 10)]);
    let directory = env!("CARGO_TARGET_TMPDIR");
    check(&format!("slow-open {directory}"), &[("openat", 2)]);
}

#[test]
fn reads_and_errors() {
    check("spin-read 3", &[("read", 3)]);
    check("starved 3 0", &[("read", 3), ("readv", 3)]);
    check("mixed 5 2 0", &[("read", 8), ("nanosleep", 4)]);
    let errors = [("openat", 100), ("close", 102), ("read", 100)];
    check("errors 100", &errors);
    // The first read is for the code's own faults.
    check("faults 1000", &[("read", 2)]);
}
