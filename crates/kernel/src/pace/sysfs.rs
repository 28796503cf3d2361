//! Reads numbers from files of sysfs.

use std::path::Path;
use std::str::FromStr;
use std::{fs, io};

/// The number in a file.
///
/// # Errors
/// If the file cannot be read, or has something else.
pub(super) fn number<T: FromStr>(path: &Path) -> io::Result<T> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| {
        let name = path.file_name().unwrap_or_default().display();
        io::Error::new(io::ErrorKind::InvalidData, format!("{name} has {:?}", text.trim()))
    })
}
