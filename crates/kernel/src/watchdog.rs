//! What all watchdogs need. A watchdog is a process that undoes what an extension did if the
//! extension's process is killed.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use crate::error::{ErrorContext as _, Result};

/// The lowest number for the descriptor that shows the end of the process. It is above the
/// descriptors of the gate, because the kernel closes the descriptors of a killed process from the
/// last to the first (v6.18 kernel/task_work.c, `task_work_run`), and closing a link of the gate
/// takes a while.
const LIVENESS_FD: i32 = 512;

/// Creates a pipe that shows the end of this process. Its read end, the first of the two
/// descriptors, then reports end of file. A wait for the process itself would end only after its
/// gate is gone.
pub fn liveness_pipe() -> Result<(OwnedFd, OwnedFd)> {
    let what = "make a pipe for the watchdog";
    let (near, far) = io::pipe().doing(what)?;
    // SAFETY: a plain call, which returns a new descriptor.
    let high = unsafe { libc::fcntl(far.as_raw_fd(), libc::F_DUPFD_CLOEXEC, LIVENESS_FD) };
    if high < 0 {
        // The limit of the process's descriptors may be below this number.
        return Ok((near.into(), far.into()));
    }
    // SAFETY: as above.
    Ok((near.into(), unsafe { OwnedFd::from_raw_fd(high) }))
}

/// Sets the name of this process, which `ps` shows. Otherwise the name would be "exe", because the
/// process is started as /proc/self/exe.
pub fn name_watchdog() {
    // SAFETY: a name of less than 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"tollgate-wdog".as_ptr()) };
}
