//! Files that are replaced as a whole: after a power failure, either the old content or the new one
//! is there.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Replaces a file, or creates it, for its owner only. If that fails, an old file stays as it is.
/// No other process may replace the same file meanwhile.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let new = with_suffix(path, ".new");
    // A killed process may have left this file.
    remove_if_there(&new)?;
    let written = write_through(&new, text).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written?;
    sync_folder(path)
}

/// Removes a file if there is one.
pub fn remove(path: &Path) -> io::Result<()> {
    remove_if_there(path)?;
    sync_folder(path)
}

/// The path with a further suffix.
pub fn with_suffix(path: &Path, suffix: impl AsRef<OsStr>) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

fn write_through(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text)?;
    file.sync_all()
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes the last rename or removal durable: without this, a power failure may undo it.
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}
