//! Tollgate passes on how a command ends, whatever happens to the command, its terminal or
//! Tollgate.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::FromRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::harness::bpf::abandoned_links;
use crate::harness::job::{comm, is_in_call, is_running, kill, state};
use crate::harness::pty::Terminal;
use crate::harness::{Job, eventually, tollgate, words, workload};

#[test]
fn exit_status() {
    for status in [0, 1, 3, 125, 255] {
        let ran = Job::run("", workload(&format!("exit {status}"))).finish();
        assert_eq!(ran.exits_with(status).report().exit, Some(status));
    }
}

#[test]
fn signals_to_tollgate_reach_the_command() {
    const STANDARD: [i32; 13] = [
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGABRT,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGSEGV,
        libc::SIGPIPE,
        libc::SIGSTKFLT,
        libc::SIGXCPU,
        libc::SIGXFSZ,
        libc::SIGIO,
        libc::SIGPWR,
        libc::SIGSYS,
    ];
    for signal in STANDARD.into_iter().chain([libc::SIGRTMIN(), libc::SIGRTMAX()]) {
        let mut command = words("sh -c");
        command.push("ulimit -c 0; exec sleep 100".into());
        let run = Job::run("", command).start();
        run.child_running("sleep");
        run.signal(signal);
        let exit = 128 + signal;
        assert_eq!(run.finish().exits_with(exit).report().exit, Some(exit));
    }
}

#[test]
fn stop_and_continue_reach_the_command() {
    let run = Job::run("", words("sleep 100")).start();
    let (own, command) = (run.pid(), run.child_running("sleep"));
    run.signal(libc::SIGTSTP);
    eventually("their stop", || [own, command].iter().all(|pid| state(*pid) == Some('T')));
    run.signal(libc::SIGCONT);
    eventually("their return", || [own, command].iter().all(|pid| state(*pid) == Some('S')));
    run.signal(libc::SIGTERM);
    run.finish().exits_with(128 + libc::SIGTERM);
}

/// Tollgate is the parent of the command.
#[test]
fn command_that_its_parent_shall_trace_goes_on() {
    let report = Job::run("", workload("trace-me")).finish().success().report();
    assert_eq!(report.count("getppid"), 7);
    let said = |note: &String| note.contains("has asked its parent to trace it");
    assert!(report.notes.iter().any(said), "{:?}", report.notes);
}

#[test]
fn command_that_stops_itself_is_a_stopped_job() {
    let mut terminal = Terminal::new();
    let job = Job::of(words("sh -i")).with_row_lock_shared().on(&terminal);
    let shell = job.start();
    // With -m, it leads a process group of its own, and takes the terminal.
    for (round, options) in ["-c", "-mc"].into_iter().enumerate() {
        let line = format!(
            "{} run -o /dev/null -- sh {options} 'kill -STOP $$; echo went $((1+1)) on'\n",
            tollgate().display()
        );
        terminal.press(line.as_bytes());
        let shows = |text: &str, screen: &str| screen.matches(text).count() == round + 1;
        terminal.shows("the stopped job", |screen| shows("Stopped", screen));
        terminal.press(b"fg\n");
        terminal.shows("its end", |screen| shows("went 2 on", screen));
    }
    terminal.press(b"exit\n");
    shell.finish();
}

#[test]
fn variables_with_tollgates_number_name_the_command() {
    let script = "LISTEN_PID=$$ WATCHDOG_PID=1 exec \"$0\" run -o /dev/null -- \
        sh -c 'echo $(($LISTEN_PID - $$)) $WATCHDOG_PID'";
    let mut job = Job::of(words("sh -c")).with_row_lock_shared();
    job.command.arg(script).arg(tollgate());
    assert_eq!(job.finish().success().text(), "0 1\n");
}

#[test]
fn death_by_signal() {
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV, libc::SIGINT] {
        let ran = Job::run("", workload(&format!("kill-self {signal}"))).finish();
        // A shell ends a loop at Ctrl-C only if Tollgate dies of the signal, too.
        assert_eq!(ran.signal, (signal == libc::SIGINT).then_some(signal));
        let report = ran.exits_with(128 + signal).report().complete();
        assert_eq!(report.exit, Some(128 + signal));
        assert_eq!(report.count("kill") + report.call("kill").unfinished, 1);
        assert_eq!(report.unfinished("exit_group"), 0);
    }
}

