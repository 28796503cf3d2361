//! A program's file, and the key by which the gate identifies it. The file is another user's
//! choice, so these functions may block; the guard calls them in other threads.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use kernel::wire;

use crate::kernel_text;
use crate::regular_file::{descriptor_path, open_regular_if};

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
/// the path. The file is compared with the record, because both may change at any time.
///
/// # Errors
/// `NotFound`: it is not there any more. `WouldBlock`: a process has a lease of it.
pub fn open_program(record: &wire::guard_program_record) -> io::Result<(File, fs::Metadata)> {
    let path = kernel_text::path(&record.path);
    let candidates = [format!("/proc/{}/exe", record.pid), path];
    let mut failure = io::Error::from(ErrorKind::NotFound);
    for path in &candidates {
        match open_regular_if(Path::new(path), |file| is_same_file(file, &record.program)) {
            Ok(opened) => return Ok(opened),
            Err(error) if failure.kind() == ErrorKind::NotFound => failure = error,
            Err(_) => {}
        }
    }
    Err(failure)
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
}
