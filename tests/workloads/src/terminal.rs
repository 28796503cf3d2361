//! A new terminal, which is not that of this process.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;

use crate::failure::{Failure, check, os_failure};

/// The end of the emulator, and that of the programs.
pub fn new_terminal() -> Result<(File, File), Failure> {
    let mut name = [0; 64];
    // SAFETY: takes numbers only.
    let master = check(unsafe { libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY) }, "open it")?;
    // SAFETY: posix_openpt succeeded, and nothing else owns the descriptor.
    let master = unsafe { File::from_raw_fd(master) };
    let fd = master.as_raw_fd();
    // SAFETY: takes numbers only.
    check(unsafe { libc::unlockpt(fd) }, "unlock a terminal")?;
    // SAFETY: `name` has the given size.
    check(-unsafe { libc::ptsname_r(fd, name.as_mut_ptr(), name.len()) }, "find its name")?;
    let name: Vec<u8> = name.iter().map(|c| *c as u8).take_while(|byte| *byte != 0).collect();
    let name = String::from_utf8_lossy(&name).into_owned();
    let mut options = OpenOptions::new();
    let slave = options.read(true).write(true).custom_flags(libc::O_NOCTTY).open(name);
    Ok((master, slave.map_err(|error| os_failure("open a terminal", error))?))
}
