//! The services' watchdog: a separate process that migrates all threads back to their original
//! cgroups if the daemon is killed.

use std::io::Read as _;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::cgroups::remove_orphaned;
use crate::watchdog::Watchdog;

pub struct CgroupWatchdog(Watchdog);

impl CgroupWatchdog {
    pub fn start() -> Result<Self> {
        const PURPOSE: &str =
            "cannot start the watchdog, which restores control groups if the daemon is killed";
        Watchdog::spawn(["service", "watchdog"], Stdio::null(), PURPOSE).map(Self)
    }

    /// Whether the watchdog itself was killed.
    pub fn is_gone(&mut self) -> bool {
        self.0.is_gone()
    }
}

impl Drop for CgroupWatchdog {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// The kernel closes the descriptors of a killed process one after the other, perhaps that of the
/// lock last.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// The command of the watchdog: waits for the end of its standard input, and cleans up.
pub fn run_watchdog() -> Result<ExitCode> {
    kernel::watchdog::name_watchdog();
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
    let began = Instant::now();
    while !remove_orphaned()? && began.elapsed() < LOCK_TIMEOUT {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(ExitCode::SUCCESS)
}
