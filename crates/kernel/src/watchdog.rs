//! What all watchdogs need: processes that undo what an extension did when its process is killed.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use crate::error::{ErrorContext as _, Result};

/// Above the descriptors of the gate: the kernel closes those of a killed process from the last to
/// the first (v6.18 kernel/task_work.c, `task_work_run`), and each link of the gate takes it a
/// while.
const LIVENESS_FD: i32 = 512;

/// A pipe that closes with this process: its first half then reads as ended. The end of the process
/// itself is seen only after its gate is gone.
pub fn liveness_pipe() -> Result<(OwnedFd, OwnedFd)> {
    let what = "make a pipe for the watchdog";
    let (near, far) = io::pipe().doing(what)?;
    // SAFETY: a plain call, which returns a new descriptor.
    let high = unsafe { libc::fcntl(far.as_raw_fd(), libc::F_DUPFD_CLOEXEC, LIVENESS_FD) };
    if high < 0 {
        // The process may have fewer descriptors.
        return Ok((near.into(), far.into()));
    }
    // SAFETY: as above.
    Ok((near.into(), unsafe { OwnedFd::from_raw_fd(high) }))
}

/// Started through /proc, it would be called "exe".
pub fn name_watchdog() {
    // SAFETY: a name of less than 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"tollgate-wdog".as_ptr()) };
}
