//! A minimum and a maximum in two files of sysfs.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

/// Two files, and what they have now.
pub(super) struct LimitsPair {
    min: File,
    max: File,
    pub(super) now: (u64, u64),
}

impl LimitsPair {
    /// Opens the files of the minimum and of the maximum.
    pub(super) fn open((min, max): (PathBuf, PathBuf), now: (u64, u64)) -> io::Result<Self> {
        Ok(Self { min: open(min)?, max: open(max)?, now })
    }

    /// The kernel refuses a minimum above the maximum, so the one that moves away from the other is
    /// first.
    pub(super) fn write(&mut self, wanted: (u64, u64)) -> io::Result<()> {
        if wanted.1 >= self.now.1 {
            write_value(&self.max, wanted.1)?;
            write_value(&self.min, wanted.0)?;
        } else {
            write_value(&self.min, wanted.0)?;
            write_value(&self.max, wanted.1)?;
        }
        self.now = wanted;
        Ok(())
    }
}

/// Opens a file of sysfs to write to it.
pub(super) fn open(path: PathBuf) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

/// Writes to a file of sysfs, to which each write is a whole value.
pub(super) fn write_value(file: &File, value: impl std::fmt::Display) -> io::Result<()> {
    file.write_all_at(format!("{value}\n").as_bytes(), 0)
}
