//! The journal of pacing: how each frequency domain was before its speed was set. It outlasts the
//! process that sets speeds, so that a watchdog or a later command restores the domains if that
//! process is killed.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::actuator::Actuator;
use super::original_speed::OriginalSpeed;
use crate::error::{Error, ErrorContext as _, Result};
use crate::gate::open_lock_file;

/// Where the journal is, except in tests.
pub const JOURNAL: &str = "/run/tollgate-pace";
/// How long to wait for the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// How often to try again to take it.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// The first character of a line: the speed of the domain is set, or the domain is released.
const SET: char = '+';
const RELEASED: char = '-';

/// Written in place of a value that does not exist.
const NO_VALUE: &str = "-";

/// A domain in the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEntry {
    /// How it was before its speed was set.
    pub original: OriginalSpeed,
    /// The domain is released, so nothing must be restored.
    pub is_released: bool,
}

/// The only process that may set speeds. It holds a lock until it ends.
pub struct SpeedJournal {
    path: PathBuf,
    _lock: File,
    /// What [`SpeedJournal::write`] has written, with the positions of the lines.
    written: Option<(File, Vec<u64>)>,
}

impl SpeedJournal {
    /// Opens the journal. If another process has the lock, waits a moment for it: the kernel may
    /// just be closing the files of a killed process.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_within(path, LOCK_TIMEOUT)
    }

    fn open_within(path: &Path, timeout: Duration) -> Result<Self> {
        let lock_path = path.with_extension("lock");
        let file = open_lock_file(&lock_path)?;
        let end = Instant::now() + timeout;
        loop {
            match file.try_lock() {
                Ok(()) => {
                    return Ok(Self { path: path.to_owned(), _lock: file, written: None });
                }
                Err(TryLockError::WouldBlock) if Instant::now() < end => sleep(RETRY_INTERVAL),
                Err(TryLockError::WouldBlock) => return Err(Error::SpeedsInUse),
                Err(TryLockError::Error(error)) => {
                    return Err(error).doing(format!("lock {}", lock_path.display()));
                }
            }
        }
    }

    /// The domains whose speed an earlier process has set and not restored.
    pub fn read(&self) -> Result<Vec<OriginalSpeed>> {
        let left = self.entries()?.into_iter().filter(|entry| !entry.is_released);
        Ok(left.map(|entry| entry.original).collect())
    }

    fn entries(&self) -> Result<Vec<JournalEntry>> {
        match fs::read_to_string(&self.path) {
            Ok(text) => Ok(text.lines().filter_map(parse).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error).doing(format!("read {}", self.path.display())),
        }
    }

    /// Writes the journal: everything that may have to be restored.
    pub fn write(&mut self, entries: &[JournalEntry]) -> Result<()> {
        if entries.is_empty() {
            self.written = None;
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(error).doing(format!("remove {}", self.path.display()))
                }
                _ => Ok(()),
            };
        }
        let (mut text, mut positions) = (String::new(), Vec::new());
        for entry in entries {
            positions.push(text.len() as u64);
            text.push_str(&line(entry));
        }
        let beside = self.path.with_extension("new");
        let write = || -> io::Result<File> {
            let mut file = File::create(&beside)?;
            file.write_all(text.as_bytes())?;
            fs::rename(&beside, &self.path)?;
            Ok(file)
        };
        let file = write().doing(format!("write {}", self.path.display()))?;
        self.written = Some((file, positions));
        Ok(())
    }

    /// Marks a domain of the written journal as released or not. This writes one byte, because a
    /// task waits for it.
    ///
    /// # Panics
    /// If the journal was not written, or has no such line.
    pub fn mark(&self, index: usize, is_released: bool) -> io::Result<()> {
        let (file, positions) = self.written.as_ref().expect("the journal is written first");
        file.write_all_at(&[state(is_released) as u8], positions[index])
    }

    /// Restores all domains in the journal. Returns the numbers of the restored ones. A domain that
    /// cannot be restored now, because its processors are offline, stays in the journal.
    pub fn restore(&mut self, root: &Path) -> Result<Vec<u32>> {
        let (mut done, mut left) = (Vec::new(), Vec::new());
        for original in self.read()? {
            match original.restore(root) {
                Ok(()) => {
                    original.wait_for_effect(root);
                    done.push(original.domain);
                }
                Err(_) => left.push(JournalEntry { original, is_released: false }),
            }
        }
        self.write(&left)?;
        Ok(done)
    }
}