#[test]
fn killed_during_a_call() {
    let running = Job::run("", workload("hang")).start();
    let command = running.child_running("workloads");
    eventually("pause", || crate::harness::job::state(command) == Some('S'));
    kill(command as i32, libc::SIGKILL);
    let report = running.finish().exits_with(137).report().complete();
    let pause = report.call("pause");
    assert_eq!(pause.count + pause.unfinished, 1, "{pause:?}");
    assert!(report.in_progress.is_empty());
}

#[test]
fn sigint_goes_to_the_command() {
    // Killed by the signal and not "exit 130", which is how a command that handles the signal might
    // end.
    let running = Job::run("", workload("hang")).start();
    running.child_running("workloads");
    running.signal_group(libc::SIGINT);
    let report = running.finish().exits_with(130).report().complete();
    assert_eq!(report.exit, Some(130));
    assert_eq!(report.count("execve"), 1);
}

#[test]
fn signals_to_tollgate_are_forwarded() {
    let all =
        [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];
    for signal in all {
        let running = Job::run("", workload("hang")).start();
        running.child_running("workloads");
        running.signal(signal);
        let report = running.finish().exits_with(128 + signal).report().complete();
        assert_eq!(report.exit, Some(128 + signal));
    }
}

#[test]
fn control_c_at_a_terminal() {
    let mut terminal = Terminal::new();
    let mut job = Job::from_command_line("run --");
    job.command.args(workload("hang"));
    let running = job.on(&terminal).start();
    let command = running.child_running("workloads");
    eventually("its call that never ends", || is_in_call(command, libc::SYS_pause));
    terminal.press(b"\x03");
    let shown = terminal.read_until("toll: ");
    running.finish().exits_with(130);
    assert!(shown.contains("exit status 130"), "{shown}");
    assert!(shown.contains("pause"), "{shown}");
}

#[test]
fn hangup_ends_the_command_not_the_report() {
    let terminal = Terminal::new();
    let running = Job::run("", workload("hang")).on(&terminal).start();
    running.child_running("workloads");
    terminal.hang_up();
    let ran = running.finish().exits_with(128 + libc::SIGHUP);
    assert_eq!(ran.report().complete().count("execve"), 1);
}

#[test]
fn hangup_ignored_by_the_command() {
    let terminal = Terminal::new();
    let ignore = || {
        // SAFETY: SIG_IGN is a valid disposition.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
        Ok(())
    };
    let mut job = Job::run("", workload("slow-open")).on(&terminal);
    let folder = job.path("");
    job.command.arg(folder);
    let running = job.before_exec(ignore).start();
    running.child_running("workloads");
    terminal.hang_up();
    let report = running.finish().success().report().complete();
    assert_eq!(report.count("nanosleep"), 2);
    assert_eq!(report.unfinished("exit_group"), 2);
}

#[test]
fn background_daemon_is_not_waited_for() {
    let began = Instant::now();
    let ran = Job::run("", workload("daemon 20000")).finish().success();
    let daemon: u32 = ran.text().trim().parse().expect("it prints a number");
    assert_eq!(comm(daemon).as_deref(), Some("workloads"));
    kill(daemon as i32, libc::SIGKILL);
    assert!(began.elapsed() < Duration::from_secs(15));
    let report = ran.report().complete();
    let [call] = &report.in_progress[..] else {
        panic!("{:?}", report.in_progress);
    };
    assert_eq!((call.tid, call.name.as_str()), (daemon, "nanosleep"));
    assert!(call.ns.is_some_and(|ns| ns < 20_000_000_000), "{call:?}");
    assert_eq!(report.count("nanosleep"), 0);
    assert_eq!(report.count("setsid"), 1);
    let is_noted = report.notes.iter().any(|note| note.contains("still run"));
    assert!(is_noted, "{:?}", report.notes);
}

#[test]
fn closed_stderr_keeps_the_status() {
    let close = || {
        // SAFETY: closes a descriptor that nothing else in the child uses before it executes.
        unsafe { libc::close(2) };
        Ok(())
    };
    let mut job = Job::from_command_line("run --");
    job.command.args(workload("exit 3"));
    job.before_exec(close).finish().exits_with(3);
    let close = || {
        for descriptor in 0..=2 {
            // SAFETY: as above.
            unsafe { libc::close(descriptor) };
        }
        Ok(())
    };
    let ran = Job::run("", workload("exit 3")).before_exec(close).finish();
    assert_eq!(ran.exits_with(3).report().exit, Some(3));
}

