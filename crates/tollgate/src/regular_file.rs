//! Opens regular files whose paths other users may choose.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Opens a regular file. Another kind of file may be at the path by now: opening a pipe would
/// block, and some devices act as soon as they are opened. Fails with `WouldBlock` if a process has
/// a lease of the file (fcntl(2)): the kernel would otherwise wait up to 45 s for its end. A file
/// system of a network or of FUSE may block nevertheless.
pub fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    open_regular_if(path, |_| true)
}

/// As [`open_regular`], if the file is the wanted one.
pub fn open_regular_if(
    path: &Path,
    is_wanted: impl FnOnce(&Metadata) -> bool,
) -> io::Result<(File, Metadata)> {
    let handle = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    let metadata = handle.metadata()?;
    if !metadata.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if !is_wanted(&metadata) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let options = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).clone();
    Ok((options.open(descriptor_path(&handle))?, metadata))
}

/// A path that leads to an open file.
pub fn descriptor_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn no_pipe_and_no_device_is_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().expect("a text")).expect("no NUL");
        #[allow(unsafe_code)]
        // SAFETY: a valid path.
        let made = unsafe { libc::mkfifo(name.as_ptr(), 0o600) };
        assert_eq!(made, 0);
        for path in [pipe.as_path(), Path::new("/dev/null"), folder.path()] {
            let error = open_regular(path).expect_err("it is not a regular file");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{}", path.display());
        }
        let (file, metadata) = open_regular(Path::new("/proc/self/exe")).expect("this program");
        assert_eq!(file.metadata().expect("it is open").ino(), metadata.ino());
    }

    #[test]
    fn a_lease_is_not_waited_for() {
        let leased = tempfile::NamedTempFile::new().expect("a file");
        #[allow(unsafe_code)]
        // SAFETY: plain calls on an open descriptor. SIGURG is ignored by default.
        let taken = unsafe {
            let fd = leased.as_file().as_raw_fd();
            const F_SETSIG: libc::c_int = 10;
            libc::fcntl(fd, F_SETSIG, libc::SIGURG) == 0
                && libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) == 0
        };
        assert!(taken, "the file is ours");
        let error = open_regular(leased.path()).expect_err("it is leased");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
