//! The settings of a frequency domain before its speed was set, and their restoration.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{fs, io};

use super::actuator::{Actuator, USERSPACE, bounds_files, clamp_files, preference_file};
use super::cpufreq::domain_folder;
use super::limits_pair::{EFFECT_TIMEOUT, LimitsPair};
use super::sysfs::number;
use super::system_limit;

/// How often to read whether restored bounds are in effect.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// How a domain was before its speed was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginalSpeed {
    /// The number in the name of the folder `policyN`.
    pub domain: u32,
    /// How its speed is set.
    pub actuator: Actuator,
    /// Its governor.
    pub governor: String,
    /// `scaling_min_freq` and `scaling_max_freq`, in kHz.
    pub bounds: (u64, u64),
    /// The content of the actuator's own file: `scaling_setspeed` if the governor was `userspace`,
    /// the preference, or the clamps. `None`: there is nothing to restore in it.
    pub value: Option<String>,
}

impl OriginalSpeed {
    /// Reads how a domain is. `root` is `/` except in tests.
    pub fn read(root: &Path, domain: u32, actuator: Actuator) -> io::Result<Self> {
        let folder = domain_folder(root, domain);
        let read = |file: &str| fs::read_to_string(folder.join(file));
        let governor = read("scaling_governor")?.trim().to_owned();
        let value = match actuator {
            Actuator::SetSpeed if governor == USERSPACE => Some(read("scaling_setspeed")?),
            Actuator::SetSpeed | Actuator::Bounds => None,
            Actuator::Preference => Some(fs::read_to_string(preference_file(&folder))?),
            Actuator::Clamp => {
                let (min, max) = clamp_files(root);
                let read = |file| fs::read_to_string(file).map(|text| text.trim().to_owned());
                Some(format!("{},{}", read(min)?, read(max)?))
            }
        };
        let (min, max) = bounds_files(&folder);
        let bounds = (number(&min)?, number(&max)?);
        let value = value.map(|text| text.trim().to_owned());
        Ok(Self { domain, actuator, governor, bounds, value })
    }

    /// Uses another maximum if the present one is lower because of a limit that the system has set
    /// for a time. `fastest` is the fastest speed of the domain.
    pub(super) fn keep_maximum(&mut self, root: &Path, known: u64, fastest: u64) {
        if self.bounds.1 < known && system_limit::is_active(root, self.domain, fastest) {
            self.bounds.1 = known;
        }
    }

    /// The clamps of the utilization, with [`Actuator::Clamp`].
    pub(super) fn clamps(&self) -> io::Result<(u64, u64)> {
        let pair = self.value.as_deref().and_then(|value| value.split_once(','));
        let pair = pair.and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
        pair.ok_or(io::Error::from(io::ErrorKind::InvalidData))
    }

    /// Restores the domain. A governor that another process has set meanwhile is kept.
    pub fn restore(&self, root: &Path) -> io::Result<()> {
        let folder = domain_folder(root, self.domain);
        let governor = folder.join("scaling_governor");
        let now = fs::read_to_string(&governor)?;
        let value = self.value.as_deref().unwrap_or_default();
        match self.actuator {
            Actuator::SetSpeed if now.trim() != USERSPACE => Ok(()),
            Actuator::SetSpeed if self.governor == USERSPACE => {
                fs::write(folder.join("scaling_setspeed"), value)
            }
            Actuator::SetSpeed => fs::write(governor, &self.governor),
            Actuator::Bounds => restore_pair(bounds_files(&folder), self.bounds),
            // The governor performance of intel_pstate has a preference of its own. The one before
            // returns with the other governor, and must be restored then.
            Actuator::Preference if now.trim() != self.governor => {
                Err(io::Error::other("it has another governor now"))
            }
            Actuator::Preference => fs::write(preference_file(&folder), value),
            Actuator::Clamp => restore_pair(clamp_files(root), self.clamps()?),
        }
    }

    /// Waits until the restored bounds are in effect, so that the next process does not take older
    /// ones for the original. It does not wait if the system limits the speed.
    pub fn wait_for_effect(&self, root: &Path) {
        if self.actuator != Actuator::Bounds {
            return;
        }
        let has_effect = || -> io::Result<bool> {
            let now = Self::read(root, self.domain, self.actuator)?;
            let fastest = number(&domain_folder(root, self.domain).join("cpuinfo_max_freq"))?;
            Ok(now.bounds == self.bounds || system_limit::is_active(root, self.domain, fastest))
        };
        let end = Instant::now() + EFFECT_TIMEOUT;
        // A domain whose files cannot be read any more is offline.
        while has_effect().is_ok_and(|has_effect| !has_effect) && Instant::now() < end {
            sleep(POLL_INTERVAL);
        }
    }
}

fn restore_pair(files: (PathBuf, PathBuf), original: (u64, u64)) -> io::Result<()> {
    let max = fs::read_to_string(&files.1)?.trim().parse().unwrap_or(0);
    LimitsPair::open(files, (0, max))?.write(original)
}
