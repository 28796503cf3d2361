//! Result files (`-o`): a file is replaced as a whole, or it keeps its content.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Seek as _, Write};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::Path;

use tempfile::NamedTempFile;

/// The mode of a new file, as the standard library has it. The umask restricts it.
const NEW_FILE_MODE: u32 = 0o666;

/// Fails if the file cannot be written. Does not change it: a run that is refused or killed leaves
/// neither an empty file nor an emptied one.
pub fn check(path: &Path) -> io::Result<()> {
    if path.exists() {
        return OpenOptions::new().write(true).open(path).map(drop);
    }
    File::create_new(path)?;
    fs::remove_file(path)
}

/// Replaces the content of a file, or creates the file. The owner and the mode stay.
pub fn replace(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let old = match fs::metadata(path) {
        Ok(old) => Some(old),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if old.as_ref().is_some_and(|old| !old.is_file()) {
        // A device or a pipe.
        return write(&mut File::create(path)?);
    }
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
    use std::os::unix::fs::symlink;

    use super::*;

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
}
