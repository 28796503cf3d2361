//! The services' watchdog: a separate process that moves all threads back to their original cgroups
//! if the daemon is killed.

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use kernel::watchdog::liveness_pipe;

use super::cgroups::remove_orphaned;

pub struct CgroupWatchdog {
    child: Child,
    _lifeline: OwnedFd,
}

impl CgroupWatchdog {
    pub fn start() -> Result<Self> {
        const PURPOSE: &str =
            "cannot start the watchdog, which restores control groups if the daemon is killed";
        let (near, lifeline) = liveness_pipe().context(PURPOSE)?;
        let child = Command::new("/proc/self/exe")
            .args(["service", "watchdog"])
            .stdin(near)
            // A signal from the terminal that ends the daemon must not end its watchdog.
            .process_group(0)
            .stdout(Stdio::null())
            .spawn()
            .context(PURPOSE)?;
        Ok(Self { child, _lifeline: lifeline })
    }

    /// Whether the watchdog itself was killed.
    pub fn is_gone(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for CgroupWatchdog {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The kernel closes the descriptors of a killed process one after the other, perhaps its lock
/// last.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// The watchdog's own command: waits for the end of its standard input.
pub fn keep() -> Result<ExitCode> {
    kernel::watchdog::name_watchdog();
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
    let began = Instant::now();
    while !remove_orphaned()? && began.elapsed() < LOCK_TIMEOUT {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(ExitCode::SUCCESS)
}
