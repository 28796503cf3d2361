//! Runs the commands that switch arms on and off: with /bin/sh, each in its own process group and
//! with a time limit.

use std::io::Read as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kernel::process::{open_pidfd, wait_readable};
use kernel::signals::signal_group;

/// The time between a signal and the next, stronger one.
const SIGNAL_STEP: Duration = Duration::from_secs(5);

/// How often a wait checks whether the run was cancelled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A process group. It does not outlive this value, unless a wait allowed it to leave daemons
/// behind.
pub struct ProcessGroup {
    child: Child,
    end: OwnedFd,
    text: String,
    is_reaped: bool,
}

/// What happens to the other processes of a group when its leader has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaderExit {
    LeaveOthers,
    KillOthers,
}

/// The result of a wait.
#[derive(Debug, PartialEq, Eq)]
pub enum WaitResult {
    Ended(ExitStatus),
    TooLong,
    Cancelled,
}

fn shell(text: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", text]).stdin(Stdio::null()).process_group(0);
    command
}

/// Runs a command. It is an error if the command fails or hangs. Returns false if the run was
/// cancelled meanwhile. Processes that the command leaves running are not ended.
pub fn run(text: &str, limit: Duration, cancelled: &AtomicBool) -> Result<bool> {
    let mut command = shell(text);
    command.stdout(Stdio::null());
    succeed(&mut ProcessGroup::start(command, text)?, limit, cancelled)
}

/// Runs a command and returns its output. The output must be short, such as a number, because it
/// stays in the pipe until the command has ended.
pub fn output_of(text: &str, limit: Duration) -> Result<String> {
    let mut command = shell(text);
    command.stdout(Stdio::piped());
    let mut group = ProcessGroup::start(command, text)?;
    let mut output = group.child.stdout.take().expect("it is piped");
    succeed(&mut group, limit, &NEVER_CANCELLED)?;
    // The output is not read to its end: processes that the command left running may hold the pipe
    // open.
    let (mut printed, mut buffer) = (Vec::new(), [0; 4096]);
    while wait_readable(output.as_raw_fd(), Duration::ZERO) {
        match output
            .read(&mut buffer)
            .with_context(|| format!("cannot read what `{text}` printed"))?
        {
            0 => break,
            n => printed.extend_from_slice(&buffer[..n]),
        }
    }
    Ok(String::from_utf8_lossy(&printed).into_owned())
}

/// Never true: for commands that must be executed even if the run is cancelled.
pub static NEVER_CANCELLED: AtomicBool = AtomicBool::new(false);

fn succeed(group: &mut ProcessGroup, limit: Duration, cancelled: &AtomicBool) -> Result<bool> {
    match group.wait(limit, cancelled, LeaderExit::LeaveOthers)? {
        WaitResult::Ended(status) if status.success() => Ok(true),
        WaitResult::Ended(status) => bail!("`{}` failed: {status}", group.text),
        WaitResult::TooLong => bail!("`{}` did not end within {limit:?}", group.text),
        WaitResult::Cancelled => Ok(false),
    }
}

/// Sleeps, unless the run is cancelled.
pub fn pause(time: Duration, cancelled: &AtomicBool) {
    let end = Instant::now() + time;
    while !cancelled.load(Ordering::Relaxed) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(POLL_INTERVAL));
    }
}

/// Starts a program that runs for the time of a block.
pub fn background(text: &str) -> Result<ProcessGroup> {
    let mut command = shell(text);
    // The output of tracers does not belong to the output of this program.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    ProcessGroup::start(command, text)
}

impl ProcessGroup {
    /// Starts a command as the leader of a process group. `text` names it in messages.
    pub fn start(mut command: Command, text: &str) -> Result<Self> {
        let cannot = || format!("cannot start `{text}`");
        let child = command.spawn().with_context(cannot)?;
        let end = open_pidfd(child.id()).with_context(cannot)?;
        Ok(Self { child, end, text: text.to_owned(), is_reaped: false })
    }

