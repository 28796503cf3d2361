//! A minimum and a maximum in two files of sysfs.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long the files may show older values than the latest ones. A kernel thread applies new
/// bounds of cpufreq (drivers/cpufreq/cpufreq.c, cpufreq_notifier_max), which takes milliseconds on
/// a busy processor.
pub(super) const EFFECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Two files, and what was written to them.
pub(super) struct LimitsPair {
    min: File,
    max: File,
    latest: (u64, u64),
    /// What the files may still show instead of `latest`.
    older: Vec<(u64, u64)>,
    written: Option<Instant>,
}

impl LimitsPair {
    /// Opens the files of the minimum and of the maximum, which have these values.
    pub(super) fn open((min, max): (PathBuf, PathBuf), latest: (u64, u64)) -> io::Result<Self> {
        let (min, max) = (open(min)?, open(max)?);
        Ok(Self { min, max, latest, older: Vec::new(), written: None })
    }

    /// The kernel refuses a minimum above the maximum, so the one that moves away from the other is
    /// first.
    pub(super) fn write(&mut self, wanted: (u64, u64)) -> io::Result<()> {
        if !self.older.contains(&self.latest) {
            self.older.push(self.latest);
        }
        self.written = Some(Instant::now());
        if wanted.1 >= self.latest.1 {
            write_value(&self.max, wanted.1)?;
            write_value(&self.min, wanted.0)?;
        } else {
            write_value(&self.min, wanted.0)?;
            write_value(&self.max, wanted.1)?;
        }
        self.latest = wanted;
        Ok(())
    }

    /// The values that are or soon will be in effect, if the files show these. A value that this
    /// process has replaced a moment ago is not a change by another process.
    pub(super) fn effective(&mut self, shown: (u64, u64)) -> (u64, u64) {
        let is_recent = self.written.is_some_and(|at| at.elapsed() < EFFECT_TIMEOUT);
        let own = || self.older.iter().chain([&self.latest]);
        let is_own = own().any(|own| own.0 == shown.0) && own().any(|own| own.1 == shown.1);
        if shown != self.latest && is_recent && is_own {
            return self.latest;
        }
        self.older.clear();
        self.latest = shown;
        shown
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
