//! A program's file, and the key by which the gate identifies it.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use kernel::wire;

use crate::kernel_text;

/// `dev_t` in the kernel has 20 bits for the minor number (include/linux/kdev_t.h).
const MINOR_BITS: u32 = 20;

/// The gate's key of a file. On a file system with several device numbers (btrfs), the number here
/// is not the one that the kernel uses. A program then gets its baseline only when it starts.
pub fn key(metadata: &fs::Metadata, session: u32, scope: u64) -> wire::guard_program {
    let device = metadata.dev();
    wire::guard_program {
        inode: metadata.ino(),
        ctime_ns: metadata.ctime() * 1_000_000_000 + metadata.ctime_nsec(),
        size: metadata.size(),
        scope,
        execution: 0,
        device: libc::major(device) << MINOR_BITS | libc::minor(device),
        session,
    }
}

fn is_same_file(metadata: &fs::Metadata, key: &wire::guard_program) -> bool {
    let wire::guard_program { inode, ctime_ns, size, .. } =
        self::key(metadata, key.session, key.scope);
    (inode, ctime_ns, size) == (key.inode, key.ctime_ns, key.size)
}

/// Whether the process runs this file.
pub fn is_running(pid: u32, file: &fs::Metadata) -> bool {
    fs::metadata(format!("/proc/{pid}/exe"))
        .is_ok_and(|running| (running.dev(), running.ino()) == (file.dev(), file.ino()))
}

/// Opens the file that was executed: that of the process, if the process still runs, or the one at
/// the path. The open file is compared with the record, because both may change at any time.
pub fn open_program(record: &wire::guard_program_record) -> Option<File> {
    let same = |file: &File| {
        file.metadata().is_ok_and(|metadata| is_same_file(&metadata, &record.program))
    };
    let candidates = [format!("/proc/{}/exe", record.pid), kernel_text::path(&record.path)];
    candidates
        .iter()
        .find_map(|path| open_file(Path::new(path)).ok().map(|(file, _)| file).filter(same))
}

/// Opens a regular file. Another kind of file may be at the path by now: opening a pipe would
/// block, and some devices act as soon as they are opened.
pub fn open_file(path: &Path) -> std::io::Result<(File, fs::Metadata)> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let handle = fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    let metadata = handle.metadata()?;
    if !metadata.is_file() {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    Ok((File::open(descriptor_path(&handle))?, metadata))
}

fn descriptor_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// The kernel appends this to the path of a file that was unlinked or replaced. The name of a file
/// may end in this as well.
const DELETED: &[u8] = b" (deleted)";

/// The present path of an open file.
pub fn opened_path(file: &File) -> Option<PathBuf> {
    file_of_link(&descriptor_path(file))
}

/// The path that a link of /proc leads to.
pub fn file_of_link(link: &Path) -> Option<PathBuf> {
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    let path = fs::read_link(link).ok()?;
    let Some(before) = path.as_os_str().as_bytes().strip_suffix(DELETED) else {
        return Some(path);
    };
    let before = std::ffi::OsString::from_vec(before.to_vec());
    let identity = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let is_name = identity(&path).is_some_and(|file| identity(link) == Some(file));
    Some(if is_name { path } else { before.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_may_end_like_that_of_a_deleted_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("program (deleted)");
        let file = File::create(&path).expect("a file");
        assert_eq!(opened_path(&file), Some(path.clone()));
        fs::remove_file(&path).expect("it can be removed");
        assert_eq!(opened_path(&file), Some(path.clone()));
        // Another file of the name that the kernel prints for the deleted one.
        let path = folder.path().join("other");
        let file = File::create(&path).expect("a file");
        fs::remove_file(&path).expect("it can be removed");
        File::create(folder.path().join("other (deleted)")).expect("a file");
        assert_eq!(opened_path(&file), Some(path));
    }

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
            let error = open_file(path).expect_err("it is not a regular file");
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{}", path.display());
        }
        let (file, metadata) = open_file(Path::new("/proc/self/exe")).expect("this program");
        assert_eq!(file.metadata().expect("it is open").ino(), metadata.ino());
    }
}
