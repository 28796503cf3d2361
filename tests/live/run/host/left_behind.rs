//! What Tollgate's parent hands down and what the command leaves behind. The command gets what it
//! would get without Tollgate, and the report is not lost.

use std::fs::File;
use std::io::{self, Read as _};
use std::mem::zeroed;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::process::Stdio;

use crate::harness::{Job, eventually, words, workload};

/// What `timeout`, a supervisor or a shell may hand down.
fn hand_down() -> io::Result<()> {
    // SAFETY: plain system calls with valid arguments.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let files = libc::rlimit { rlim_cur: 1000, rlim_max: 2000 };
        libc::setrlimit(libc::RLIMIT_NOFILE, &files);
        let size = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 30 };
        libc::setrlimit(libc::RLIMIT_FSIZE, &size);
        let mut timer: libc::itimerval = zeroed();
        timer.it_value.tv_sec = 10_000;
        libc::syscall(libc::SYS_setitimer, libc::ITIMER_REAL, &raw const timer, 0);
    }
    Ok(())
}

#[test]
fn command_inherits_what_tollgate_has() {
    let alone = Job::of(workload("inherited")).before_exec(hand_down).finish().success();
    assert!(alone.text().contains("[false, true, true, false]"), "{}", alone.text());
    assert!(alone.text().contains("timer true"), "{}", alone.text());
    let ran = Job::run("", workload("inherited")).before_exec(hand_down).finish().success();
    assert_eq!(ran.text(), alone.text());
    ran.report().complete();
}

#[test]
fn ignored_sigchld_keeps_the_status() {
    let ignore = || {
        // SAFETY: a valid disposition.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        Ok(())
    };
    let ran = Job::run("", workload("exit 7")).before_exec(ignore).finish();
    assert_eq!(ran.exits_with(7).report().complete().exit, Some(7));
}

#[test]
fn alarm_goes_to_the_command() {
    let running = Job::run("", workload("hang")).start();
    running.child_running("workloads");
    running.signal(libc::SIGALRM);
    let report = running.finish().exits_with(128 + libc::SIGALRM).report().complete();
    assert_eq!(report.count("execve"), 1);
}

/// The smallest buffer that a pipe can have (fcntl(2), F_SETPIPE_SZ).
const PIPE_BYTES: libc::c_int = 4096;

#[test]
fn report_is_complete_on_nonblocking_stderr() {
    let mut ends = [-1; 2];
    // SAFETY: room for two descriptors.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(made, 0, "{}", io::Error::last_os_error());
    // SAFETY: new descriptors that nothing else owns.
    let [mut reader, writer] = ends.map(|end| unsafe { File::from_raw_fd(end) });
    // SAFETY: calls without pointers; the flag belongs to the pipe's writing end alone.
    unsafe {
        libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_BYTES);
        libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK);
    }
    let mut job = Job::from_command_line("run --json --");
    job.command.args(workload("exit 3")).stderr(Stdio::from(writer));
    let running = job.start();
    let mut waiting = 0;
    eventually("a full pipe", || {
        // SAFETY: a valid destination.
        unsafe { libc::ioctl(reader.as_raw_fd(), libc::FIONREAD, &raw mut waiting) };
        waiting == PIPE_BYTES || running.is_over()
    });
    let mut report = String::new();
    // The pipe ends with Tollgate, whose copy of the writing end is the last one.
    let read = std::thread::spawn(move || reader.read_to_string(&mut report).map(|_| report));
    running.finish().exits_with(3);
    let report = read.join().expect("it does not panic").expect("UTF-8");
    let json: serde_json::Value = serde_json::from_str(&report).expect("a complete document");
    assert_eq!(json["exit"], 3);
    assert!(report.len() > PIPE_BYTES as usize);
}

#[test]
fn removed_folder_does_not_lose_the_report() {
    let job = Job::of(words("true"));
    let folder = job.path("folder");
    std::fs::create_dir(&folder).expect("the job's folder is ours");
    let report = folder.join("report");
    let mut job = Job::from_command_line("run -o");
    job.command.arg(&report).args(["--", "rmdir"]).arg(&folder);
    let ran = job.finish().success();
    ran.says("rmdir").says("toll: ").says("cannot write the result to");
}
