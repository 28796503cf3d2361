//! Leases, which prevent writes to a file while it is read.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

/// include/uapi/asm-generic/fcntl.h
const F_SETSIG: libc::c_int = 10;

/// A read lease (fcntl(2), "Leases"). A process that opens the file for writing waits until the
/// lease is dropped.
pub struct ReadLease<'file> {
    file: &'file File,
}

impl<'file> ReadLease<'file> {
    /// Takes a lease. Fails with `WouldBlock` if a process has the file open for writing. Returns
    /// `None` if the file system has no leases, or if the file belongs to another user.
    pub fn take(file: &'file File) -> io::Result<Option<Self>> {
        // The kernel announces a waiting writer by a signal. The default, SIGIO, ends the process;
        // SIGURG is ignored by default.
        // SAFETY: plain calls on an open descriptor.
        let is_leased = unsafe {
            libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG) == 0
                && libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) == 0
        };
        if is_leased {
            return Ok(Some(Self { file }));
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(None),
        }
    }
}

impl Drop for ReadLease<'_> {
    fn drop(&mut self) {
        // SAFETY: a plain call on an open descriptor. The kernel ends a lease with its descriptor,
        // too.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt as _;
    use std::thread;

    use super::*;

    #[test]
    fn a_file_that_is_open_for_writing_is_not_leased() {
        let writer = tempfile::NamedTempFile::new().expect("a file");
        let file = File::open(writer.path()).expect("it is there");
        let refused = ReadLease::take(&file).err().expect("it is open for writing");
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        let path = writer.into_temp_path();
        assert!(ReadLease::take(&file).expect("no process writes to it").is_some());
        drop(path);
    }

    #[test]
    fn a_writer_waits_for_the_end_of_a_lease() {
        let path = tempfile::NamedTempFile::new().expect("a file").into_temp_path();
        let file = File::open(&path).expect("it is there");
        let lease = ReadLease::take(&file).expect("no process writes to it").expect("leases");
        let open = |flags| OpenOptions::new().write(true).custom_flags(flags).open(&path);
        let refused = open(libc::O_NONBLOCK).expect_err("others would wait");
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        thread::scope(|scope| {
            let writer = scope.spawn(|| open(0));
            drop(lease);
            writer.join().expect("it opens the file").expect("it may be written");
        });
    }
}