#[test]
fn broken_stderr_pipe_keeps_the_status() {
    let mut ends = [-1; 2];
    // SAFETY: room for two descriptors.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(made, 0, "{}", io::Error::last_os_error());
    // SAFETY: new descriptors that nothing else owns.
    let [reader, writer] = ends.map(|end| unsafe { File::from_raw_fd(end) });
    drop(reader);
    let mut job = Job::from_command_line("run --");
    job.command.args(workload("exit 0"));
    job.command.stderr(Stdio::from(writer));
    job.finish().success();
}

#[test]
fn full_disk_keeps_the_status() {
    let mut job = Job::from_command_line("run -o /dev/full --");
    job.command.args(workload("exit 3"));
    let ran = job.finish().exits_with(3);
    ran.says("cannot write the result to /dev/full");
}

/// A job that writes its report to a named pipe.
fn with_named_pipe(command: &str) -> (Job, PathBuf) {
    let mut job = Job::from_command_line("run -o");
    let pipe = job.path("pipe");
    let path = CString::new(pipe.as_os_str().as_bytes()).expect("no NUL in it");
    // SAFETY: a NUL-terminated path.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    job.command.arg(&pipe).arg("--").args(workload(command));
    (job, pipe)
}

#[test]
fn report_goes_to_a_named_pipe() {
    let (job, pipe) = with_named_pipe("exit 3");
    let running = job.start();
    // Opens the pipe only once.
    let report = fs::read_to_string(pipe).expect("it is ours");
    running.finish().exits_with(3);
    assert!(report.contains("exit status 3") && report.contains("toll: "), "{report}");
}

#[test]
fn signals_end_the_wait_for_the_reader_of_a_named_pipe() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let running = with_named_pipe("exit 0").0.start();
        let pid = running.pid();
        eventually("its open", || is_in_call(pid, libc::SYS_openat));
        running.signal(signal);
        assert_eq!(running.finish().signal, Some(signal));
    }
}

#[test]
fn signal_dispositions_are_inherited() {
    // The command gets the default action, although Tollgate ignores the signal; if it was ignored
    // before, it stays ignored.
    for (ignored, status) in [(false, 128 + libc::SIGPIPE), (true, 1)] {
        let action = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
        let set = move || {
            // SAFETY: both are valid dispositions.
            unsafe { libc::signal(libc::SIGPIPE, action) };
            Ok(())
        };
        let mut ends = [-1; 2];
        // SAFETY: room for two descriptors.
        unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
        // SAFETY: new descriptors that nothing else owns.
        let [reader, writer] = ends.map(|end| unsafe { File::from_raw_fd(end) });
        drop(reader);
        let mut job = Job::run("", workload("sleep 0"));
        job.command.stdout(Stdio::from(writer));
        let ran = job.before_exec(set).finish();
        assert_eq!(ran.status, status, "ignored before: {ignored}; {}", ran.err);
    }
}

#[test]
fn sigint_before_exec_ends_tollgate() {
    for milliseconds in [0, 30, 60, 120, 240] {
        let running = Job::run("", workload("hang")).start();
        std::thread::sleep(Duration::from_millis(milliseconds));
        running.signal_group(libc::SIGINT);
        running.finish().exits_with(130);
    }
}

/// Links are abandoned if no other process holds the gate.
mod alone {
    use super::*;

    #[test]
    fn killed_tollgate_leaves_only_its_command() {
        let mut job = Job::run("", workload("calls-on-input 1"));
        job.command.stdin(Stdio::piped());
        let mut running = job.start();
        let command = running.child_running("workloads");
        running.signal(libc::SIGKILL);
        eventually("the end of a killed process", || running.is_over());
        eventually("an end of all links", || abandoned_links().is_empty());
        // The command may be slow, but it still runs.
        assert!(is_running(command), "the command ended with Tollgate");
        drop(running.stdin());
        eventually("the command's end", || !is_running(command));
        assert!(!running.path("report").exists() || running.read("report").is_empty());
    }
}
