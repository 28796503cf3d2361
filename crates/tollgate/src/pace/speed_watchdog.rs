//! The watchdog: a separate process that restores the speeds if Tollgate is killed.

use std::io::{self, Read as _};
use std::path::Path;
use std::process::{ExitCode, Stdio};

use anyhow::Result;
use kernel::pace::speed_journal::{JOURNAL, SpeedJournal};
use kernel::watchdog::name_watchdog;

use crate::watchdog::Watchdog;

/// The running watchdog.
pub struct SpeedWatchdog(Watchdog);

const PURPOSE: &str = "cannot start the watchdog, which restores the speeds if Tollgate is killed";

impl SpeedWatchdog {
    pub fn start() -> Result<Self> {
        start().map(Self)
    }

    /// Replaces the watchdog if it was killed.
    pub fn tend(&mut self) -> Result<()> {
        self.0.tend("pace's", start)
    }

    /// Ends the watchdog. The speeds are restored already.
    pub fn stop(mut self) {
        self.0.stop();
    }
}

fn start() -> Result<Watchdog> {
    Watchdog::spawn(["pace", "watchdog"], Stdio::null(), PURPOSE)
}

/// The watchdog's own command.
pub fn run_watchdog() -> Result<ExitCode> {
    name_watchdog();
    // The pipe has no data. The read returns when Tollgate ends.
    let _ = io::stdin().read(&mut [0]);
    SpeedJournal::open(Path::new(JOURNAL))?.restore(Path::new("/"))?;
    Ok(ExitCode::SUCCESS)
}