/// Restores what killed processes have left, if there is anything and no process sets speeds now.
/// Returns the numbers of the restored domains.
///
/// # Errors
/// If the journal cannot be read or written.
pub fn restore_abandoned(root: &Path, journal: &Path) -> Result<Vec<u32>> {
    if !journal.exists() {
        return Ok(Vec::new());
    }
    match SpeedJournal::open_within(journal, Duration::ZERO) {
        Ok(mut journal) => journal.restore(root),
        Err(Error::SpeedsInUse) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn state(is_released: bool) -> char {
    if is_released { RELEASED } else { SET }
}

/// One line of the journal: the state, domain, actuator, governor, bounds, and the value or "-".
fn line(entry: &JournalEntry) -> String {
    let OriginalSpeed { domain, actuator, governor, bounds: (min, max), value } = &entry.original;
    let value = value.as_deref().unwrap_or(NO_VALUE);
    let state = state(entry.is_released);
    format!("{state} {domain} {} {governor} {min} {max} {value}\n", actuator.name())
}

fn parse(line: &str) -> Option<JournalEntry> {
    let mut words = line.split_ascii_whitespace();
    let mut next = || words.next();
    let is_released = next()?.starts_with(RELEASED);
    let original = OriginalSpeed {
        domain: next()?.parse().ok()?,
        actuator: Actuator::of_name(next()?)?,
        governor: next()?.to_owned(),
        bounds: (next()?.parse().ok()?, next()?.parse().ok()?),
        value: Some(next()?.to_owned()).filter(|value| value != NO_VALUE),
    };
    Some(JournalEntry { original, is_released })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::cpufreq;
    use crate::pace::fake_sysfs::FakeSysfs;
    use crate::pace::speed_control::{Setting, SpeedControl};

    #[test]
    fn domains_of_a_killed_process_are_restored() {
        let sysfs = FakeSysfs::new(&[0, 2]);
        let path = sysfs.root().join("journal");
        let mut journal = SpeedJournal::open_within(&path, Duration::ZERO).unwrap();
        let mut entries = Vec::new();
        for (domain, actuator) in cpufreq::domains(sysfs.root())
            .unwrap()
            .iter()
            .zip([Actuator::SetSpeed, Actuator::Bounds])
        {
            let mut control = SpeedControl::open(sysfs.root(), domain, actuator).unwrap();
            let original = control.original().clone();
            entries.push(JournalEntry { original, is_released: false });
            journal.write(&entries).unwrap();
            control.set(sysfs.root(), Setting::At(1_200_000)).unwrap();
        }
        assert_eq!(journal.entries().unwrap(), entries);
        // While the process lives, nobody restores.
        let other = SpeedJournal::open_within(&path, Duration::ZERO);
        assert!(matches!(other, Err(Error::SpeedsInUse)));
        assert_eq!(restore_abandoned(sysfs.root(), &path).unwrap(), []);
        drop(journal);
        assert_eq!(restore_abandoned(sysfs.root(), &path).unwrap(), [0, 2]);
        assert_eq!(sysfs.read(0, "scaling_governor"), "schedutil");
        assert_eq!(sysfs.read(2, "scaling_max_freq"), "3000000");
        assert!(!path.exists());
        assert_eq!(restore_abandoned(sysfs.root(), &path).unwrap(), []);
    }

    #[test]
    fn preference_and_clamps_of_a_killed_process_are_restored() {
        let sysfs = FakeSysfs::new(&[0]);
        let file = "energy_performance_preference";
        sysfs.write(0, "energy_performance_available_preferences", "performance power");
        sysfs.write(0, file, "performance");
        let clamps = ["min", "max"]
            .map(|end| sysfs.root().join(format!("proc/sys/kernel/sched_util_clamp_{end}")));
        fs::create_dir_all(clamps[0].parent().unwrap()).unwrap();
        clamps.iter().for_each(|path| fs::write(path, "1024").unwrap());
        let state = || {
            let first_line = |path: &PathBuf| {
                let text = fs::read_to_string(path).unwrap();
                text.lines().next().unwrap_or_default().to_owned()
            };
            (sysfs.read(0, file), clamps.each_ref().map(first_line))
        };
        let before = state();
        let path = sysfs.root().join("journal");
        for actuator in [Actuator::Preference, Actuator::Clamp] {
            let domain = cpufreq::domains(sysfs.root()).unwrap().remove(0);
            let mut control = SpeedControl::open(sysfs.root(), &domain, actuator).unwrap();
            let original = control.original().clone();
            let mut journal = SpeedJournal::open_within(&path, Duration::ZERO).unwrap();
            journal.write(&[JournalEntry { original, is_released: false }]).unwrap();
            control.set(sysfs.root(), Setting::At(800_000)).unwrap();
            assert_ne!(state(), before, "{actuator:?}");
            drop(journal);
            assert_eq!(restore_abandoned(sysfs.root(), &path).unwrap(), [0]);
            assert_eq!(state(), before, "{actuator:?}");
        }
    }

    #[test]
    fn bounds_that_are_changed_while_a_domain_is_released_are_kept() {
        let sysfs = FakeSysfs::new(&[0, 2]);
        let path = sysfs.root().join("journal");
        let mut journal = SpeedJournal::open_within(&path, Duration::ZERO).unwrap();
        let mut controls = Vec::new();
        for domain in &cpufreq::domains(sysfs.root()).unwrap() {
            controls.push(SpeedControl::open(sysfs.root(), domain, Actuator::Bounds).unwrap());
        }
        let entries: Vec<_> = controls.iter().map(|control| control.original().clone()).collect();
        let entry = |original| JournalEntry { original, is_released: true };
        journal.write(&entries.into_iter().map(entry).collect::<Vec<_>>()).unwrap();
        for (index, control) in controls.iter_mut().enumerate() {
            journal.mark(index, false).unwrap();
            control.set(sysfs.root(), Setting::At(1_200_000)).unwrap();
        }
        controls[1].set(sysfs.root(), Setting::System).unwrap();
        journal.mark(1, true).unwrap();
        sysfs.write(2, "scaling_max_freq", "2400000");
        drop(journal);
        assert_eq!(restore_abandoned(sysfs.root(), &path).unwrap(), [0]);
        assert_eq!(sysfs.read(0, "scaling_max_freq"), "3000000");
        assert_eq!(sysfs.read(2, "scaling_max_freq"), "2400000");
    }

    #[test]
    fn domain_that_is_offline_stays_in_the_journal() {
        let sysfs = FakeSysfs::new(&[0]);
        let path = sysfs.root().join("journal");
        let mut journal = SpeedJournal::open_within(&path, Duration::ZERO).unwrap();
        let original = |domain| OriginalSpeed {
            domain,
            actuator: Actuator::SetSpeed,
            governor: "schedutil".into(),
            bounds: (800_000, 3_000_000),
            value: Some("1200000".into()),
        };
        let entry = |domain| JournalEntry { original: original(domain), is_released: false };
        journal.write(&[entry(0), entry(7)]).unwrap();
        assert_eq!(journal.restore(sysfs.root()).unwrap(), [0]);
        assert_eq!(journal.read().unwrap(), [original(7)]);
    }

    #[test]
    fn lines_that_are_no_domain_are_left_out() {
        for text in ["", "+ 0", "+ 0 wheel schedutil 1 2 -", "+ x setspeed schedutil 1 2 -"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
