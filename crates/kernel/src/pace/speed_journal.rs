//! The journal of pacing: how each frequency domain was before its speed was set. It outlasts the
//! process that sets speeds, so that a watchdog or a later command restores the domains if that
//! process is killed.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::speed_control::{Actuator, OriginalSpeed};
use crate::error::{Error, ErrorContext as _, Result};
use crate::gate::open_lock_file;

/// Where the journal is, except in tests.
pub const JOURNAL: &str = "/run/tollgate-pace";
/// How often to try again to take the lock.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// The only process that may set speeds. It holds a lock until it ends.
pub struct SpeedJournal {
    path: PathBuf,
    _lock: File,
}

impl SpeedJournal {
    /// Opens the journal. If another process has the lock, it waits at most `patience` for it.
    pub fn open(path: &Path, patience: Duration) -> Result<Self> {
        let lock_path = path.with_extension("lock");
        let file = open_lock_file(&lock_path)?;
        let end = Instant::now() + patience;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { path: path.to_owned(), _lock: file }),
                Err(TryLockError::WouldBlock) if Instant::now() < end => sleep(RETRY_INTERVAL),
                Err(TryLockError::WouldBlock) => return Err(Error::SpeedsInUse),
                Err(TryLockError::Error(error)) => {
                    return Err(error).doing(format!("lock {}", lock_path.display()));
                }
            }
        }
    }

    /// The domains in the journal, which an earlier process has left.
    pub fn read(&self) -> Result<Vec<OriginalSpeed>> {
        match fs::read_to_string(&self.path) {
            Ok(text) => Ok(text.lines().filter_map(parse).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error).doing(format!("read {}", self.path.display())),
        }
    }

    /// Writes the journal: `originals` is everything that must be restored.
    pub fn write(&self, originals: &[OriginalSpeed]) -> Result<()> {
        if originals.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(error).doing(format!("remove {}", self.path.display()))
                }
                _ => Ok(()),
            };
        }
        let text: String = originals.iter().map(line).collect();
        let beside = self.path.with_extension("new");
        let write = || -> io::Result<()> {
            let mut file = File::create(&beside)?;
            file.write_all(text.as_bytes())?;
            fs::rename(&beside, &self.path)
        };
        write().doing(format!("write {}", self.path.display()))
    }

    /// Restores all domains in the journal. Returns the numbers of the restored ones. A domain that
    /// cannot be restored now, because its processors are offline, stays in the journal.
    pub fn restore(&self, root: &Path) -> Result<Vec<u32>> {
        let (mut done, mut left) = (Vec::new(), Vec::new());
        for original in self.read()? {
            match original.restore(root) {
                Ok(()) => done.push(original.domain),
                Err(_) => left.push(original),
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
    match SpeedJournal::open(journal, Duration::ZERO) {
        Ok(journal) => journal.restore(root),
        Err(Error::SpeedsInUse) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// One line of the journal: domain, actuator, governor, bounds, and the speed or "-".
fn line(original: &OriginalSpeed) -> String {
    let OriginalSpeed { domain, actuator, governor, bounds: (min, max), speed } = original;
    let speed = speed.map_or_else(|| "-".to_owned(), |khz| khz.to_string());
    format!("{domain} {} {governor} {min} {max} {speed}\n", actuator.name())
}

fn parse(line: &str) -> Option<OriginalSpeed> {
    let mut words = line.split_ascii_whitespace();
    let mut next = || words.next();
    Some(OriginalSpeed {
        domain: next()?.parse().ok()?,
        actuator: Actuator::of_name(next()?)?,
        governor: next()?.to_owned(),
        bounds: (next()?.parse().ok()?, next()?.parse().ok()?),
        speed: next()?.parse().ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::cpufreq;
    use crate::pace::false_sysfs::FalseSysfs;
    use crate::pace::speed_control::{Setting, SpeedControl};

    #[test]
    fn domains_of_a_killed_process_are_restored() {
        let sysfs = FalseSysfs::new(&[0, 2]);
        let path = sysfs.root().join("journal");
        let journal = SpeedJournal::open(&path, Duration::ZERO).unwrap();
        let mut originals = Vec::new();
        for (domain, actuator) in cpufreq::domains(sysfs.root())
            .unwrap()
            .iter()
            .zip([Actuator::SetSpeed, Actuator::Bounds])
        {
            let mut control = SpeedControl::open(sysfs.root(), domain, actuator).unwrap();
            originals.push(control.original().clone());
            journal.write(&originals).unwrap();
            control.set(sysfs.root(), Setting::At(1_200_000)).unwrap();
        }
        assert_eq!(journal.read().unwrap(), originals);
        // While the process lives, nobody restores.
        let other = SpeedJournal::open(&path, Duration::ZERO);
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
    fn domain_that_is_offline_stays_in_the_journal() {
        let sysfs = FalseSysfs::new(&[0]);
        let path = sysfs.root().join("journal");
        let journal = SpeedJournal::open(&path, Duration::ZERO).unwrap();
        let original = |domain| OriginalSpeed {
            domain,
            actuator: Actuator::SetSpeed,
            governor: "schedutil".into(),
            bounds: (800_000, 3_000_000),
            speed: Some(1_200_000),
        };
        journal.write(&[original(0), original(7)]).unwrap();
        assert_eq!(journal.restore(sysfs.root()).unwrap(), [0]);
        assert_eq!(journal.read().unwrap(), [original(7)]);
    }

    #[test]
    fn lines_that_are_no_domain_are_left_out() {
        for text in ["", "0", "0 wheel schedutil 1 2 -", "x setspeed schedutil 1 2 -"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
