//! The watchdog: a separate process that releases held processes if Tollgate is killed.

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitCode, Stdio};

use anyhow::{Context, Result};
use kernel::gate::Gate;
use kernel::guard::hold_watchdog::{WatchdogTarget, watch_owner};

use super::arguments::WatchdogArguments;
use crate::output::{Output, print_message};
use crate::watchdog;

/// A running watchdog. It acts when this process's end of the liveness pipe closes.
pub struct HoldWatchdog {
    child: Child,
    _liveness_pipe: OwnedFd,
}

const PURPOSE: &str =
    "cannot start the watchdog, which releases held processes if Tollgate is killed";
/// What the watchdog prints when it is ready.
const READY_LINE: &str = "ready\n";

fn start(gate: &Gate, session: u32) -> Result<HoldWatchdog> {
    let WatchdogTarget { owner, session, threads_map, guard_map, sessions_map } =
        WatchdogTarget::new(gate, session)?;
    let numbers =
        [owner, session, threads_map, guard_map, sessions_map].map(|number| number.to_string());
    let arguments = ["guard", "watchdog"].into_iter().chain(numbers.iter().map(String::as_str));
    let (mut child, pipe) = watchdog::spawn(arguments, Stdio::piped(), PURPOSE)?;
    // No process is held before the watchdog is ready.
    let mut word = [0; READY_LINE.len()];
    child.stdout.take().expect("a pipe").read_exact(&mut word).context(PURPOSE)?;
    Ok(HoldWatchdog { child, _liveness_pipe: pipe })
}

impl HoldWatchdog {
    /// Starts the watchdog, and waits until it is ready.
    pub fn start(gate: &Gate, session: u32) -> Result<Self> {
        start(gate, session)
    }

    /// The PID of the watchdog, which must not be held.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Replaces the watchdog if it was killed.
    pub fn tend(&mut self, gate: &Gate, session: u32) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            let what = match start(gate, session) {
                Ok(other) => {
                    *self = other;
                    "a new one was started".into()
                }
                // The new watchdog may have been killed as well; the next poll tries again.
                Err(error) => format!("{error:#}"),
            };
            let _ = print_message(&format!("tollgate: the guard's watchdog was killed; {what}"));
        }
        Ok(())
    }

    /// Ends the watchdog without a release.
    pub fn stop(mut self) {
        // The watchdog may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The watchdog's own command.
pub fn run_watchdog(arguments: &WatchdogArguments) -> Result<ExitCode> {
    let WatchdogArguments { owner, session, threads_map, guard_map, sessions_map } = *arguments;
    watch_owner(WatchdogTarget { owner, session, threads_map, guard_map, sessions_map }, || {
        // If the owner has ended already, nobody reads this, and the watchdog has work to do.
        let _ = Output::Stdout.write(READY_LINE);
    })?;
    Ok(ExitCode::SUCCESS)
}
