//! The watchdogs of extensions: processes that act when Tollgate is killed.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use kernel::watchdog::liveness_pipe;

use crate::output::print_message;

/// The watchdogs that this process has started and not waited for.
static STARTED: Mutex<Vec<u32>> = Mutex::new(Vec::new());

fn started() -> MutexGuard<'static, Vec<u32>> {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this child is a watchdog, so that its end is its [`Watchdog`]'s to note.
pub fn is_watchdog(child: u32) -> bool {
    started().contains(&child)
}

/// A running watchdog. It acts when this process's end of the liveness pipe closes.
pub struct Watchdog {
    child: Child,
    _liveness_pipe: OwnedFd,
}

impl Watchdog {
    /// Starts a command of this program as a watchdog, whose standard input is the other end of the
    /// liveness pipe. `purpose` begins the message of an error.
    pub fn spawn<'a>(
        arguments: impl IntoIterator<Item = &'a str>,
        stdout: Stdio,
        purpose: &'static str,
    ) -> Result<Self> {
        let (near, far) = liveness_pipe().context(purpose)?;
        let mut list = started();
        let child = Command::new("/proc/self/exe")
            .args(arguments)
            .stdin(near)
            .stdout(stdout)
            // The watchdog must not be in the terminal's foreground process group: a signal that
            // ends Tollgate must not end the watchdog, too.
            .process_group(0)
            .spawn()
            .context(purpose)?;
        list.push(child.id());
        Ok(Self { child, _liveness_pipe: far })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the watchdog prints. `None` if that is no pipe, or was taken before.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Whether it has ended, or its state is not known.
    pub fn is_gone(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Replaces the watchdog if it was killed. `whose` names it in the message: "pace's".
    pub fn tend(&mut self, whose: &str, start: impl FnOnce() -> Result<Self>) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            let what = match start() {
                Ok(other) => {
                    *self = other;
                    "a new one was started".into()
                }
                // The new one may have been killed as well; the next call tries again.
                Err(error) => format!("{error:#}"),
            };
            let _ = print_message(&format!("tollgate: {whose} watchdog was killed; {what}"));
        }
        Ok(())
    }

    /// Ends the watchdog, which has nothing to do any more.
    pub fn stop(&mut self) {
        // The watchdog may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // If it was not waited for, it is an orphan now.
        started().retain(|child| *child != self.child.id());
    }
}
