//! The services' watchdog: a separate process that migrates all threads back to their original
//! cgroups if the daemon is killed.

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::cgroups::remove_orphaned;
use crate::watchdog;

pub struct CgroupWatchdog {
    child: Child,
    _liveness_pipe: OwnedFd,
}

impl CgroupWatchdog {
    pub fn start() -> Result<Self> {
        const PURPOSE: &str =
            "cannot start the watchdog, which restores control groups if the daemon is killed";
        let (child, pipe) = watchdog::spawn(["service", "watchdog"], Stdio::null(), PURPOSE)?;
        Ok(Self { child, _liveness_pipe: pipe })
    }

    /// Whether the watchdog itself was killed.
    pub fn is_gone(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for CgroupWatchdog {
    fn drop(&mut self) {
        // The watchdog may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
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
