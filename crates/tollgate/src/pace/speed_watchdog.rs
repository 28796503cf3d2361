//! The watchdog: a separate process that restores the speeds if Tollgate is killed.

use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, ExitCode, Stdio};
use std::time::Duration;

use anyhow::Result;
use kernel::pace::speed_journal::{JOURNAL, SpeedJournal};
use kernel::watchdog::name_watchdog;

use crate::output::print_message;
use crate::watchdog;

/// A running watchdog. It acts when this process's end of the liveness pipe closes.
pub struct SpeedWatchdog {
    child: Child,
    _liveness_pipe: OwnedFd,
}

const PURPOSE: &str = "cannot start the watchdog, which restores the speeds if Tollgate is killed";
/// How long the kernel may take to close the files of a killed process, among them its lock.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

impl SpeedWatchdog {
    pub fn start() -> Result<Self> {
        let (child, pipe) = watchdog::spawn(["pace", "watchdog"], Stdio::null(), PURPOSE)?;
        Ok(Self { child, _liveness_pipe: pipe })
    }

    /// Replaces the watchdog if it was killed.
    pub fn tend(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            let what = match Self::start() {
                Ok(other) => {
                    *self = other;
                    "a new one was started".into()
                }
                // The next call tries again.
                Err(error) => format!("{error:#}"),
            };
            let _ = print_message(&format!("tollgate: pace's watchdog was killed; {what}"));
        }
        Ok(())
    }

    /// Ends the watchdog. The speeds are restored already.
    pub fn stop(mut self) {
        // The watchdog may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The watchdog's own command.
pub fn run_watchdog() -> Result<ExitCode> {
    name_watchdog();
    // The pipe has no data. The read returns when Tollgate ends.
    let _ = io::stdin().read(&mut [0]);
    SpeedJournal::open(Path::new(JOURNAL), LOCK_PATIENCE)?.restore(Path::new("/"))?;
    Ok(ExitCode::SUCCESS)
}