    /// The leader.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits for the end of the leader, but does not reap the leader. Until it is reaped, no other
    /// process can get its PID.
    fn has_ended_within(&self, limit: Duration, cancelled: &AtomicBool) -> bool {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now()).min(POLL_INTERVAL);
            // The timeout of poll() is in whole milliseconds.
            let left = if left.is_zero() { left } else { left.max(Duration::from_millis(1)) };
            if wait_readable(self.end.as_raw_fd(), left) {
                return true;
            }
            if left.is_zero() || cancelled.load(Ordering::Relaxed) {
                return false;
            }
        }
    }

    /// Waits for the end of the leader.
    pub fn wait(
        &mut self,
        limit: Duration,
        cancelled: &AtomicBool,
        rest: LeaderExit,
    ) -> Result<WaitResult> {
        if self.has_ended_within(limit, cancelled) {
            if rest == LeaderExit::KillOthers {
                signal_group(self.child.id(), libc::SIGKILL);
            }
            self.is_reaped = true;
            return Ok(WaitResult::Ended(self.child.wait()?));
        }
        Ok(if cancelled.load(Ordering::Relaxed) {
            WaitResult::Cancelled
        } else {
            WaitResult::TooLong
        })
    }

    /// It is an error if the program has ended by itself, because the block then measured nothing.
    pub fn still_runs(&mut self) -> Result<()> {
        match self.wait(Duration::ZERO, &NEVER_CANCELLED, LeaderExit::KillOthers)? {
            WaitResult::Ended(status) => {
                bail!("`{}` ended before the block did: {status}", self.text)
            }
            WaitResult::TooLong | WaitResult::Cancelled => Ok(()),
        }
    }

    /// Ends the leader with SIGINT, as Ctrl-C does, or with SIGTERM if SIGINT does not end it. Then
    /// kills the rest of the process group. Fails if the leader had to be killed.
    pub fn end(self) -> Result<()> {
        for signal in [libc::SIGINT, libc::SIGTERM] {
            signal_group(self.child.id(), signal);
            if self.has_ended_within(SIGNAL_STEP, &NEVER_CANCELLED) {
                return Ok(());
            }
        }
        bail!("`{}` had to be killed: neither SIGINT nor SIGTERM ended it", self.text)
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // After the leader was reaped, another process may have its PID.
        if !self.is_reaped {
            signal_group(self.child.id(), libc::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_failure() {
        assert_eq!(output_of("echo 7", SIGNAL_STEP).expect("it works"), "7\n");
        let error = run("exit 3", SIGNAL_STEP, &NEVER_CANCELLED).unwrap_err().to_string();
        assert!(error.contains("`exit 3` failed"), "{error}");
    }

    #[test]
    fn output_is_not_waited_for_longer_than_the_command() {
        let began = Instant::now();
        assert_eq!(output_of("sleep 5 & echo 3", SIGNAL_STEP).expect("it works"), "3\n");
        assert!(began.elapsed() < SIGNAL_STEP);
    }

    #[test]
    fn a_command_that_hangs_is_ended() {
        let error =
            run("sleep 100", Duration::from_millis(50), &NEVER_CANCELLED).unwrap_err().to_string();
        assert_eq!(error, "`sleep 100` did not end within 50ms");
    }

    #[test]
    fn cancelled_run_does_not_wait() {
        let cancelled = AtomicBool::new(true);
        assert!(!run("sleep 100", SIGNAL_STEP, &cancelled).expect("no failure"));
        let began = Instant::now();
        pause(SIGNAL_STEP, &cancelled);
        assert!(began.elapsed() < SIGNAL_STEP);
    }

    /// The number of processes of a process group that have not ended, from /proc.
    fn members(group: u32) -> usize {
        let is_member = |entry: std::fs::DirEntry| {
            // "PID (NAME) STATE PPID PGRP …"
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
            let (state, of) = (fields.next()?, fields.nth(1)?.parse::<u32>().ok()?);
            Some(state != "Z" && of == group)
        };
        let all = std::fs::read_dir("/proc").expect("there is one").flatten();
        all.filter_map(is_member).filter(|is_one| *is_one).count()
    }

    fn eventually_has(group: u32, wanted: usize) {
        let began = Instant::now();
        while members(group) != wanted {
            assert!(began.elapsed() < SIGNAL_STEP, "{} members of {wanted}", members(group));
            thread::sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn a_background_program_is_ended_with_all_it_started() {
        let programs = [
            ("exec sleep 100", 1),
            ("sleep 100 & sleep 100 & wait", 3),
            ("trap '' INT; sleep 100 & exec sleep 100", 2),
        ];
        for (text, processes) in programs {
            let mut group = background(text).expect("it starts");
            let number = group.child.id();
            eventually_has(number, processes);
            group.still_runs().expect("it runs");
            group.end().expect("it ends");
            eventually_has(number, 0);
        }
    }

    #[test]
    fn a_background_program_that_ended_leaves_nothing() {
        let mut group = background("sleep 100 & exit 3").expect("it starts");
        let number = group.child.id();
        let began = Instant::now();
        let error = loop {
            match group.still_runs() {
                Ok(_) if began.elapsed() < SIGNAL_STEP => thread::sleep(POLL_INTERVAL),
                result => break result.expect_err("it has ended"),
            }
        };
        assert!(error.to_string().contains("ended before"));
        drop(group);
        eventually_has(number, 0);
    }
}
