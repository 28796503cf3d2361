//! Every call is counted once, however it is made and however it ends.

use crate::harness::{Job, observe, workload};

#[test]
fn calls_of_one_thread() {
    let report = observe("", "calls 1000");
    assert_eq!(report.count("getppid"), 1000);
    assert_eq!(report.count("execve"), 1);
    assert_eq!(report.unfinished("exit_group"), 1);
    assert_eq!(report.exit, Some(0));
    assert_eq!(report.command[1..], ["calls", "1000"]);
}

#[test]
fn calls_of_many_threads() {
    let report = observe("", "calls 100001 --threads 8");
    assert_eq!(report.count("getppid"), 100_001);
    assert_eq!(report.count("clone3"), 8);
    assert_eq!(report.unfinished("exit"), 8);
}

#[test]
fn short_threads_and_processes() {
    let report = observe("", "short-threads 500");
    assert_eq!(report.count("getppid"), 1500);
    assert_eq!(report.unfinished("exit"), 500);
    let report = observe("", "short-processes 500");
    assert_eq!(report.count("getppid"), 1500);
    assert_eq!(report.unfinished("exit_group"), 501);
}

#[test]
fn first_return_of_a_child_is_not_a_call() {
    let report = observe("", "fork 200");
    assert_eq!(report.count("clone"), 200);
    assert_eq!(report.count("wait4"), 200);
    assert_eq!(report.unfinished("exit_group"), 201);
}

#[test]
fn children_that_exec() {
    let report = observe("", "fork-exec 20");
    assert_eq!(report.count("clone"), 20);
    assert_eq!(report.count("execve"), 21);
    assert_eq!(report.count("getppid"), 20);
}

#[test]
fn vfork_counts_once_per_child() {
    let report = observe("", "vfork 20");
    assert_eq!(report.count("clone3"), 20);
    assert_eq!(report.count("execve"), 21);
    assert_eq!(report.count("getppid"), 20);
}

#[test]
fn execve_from_non_leader_thread() {
    for options in ["", "--per process", "--per thread", "--per command"] {
        let report = observe(options, "exec-thread");
        assert_eq!(report.count("execve"), 2, "{options}");
        assert_eq!(report.count("getppid"), 10, "{options}");
        assert_eq!(report.count("nanosleep"), 1, "{options}");
        assert_eq!(report.unfinished("exit_group"), 1, "{options}");
        // The leader is killed in its pause, which does not return.
        let pause = report.call("pause");
        assert_eq!(pause.count + pause.unfinished, 1, "{options}");
    }
}

#[test]
fn int80_calls_are_i386() {
    let report = observe("", "int80 1000");
    assert_eq!(report.call_of("getpid", "i386").count, 1000);
    assert_eq!(report.count("getppid"), 1000);
    assert_eq!(report.count("getpid"), 1);
    // Number 20 is getpid in the i386 table, but writev in the 64-bit table.
    assert_eq!(report.count("writev"), 0);
}

#[test]
fn i386_program() {
    let make = Job::of(workload("elf32"));
    let program = make.path("elf32");
    let mut make = make;
    make.command.arg(&program).arg("1000");
    let made = make.finish().success();
    let ran = Job::run("", vec![program.into()]).finish().success();
    let report = ran.report().complete();
    assert_eq!(report.call_of("getpid", "i386").count, 1000);
    assert_eq!(report.call_of("exit", "i386").unfinished, 1);
    // 64-bit code made the execve.
    assert_eq!(report.count("execve"), 1);
    assert!(report.find("execve", "i386").is_none());
    drop(made);
}

#[test]
fn x32_calls() {
    let report = observe("", "x32 1000");
    assert_eq!(report.call_of("getpid", "x32").count, 1000);
    assert_eq!(report.count("getpid"), 1);
}

#[test]
fn calls_denied_by_seccomp() {
    let report = observe("", "seccomp 1000");
    let denied = report.call("getppid");
    assert_eq!((denied.count, denied.denied), (1000, 1000));
    assert_eq!(denied.errors["EPERM"], 1000);
    assert_eq!((denied.wall_ns, denied.max_ns), (0, 0));
    let allowed = report.call("getuid");
    assert_eq!((allowed.count, allowed.denied), (1000, 0));
}

#[test]
fn calls_trapped_by_seccomp() {
    let report = observe("", "seccomp-trap 100");
    assert_eq!(report.count("getppid"), 100);
    assert_eq!(report.count("rt_sigreturn"), 100);
}

#[test]
fn call_killed_by_seccomp() {
    let ran = Job::run("", workload("seccomp-kill")).finish().exits_with(128 + libc::SIGSYS);
    let report = ran.report().complete();
    assert_eq!(report.exit, Some(128 + libc::SIGSYS));
    let killed = report.call("getppid");
    assert_eq!(killed.count + killed.unfinished, 1);
    assert_eq!(report.unfinished("exit_group"), 0);
}

#[test]
fn returns_from_signal_handlers() {
    let report = observe("", "signals 1000");
    assert_eq!(report.count("tgkill"), 1000);
    let returns = report.call("rt_sigreturn");
    assert_eq!(returns.count, 1000);
    // The register of the result holds the interrupted call's result, here tgkill's 0.
    assert!(returns.errors.is_empty(), "{:?}", returns.errors);
}

#[test]
fn restarted_sleep_is_a_second_call() {
    let report = observe("", "nanosleep-restart");
    assert_eq!(report.count("nanosleep"), 2);
    assert_eq!(report.call("nanosleep").errors["ERESTART_RESTARTBLOCK"], 1);
    let restarted = report.call("restart_syscall");
    assert_eq!(restarted.count, 1);
    assert!(restarted.errors.is_empty());
}

#[test]
fn errors_by_number() {
    let report = observe("", "errors 500");
    for (call, errno, more) in
        [("openat", "ENOENT", 0), ("close", "EBADF", 2), ("read", "EAGAIN", 0)]
    {
        let call = report.call(call);
        assert_eq!(call.count, 500 + more, "{call:?}");
        assert_eq!(call.errors.len(), 1, "{call:?}");
        assert_eq!(call.errors[errno], 500, "{call:?}");
    }
}

#[test]
fn repeated_run_gives_same_counts() {
    let counts = || observe("", "fork-exec 10").counts();
    let first = counts();
    for _ in 0..5 {
        assert_eq!(counts(), first);
    }
}
