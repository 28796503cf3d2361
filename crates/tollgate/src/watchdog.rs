//! Starts the watchdogs of extensions.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use kernel::watchdog::liveness_pipe;

/// Starts a command of this program as a watchdog. Also returns the end of the liveness pipe that
/// must stay open. The other end is the watchdog's standard input. `purpose` begins the message of
/// an error.
pub fn spawn<'a>(
    arguments: impl IntoIterator<Item = &'a str>,
    stdout: Stdio,
    purpose: &'static str,
) -> Result<(Child, OwnedFd)> {
    let (near, far) = liveness_pipe().context(purpose)?;
    let child = Command::new("/proc/self/exe")
        .args(arguments)
        .stdin(near)
        .stdout(stdout)
        // The watchdog must not be in the terminal's foreground process group: a signal that ends
        // Tollgate must not end the watchdog, too.
        .process_group(0)
        .spawn()
        .context(purpose)?;
    Ok((child, far))
}
