//! The services' warden: a process of its own that puts everybody back into the control group where they were, should
//! the daemon be killed.

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use kernel::guarded::lifeline;

use super::groups::lift_abandoned;

pub struct Warden {
    child: Child,
    _lifeline: OwnedFd,
}

impl Warden {
    pub fn start() -> Result<Self> {
        const PURPOSE: &str = "cannot start the warden of control groups";
        let (near, lifeline) = lifeline().context(PURPOSE)?;
        let child = Command::new("/proc/self/exe")
            .args(["service", "warden"])
            .stdin(near)
            // What ends the daemon by way of a terminal must not end its warden.
            .process_group(0)
            .stdout(Stdio::null())
            .spawn()
            .context(PURPOSE)?;
        Ok(Self { child, _lifeline: lifeline })
    }

    /// It was killed itself.
    pub fn is_gone(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The descriptors of a killed process are closed one after the other, its lock maybe last.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the warden itself does: waits for the end of its standard input.
pub fn keep() -> Result<ExitCode> {
    kernel::guarded::name_warden();
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
    let began = Instant::now();
    while !lift_abandoned()? && began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(ExitCode::SUCCESS)
}
