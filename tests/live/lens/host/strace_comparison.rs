//! The same program runs below strace and below Tollgate: the calls, their numbers and their errors
//! must agree.
//!
//! By design, strace does not count calls that do not return: exit, exit_group, and calls in which
//! a thread is killed. All others are compared without tolerance, so the programs must make the
//! same calls in every run, also below a ptrace tracer. A tracer sees even ignored signals: if a
//! SIGCHLD arrives while the parent is in wait4 or read, the kernel restarts that call, and strace
//! counts it twice. The workloads block that signal.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;

use crate::harness::job::folder;
use crate::harness::strace::strace;
use crate::harness::{Job, Report, words, workload};

/// Counts errors by call and errno.
fn errors(report: &Report) -> BTreeMap<(String, String), u64> {
    let mut errors = BTreeMap::new();
    for call in &report.calls {
        for (errno, count) in &call.errors {
            *errors.entry((call.name.clone(), errno.clone())).or_default() += count;
        }
    }
    errors
}

/// Compares the two, except for the calls named in `killed`, and returns Tollgate's report.
#[track_caller]
fn compare_but(command: &[OsString], killed: &[&str]) -> Report {
    let theirs = strace(command);
    let report = Job::run("", command.to_vec()).finish().report().complete();
    let mut counts = report.counts();
    counts.retain(|(name, _), _| !killed.contains(&name.as_str()));
    assert_eq!(counts, theirs.counts, "Tollgate's and strace's counts of {command:?}");
    let mut errors = errors(&report);
    errors.retain(|(name, _), _| !killed.contains(&name.as_str()));
    assert_eq!(errors, theirs.errors, "Tollgate's and strace's errors of {command:?}");
    for call in &report.calls {
        let may = matches!(call.name.as_str(), "exit" | "exit_group")
            || killed.contains(&call.name.as_str());
        assert!(may || call.unfinished == 0, "{call:?}");
    }
    report
}

#[track_caller]
fn compare(command: &[OsString]) -> Report {
    compare_but(command, &[])
}

#[test]
fn tar_of_a_tree() {
    let folder = folder();
    let tree = folder.path().join("tree");
    for sub in 0..10 {
        let sub = tree.join(format!("folder-{sub}/deeper"));
        fs::create_dir_all(&sub).expect("a folder can be made");
        for file in 0..20 {
            let bytes = vec![b'x'; 1000 * file];
            fs::write(sub.join(format!("file-{file}")), bytes).expect("a file can be written");
        }
    }
    let archive = folder.path().join("archive.tar");
    let mut command = words("tar -cf");
    command.extend([archive.into(), "-C".into(), tree.into(), ".".into()]);
    let report = compare(&command);
    assert!(report.count("openat") >= 220 && report.count("write") > 100);
    // tar found no unreadable file, and the archives are the same.
    assert_eq!(report.exit, Some(0));
}

#[test]
fn threads() {
    // A workload and not a program of the system, whose threads would call futex a varying number
    // of times.
    let report = compare(&workload("threads 64 500"));
    assert_eq!(report.count("getppid"), 32_000);
    assert_eq!(report.unfinished("exit"), 64);
    let report = compare(&workload("short-threads 200"));
    assert_eq!(report.unfinished("exit"), 200);
}

#[test]
fn shell_pipelines() {
    // Shells handle SIGCHLD, and one signal may stand for two children or interrupt a fork. So no
    // part of a pipeline ends before all have started, each ends well after the one before it, and
    // each reader's input was written by one write.
    let script = r#"
        echo one; (id -u; true); /bin/true && /bin/echo two; /bin/false
        x=$(uname); test -n "$x" || exit 9
        for i in 1 2; do
            (sleep 0.5; exec echo $i) | (cat; exec sleep 0.5) | (wc -c; exec sleep 0.5)
        done
        exec cat /etc/hostname"#;
    for shell in ["sh", "bash"] {
        let report = compare(&[shell, "-c", script].map(OsString::from));
        assert!(report.count("execve") >= 18, "{shell}");
        assert_eq!(report.exit, Some(0), "{shell}");
    }
}

#[test]
fn int80_calls() {
    let report = compare(&workload("int80 700"));
    assert_eq!(report.call_of("getpid", "i386").count, 700);
}

#[test]
fn i386_program() {
    let folder = folder();
    let program = folder.path().join("elf32");
    let mut make = workload("elf32");
    make.extend([program.clone().into(), "300".into()]);
    Job::of(make).finish().success();
    let report = compare(&[program.into()]);
    assert_eq!(report.call_of("getpid", "i386").count, 300);
    assert_eq!(report.call_of("exit", "i386").unfinished, 1);
}

#[test]
fn x32_calls() {
    let report = compare(&workload("x32 400"));
    assert_eq!(report.call_of("getpid", "x32").count, 400);
}

#[test]
fn seccomp_errno_trap_kill() {
    let report = compare(&workload("seccomp 1000"));
    assert_eq!(report.call("getppid").errors["EPERM"], 1000);
    compare(&workload("seccomp-trap 1000"));
    compare(&workload("seccomp-kill"));
}

#[test]
fn restarted_calls() {
    let report = compare(&workload("nanosleep-restart"));
    assert_eq!(report.count("restart_syscall"), 1);
}

#[test]
fn execve_from_non_leader_thread() {
    // The leader is killed in its pause; strace does not see the end of that call.
    let report = compare_but(&workload("exec-thread"), &["pause"]);
    assert_eq!(report.count("execve"), 2);
}

#[test]
fn children() {
    assert_eq!(compare(&workload("fork 100")).count("clone"), 100);
    assert_eq!(compare(&workload("vfork 20")).count("execve"), 21);
    assert_eq!(compare(&workload("fork-exec 20")).count("execve"), 21);
    assert_eq!(compare(&workload("short-processes 200")).count("getppid"), 600);
}

#[test]
fn signals() {
    assert_eq!(compare(&workload("signals 1000")).count("rt_sigreturn"), 1000);
    compare(&workload("kill-self 15"));
}

#[test]
fn errors_by_number() {
    let report = compare(&workload("errors 300"));
    assert_eq!(report.call("read").errors["EAGAIN"], 300);
}

#[test]
fn blocking_calls() {
    compare(&workload("sleep 1 50"));
    compare(&workload("pipe-block 2 50"));
    let folder = folder();
    let mut command = workload("slow-open");
    command.push(folder.path().into());
    compare(&command);
}
