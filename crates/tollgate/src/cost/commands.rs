//! Commands that switch arms on and off: by /bin/sh, each in a process group of its own, none without a limit.

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

/// Between a request to end and the next, stronger one.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often a wait looks whether the run is given up.
const LOOK: Duration = Duration::from_millis(100);

/// A process group that does not outlive this value, unless it was waited for as one that may leave daemons behind.
pub struct Group {
    child: Child,
    end: OwnedFd,
    text: String,
    is_reaped: bool,
}

/// What becomes of a group when its leader has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    GoesOn,
    Ends,
}

/// How a wait went.
#[derive(Debug, PartialEq, Eq)]
pub enum Waited {
    Ended(ExitStatus),
    TooLong,
    GivenUp,
}

fn shell(text: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", text]).stdin(Stdio::null()).process_group(0);
    command
}

/// An error if the command fails or hangs; false: given up meanwhile. What it leaves running is its own.
pub fn run(text: &str, limit: Duration, given_up: &AtomicBool) -> Result<bool> {
    let mut command = shell(text);
    command.stdout(Stdio::null());
    succeed(&mut Group::start(command, text)?, limit, given_up)
}

/// What a command prints until it ends: a number or so, nothing that would fill a pipe.
pub fn ask(text: &str, limit: Duration) -> Result<String> {
    let mut command = shell(text);
    command.stdout(Stdio::piped());
    let mut group = Group::start(command, text)?;
    let mut output = group.child.stdout.take().expect("it is piped");
    succeed(&mut group, limit, &NEVER)?;
    // Not to its end: what the command left running may hold the pipe open.
    let (mut printed, mut buffer) = (Vec::new(), [0; 4096]);
    while wait_readable(output.as_raw_fd(), Duration::ZERO) {
        match output.read(&mut buffer).with_context(|| format!("cannot read what `{text}` printed"))? {
            0 => break,
            n => printed.extend_from_slice(&buffer[..n]),
        }
    }
    Ok(String::from_utf8_lossy(&printed).into_owned())
}

/// For what is to be done even if the run is given up.
pub static NEVER: AtomicBool = AtomicBool::new(false);

fn succeed(group: &mut Group, limit: Duration, given_up: &AtomicBool) -> Result<bool> {
    match group.wait(limit, given_up, Rest::GoesOn)? {
        Waited::Ended(status) if status.success() => Ok(true),
        Waited::Ended(status) => bail!("`{}` failed: {status}", group.text),
        Waited::TooLong => bail!("`{}` did not end within {limit:?}", group.text),
        Waited::GivenUp => Ok(false),
    }
}

/// Sleeps, unless the run is given up.
pub fn pause(time: Duration, given_up: &AtomicBool) {
    let end = Instant::now() + time;
    while !given_up.load(Ordering::Relaxed) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(LOOK));
    }
}

/// Starts a program that is to run for the time of a block.
pub fn background(text: &str) -> Result<Group> {
    let mut command = shell(text);
    // Tracers talk; what they say is not the lab's.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Group::start(command, text)
}

impl Group {
    pub fn start(mut command: Command, text: &str) -> Result<Self> {
        let cannot = || format!("cannot start `{text}`");
        let child = command.spawn().with_context(cannot)?;
        let end = open_pidfd(child.id()).with_context(cannot)?;
        Ok(Self { child, end, text: text.to_owned(), is_reaped: false })
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// For the leader. Whether it has ended is seen without reaping it: as long as it is there, its number is its own.
    fn has_ended_within(&self, limit: Duration, given_up: &AtomicBool) -> bool {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now()).min(LOOK);
            // Poll counts in milliseconds.
            let left = if left.is_zero() { left } else { left.max(Duration::from_millis(1)) };
            if wait_readable(self.end.as_raw_fd(), left) {
                return true;
            }
            if left.is_zero() || given_up.load(Ordering::Relaxed) {
                return false;
            }
        }
    }

    /// For the leader's end.
    pub fn wait(&mut self, limit: Duration, given_up: &AtomicBool, rest: Rest) -> Result<Waited> {
        if self.has_ended_within(limit, given_up) {
            if rest == Rest::Ends {
                signal_group(self.child.id(), libc::SIGKILL);
            }
            self.is_reaped = true;
            return Ok(Waited::Ended(self.child.wait()?));
        }
        Ok(if given_up.load(Ordering::Relaxed) { Waited::GivenUp } else { Waited::TooLong })
    }

    /// An error if it has ended by itself: then the block measured nothing.
    pub fn still_runs(&mut self) -> Result<()> {
        match self.wait(Duration::ZERO, &NEVER, Rest::Ends)? {
            Waited::Ended(status) => bail!("`{}` ended before the block did: {status}", self.text),
            Waited::TooLong | Waited::GivenUp => Ok(()),
        }
    }

    /// As Ctrl-C does, then less politely; what is left of the group after that is killed. An error if the leader is.
    pub fn end(self) -> Result<()> {
        for signal in [libc::SIGINT, libc::SIGTERM] {
            signal_group(self.child.id(), signal);
            if self.has_ended_within(PATIENCE, &NEVER) {
                return Ok(());
            }
        }
        bail!("`{}` had to be killed: neither SIGINT nor SIGTERM ended it", self.text)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The number of a leader that was reaped may be somebody else's.
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
        assert_eq!(ask("echo 7", PATIENCE).expect("it works"), "7\n");
        let error = run("exit 3", PATIENCE, &NEVER).unwrap_err().to_string();
        assert!(error.contains("`exit 3` failed"), "{error}");
    }

    #[test]
    fn output_is_not_waited_for_longer_than_the_command() {
        let began = Instant::now();
        assert_eq!(ask("sleep 5 & echo 3", PATIENCE).expect("it works"), "3\n");
        assert!(began.elapsed() < PATIENCE);
    }

    #[test]
    fn a_command_that_hangs_is_ended() {
        let error = run("sleep 100", Duration::from_millis(50), &NEVER).unwrap_err().to_string();
        assert_eq!(error, "`sleep 100` did not end within 50ms");
    }

    #[test]
    fn a_run_that_is_given_up_waits_for_nothing() {
        let given_up = AtomicBool::new(true);
        assert!(!run("sleep 100", PATIENCE, &given_up).expect("no failure"));
        let began = Instant::now();
        pause(PATIENCE, &given_up);
        assert!(began.elapsed() < PATIENCE);
    }

    /// Processes of a group that have not ended, by the kernel's list of all.
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
            assert!(began.elapsed() < PATIENCE, "{} members of {wanted}", members(group));
            thread::sleep(LOOK);
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
                Ok(_) if began.elapsed() < PATIENCE => thread::sleep(LOOK),
                result => break result.expect_err("it has ended"),
            }
        };
        assert!(error.to_string().contains("ended before"));
        drop(group);
        eventually_has(number, 0);
    }
}
