//! Reads the kernel's descriptions of its tracepoints.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::OnceLock;

use crate::process::is_root;

const FOLDERS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Reads a file of tracefs, by its path within it. If tracefs is not mounted, root mounts it for
/// this process alone; for other users, that is an error.
pub fn read(file: &str) -> io::Result<String> {
    static OWN_MOUNT: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let found =
        FOLDERS.iter().find_map(|folder| fs::read_to_string(format!("{folder}/{file}")).ok());
    if let Some(text) = found {
        return Ok(text);
    }
    if !is_root() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let own = OWN_MOUNT.get_or_init(|| mount().ok()).as_ref().ok_or(io::ErrorKind::NotFound)?;
    fs::read_to_string(format!("/proc/self/fd/{}/{file}", own.as_raw_fd()))
}

/// Mounts tracefs without a mount point (since Linux 5.2). Returns a descriptor of its root.
fn mount() -> io::Result<OwnedFd> {
    /// include/uapi/linux/mount.h
    const FSCONFIG_CMD_CREATE: u32 = 6;
    const FSMOUNT_CLOEXEC: u32 = 1;
    const FSOPEN_CLOEXEC: u32 = 1;
    let descriptor = |number: i64| match i32::try_from(number) {
        // SAFETY: a new descriptor that only this process owns.
        Ok(number) if number >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: a text with its NUL, and numbers.
    let context = unsafe { libc::syscall(libc::SYS_fsopen, c"tracefs".as_ptr(), FSOPEN_CLOEXEC) };
    let context = descriptor(context)?;
    let nothing = std::ptr::null::<u8>();
    // SAFETY: as documented for this command.
    let made = unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            context.as_raw_fd(),
            FSCONFIG_CMD_CREATE,
            nothing,
            nothing,
            0,
        )
    };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: numbers only.
    descriptor(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, 0) })
}
