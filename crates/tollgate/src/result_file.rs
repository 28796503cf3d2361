//! Result files (`-o`): a file is replaced as a whole, or it keeps its content.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Seek as _, Write};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use kernel::standard_stream;
use tempfile::NamedTempFile;

/// The mode of a new file, as the standard library has it. The umask restricts it.
const NEW_FILE_MODE: u32 = 0o666;

/// The destination of a result.
pub enum ResultFile {
    /// A regular file, which may not exist yet.
    Regular(ClaimedPath),
    /// A pipe, a device, or an open descriptor. It stays open: the reader of a pipe takes its
    /// closing for the end of the result, and opening it again would wait for another reader.
    Stream(File),
}

impl ResultFile {
    /// Fails if the file cannot be written. Does not change it: a run that is refused or killed
    /// leaves neither an empty file nor an emptied one. Waits until a named pipe has a reader.
    pub fn open(path: &Path) -> io::Result<Self> {
        if let Some(number) = descriptor(path) {
            return Ok(Self::Stream(standard_stream::inherited(number)?.into()));
        }
        if path.exists() {
            let file = OpenOptions::new().write(true).open(path)?;
            let is_regular = file.metadata()?.is_file();
            return Ok(match is_regular {
                true => Self::Regular(ClaimedPath::claim(path)?),
                false => Self::Stream(file),
            });
        }
        // A symbolic link to a file that does not exist yet is followed, as by a shell.
        let path = end_of_links(path)?;
        File::create_new(&path)?;
        fs::remove_file(&path)?;
        Ok(Self::Regular(ClaimedPath::claim(&path)?))
    }

    /// Replaces the content of a file, or creates the file. The owner and the mode stay.
    pub fn replace(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        match self {
            Self::Regular(claimed) => replace(&claimed.path, write),
            Self::Stream(file) => write(&mut &*file),
        }
    }
}

/// The path of a file that gets one result. Another result of this process, such as a trace, must
/// not replace it.
pub struct ClaimedPath {
    path: PathBuf,
    /// The path without symbolic links.
    key: PathBuf,
}

static CLAIMED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

impl ClaimedPath {
    fn claim(path: &Path) -> io::Result<Self> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let key = match fs::canonicalize(path) {
            Ok(key) => key,
            Err(_) => {
                let folder = fs::canonicalize(folder.unwrap_or(Path::new(".")))?;
                folder.join(path.file_name().unwrap_or_default())
            }
        };
        let is_new = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone());
        match is_new {
            true => Ok(Self { path: path.to_owned(), key }),
            false => Err(io::Error::new(
                ErrorKind::AlreadyExists,
                "another result of this command goes to it",
            )),
        }
    }
}

