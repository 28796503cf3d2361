//! The watchdog: a separate process that releases held processes if Tollgate is killed.

use std::io::Read as _;
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result};
use kernel::gate::Gate;
use kernel::guard::hold_watchdog::{WatchdogTarget, watch_owner};

use super::arguments::WatchdogArguments;
use crate::output::Output;
use crate::watchdog::Watchdog;

/// The running watchdog.
pub struct HoldWatchdog(Watchdog);

const PURPOSE: &str =
    "cannot start the watchdog, which releases held processes if Tollgate is killed";
/// What the watchdog prints when it is ready.
const READY_LINE: &str = "ready\n";

fn start(gate: &Gate, session: u32) -> Result<Watchdog> {
    let WatchdogTarget { owner, session, threads_map, guard_map, sessions_map, header_map } =
        WatchdogTarget::new(gate, session)?;
    let numbers = [owner, session, threads_map, guard_map, sessions_map, header_map]
        .map(|number| number.to_string());
    let arguments = ["guard", "watchdog"].into_iter().chain(numbers.iter().map(String::as_str));
    let mut watchdog = Watchdog::spawn(arguments, Stdio::piped(), PURPOSE)?;
    // No process is held before the watchdog is ready.
    let mut word = [0; READY_LINE.len()];
    watchdog.take_stdout().expect("a pipe").read_exact(&mut word).context(PURPOSE)?;
    Ok(watchdog)
}

impl HoldWatchdog {
    /// Starts the watchdog, and waits until it is ready.
    pub fn start(gate: &Gate, session: u32) -> Result<Self> {
        start(gate, session).map(Self)
    }

    /// The PID of the watchdog, which must not be held.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Replaces the watchdog if it was killed.
    pub fn tend(&mut self, gate: &Gate, session: u32) -> Result<()> {
        self.0.tend("the guard's", || start(gate, session))
    }

    /// Ends the watchdog without a release.
    pub fn stop(mut self) {
        self.0.stop();
    }
}

/// The watchdog's own command.
pub fn run_watchdog(arguments: &WatchdogArguments) -> Result<ExitCode> {
    let WatchdogArguments { owner, session, threads_map, guard_map, sessions_map, header_map } =
        *arguments;
    let target =
        WatchdogTarget { owner, session, threads_map, guard_map, sessions_map, header_map };
    watch_owner(target, || {
        // If the owner has ended already, nobody reads this, and the watchdog has work to do.
        let _ = Output::Stdout.write(READY_LINE);
    })?;
    Ok(ExitCode::SUCCESS)
}
