//! Commands that switch arms on and off: by /bin/sh, each in a process group of its own, none without a limit.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kernel::signals::signal_group;

/// Between a request to end and the next, stronger one.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A process group that does not outlive this value.
pub struct Group {
    child: Child,
    text: String,
}

fn shell(text: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", text]).stdin(Stdio::null()).process_group(0);
    command
}

/// An error if the command fails or hangs. What it leaves running is its own.
pub fn run(text: &str, limit: Duration) -> Result<()> {
    let mut command = shell(text);
    command.stdout(Stdio::null());
    succeed(Group::start(command, text)?, limit)
}

/// What a command prints.
pub fn ask(text: &str, limit: Duration) -> Result<String> {
    let mut command = shell(text);
    command.stdout(Stdio::piped());
    let mut group = Group::start(command, text)?;
    let mut output = group.child.stdout.take().expect("it is piped");
    let reader = thread::spawn(move || {
        let mut printed = String::new();
        output.read_to_string(&mut printed).map(|_| printed)
    });
    succeed(group, limit)?;
    let printed = reader.join().expect("it only reads");
    printed.with_context(|| format!("cannot read what `{text}` printed"))
}

fn succeed(mut group: Group, limit: Duration) -> Result<()> {
    match group.ended_within(limit)? {
        Some(status) if status.success() => Ok(()),
        Some(status) => bail!("`{}` failed: {status}", group.text),
        None => bail!("`{}` did not end within {limit:?}", group.text),
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
        let child = command.spawn().with_context(|| format!("cannot start `{text}`"))?;
        Ok(Self { child, text: text.to_owned() })
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub fn ended_within(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= end {
                return Ok(None);
            }
            sleep(LOOK_AGAIN);
        }
    }

    /// An error if it has ended by itself: then the block measured nothing.
    pub fn still_runs(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("`{}` ended before the block did: {status}", self.text),
        }
    }

    /// As Ctrl-C does, then less politely.
    pub fn end(&mut self) {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            signal_group(self.child.id(), signal);
            if !matches!(self.ended_within(PATIENCE), Ok(None)) {
                return;
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
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
        assert!(run("exit 3", PATIENCE).unwrap_err().to_string().contains("`exit 3` failed"));
    }

    #[test]
    fn a_command_that_hangs_is_ended() {
        let error = run("sleep 100", Duration::from_millis(50)).unwrap_err().to_string();
        assert_eq!(error, "`sleep 100` did not end within 50ms");
    }

    #[test]
    fn a_background_program_is_ended() {
        let mut group = background("exec sleep 100").expect("it starts");
        group.still_runs().expect("it runs");
        let began = Instant::now();
        group.end();
        assert!(began.elapsed() < PATIENCE);
        assert!(group.still_runs().unwrap_err().to_string().contains("ended before"));
    }
}