impl Drop for ClaimedPath {
    fn drop(&mut self) {
        CLAIMED.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

/// The number of the open descriptor that a path stands for.
pub fn descriptor(path: &Path) -> Option<i32> {
    match path.to_str()? {
        "/dev/stdout" => Some(libc::STDOUT_FILENO),
        "/dev/stderr" => Some(libc::STDERR_FILENO),
        path => {
            let of_self = path.strip_prefix("/proc/self/fd/");
            path.strip_prefix("/dev/fd/").or(of_self)?.parse().ok()
        }
    }
}

/// The path to which symbolic links lead. The file need not exist.
fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    /// include/linux/namei.h, MAXSYMLINKS
    const MAX_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match fs::read_link(&path) {
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            Err(error)
                if [ErrorKind::InvalidInput, ErrorKind::NotFound].contains(&error.kind()) =>
            {
                return Ok(path);
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

fn replace(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let old = match fs::metadata(path) {
        Ok(old) => Some(old),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    // A symbolic link stays, and the file that it leads to is replaced.
    let target = if old.is_some() { fs::canonicalize(path)? } else { path.to_owned() };
    let mut new = match new_beside(&target, old.as_ref()) {
        Err(error) if is_folder_closed(&error) => return write_in_place(&target, write),
        new => new?,
    };
    write(new.as_file_mut())?;
    match new.persist(&target) {
        // The file is mounted alone, as containers do it.
        Err(failed) if failed.error.kind() == ErrorKind::ResourceBusy => {
            let mut new = failed.file;
            new.rewind()?;
            write_in_place(&target, |to| io::copy(&mut new, to).map(drop))
        }
        persisted => Ok(persisted.map(drop)?),
    }
}

/// A temporary file in the folder of `target`.
fn new_beside(target: &Path, old: Option<&Metadata>) -> io::Result<NamedTempFile> {
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
    let new = tempfile::Builder::new()
        .prefix(".tollgate-")
        .permissions(Permissions::from_mode(NEW_FILE_MODE))
        .tempfile_in(folder.unwrap_or(Path::new(".")))?;
    if let Some(old) = old {
        fchown(new.as_file(), Some(old.uid()), Some(old.gid()))?;
        new.as_file().set_permissions(old.permissions())?;
    }
    Ok(new)
}

/// Whether the error means that the folder accepts no new files, though an old one may be written.
fn is_folder_closed(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

fn write_in_place(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = File::create(path)?;
    let written = write(&mut file);
    if written.is_err() {
        // Part of a document is worse than none.
        let _ = file.set_len(0);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::symlink;
    use std::thread;

    use super::*;

    #[test]
    fn links_to_files_that_do_not_exist_are_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let [target, link, first] =
            ["target", "link", "first"].map(|name| folder.path().join(name));
        symlink("target", &link).expect("root's folder");
        symlink(&link, &first).expect("root's folder");
        let result = ResultFile::open(&first).expect("the folder of the target exists");
        assert!(!target.exists(), "nothing is written before the end");
        result.replace(|to| to.write_all(b"new")).expect("it is ours");
        assert_eq!(fs::read_to_string(&target).expect("it was written"), "new");
        assert!(link.is_symlink() && first.is_symlink());
        let (round, back) = (folder.path().join("round"), folder.path().join("back"));
        symlink("back", &round).expect("root's folder");
        symlink("round", &back).expect("root's folder");
        let refused = ResultFile::open(&round).err().expect("it leads nowhere");
        assert_eq!(refused.raw_os_error(), Some(libc::ELOOP));
    }

    #[test]
    fn named_pipes_are_opened_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo");
        assert!(made.success());
        let reader = thread::spawn({
            let path = path.clone();
            move || fs::read_to_string(path).expect("it is ours")
        });
        let result = ResultFile::open(&path).expect("it is ours");
        // The reader opens the pipe only once: it reads the result only if the pipe stays open.
        result.replace(|to| to.write_all(b"new")).expect("it has a reader");
        drop(result);
        assert_eq!(reader.join().expect("it has read"), "new");
    }

    #[test]
    fn open_descriptors_are_written_to_where_they_are() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"old ").expect("there is room");
        for folder in ["/dev/fd", "/proc/self/fd"] {
            let path = PathBuf::from(format!("{folder}/{}", file.as_raw_fd()));
            let result = ResultFile::open(&path).expect("it is open");
            result.replace(|to| to.write_all(b"new ")).expect("there is room");
        }
        file.rewind().expect("it is a file");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("text");
        assert_eq!(text, "old new new ");
        let only_read = File::open("/dev/null").expect("it exists");
        let path = PathBuf::from(format!("/dev/fd/{}", only_read.as_raw_fd()));
        assert!(ResultFile::open(&path).is_err());
    }

    #[test]
    fn failed_write_keeps_the_old_content() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("report");
        fs::write(&path, "old").expect("it is ours");
        let failed = replace(&path, |to| {
            to.write_all(b"new")?;
            Err(ErrorKind::StorageFull.into())
        });
        assert_eq!(failed.expect_err("the disk is full").kind(), ErrorKind::StorageFull);
        assert_eq!(fs::read_to_string(&path).expect("the old one"), "old");
        assert_eq!(fs::read_dir(folder.path()).expect("ours").count(), 1);
    }

    #[test]
    fn links_owners_and_modes_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, link) = (folder.path().join("report"), folder.path().join("link"));
        fs::write(&path, "old").expect("it is ours");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("it is ours");
        symlink("report", &link).expect("the folder is ours");
        replace(&link, |to| to.write_all(b"new")).expect("there is room");
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&path).expect("the new one"), "new");
        assert_eq!(fs::metadata(&path).expect("it exists").mode() & 0o7777, 0o640);
    }

    #[test]
    fn a_file_gets_one_result() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, link) = (folder.path().join("new"), folder.path().join("link"));
        symlink(&path, &link).expect("the folder is ours");
        for existed in [false, true] {
            let first = ResultFile::open(&path).expect("the folder is ours");
            let refused = ResultFile::open(&link).err().expect("it is the same file");
            assert_eq!(
                refused.to_string(),
                "another result of this command goes to it",
                "{existed}"
            );
            drop(first);
            ResultFile::open(&link).expect("no other result goes there");
            fs::write(&path, "").expect("it is ours");
        }
    }
}
