//! The files by which the speed of a frequency domain can be set.

use std::fs;
use std::path::{Path, PathBuf};

use super::cpufreq::{FrequencyDomain, domain_folder};

/// The governor that leaves the choice of the speed to a process.
pub(super) const USERSPACE: &str = "userspace";
/// The governor that applies clamps of the utilization.
const SCHEDUTIL: &str = "schedutil";
/// The preferences of Documentation/admin-guide/pm/intel_pstate.rst, from slow to fast.
const PREFERENCES: [&str; 4] = ["power", "balance_power", "balance_performance", "performance"];

/// How the speed of a domain is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actuator {
    /// `scaling_setspeed` with the governor `userspace`. The speed changes at once.
    SetSpeed,
    /// `scaling_min_freq` and `scaling_max_freq`. The system's governor stays, and applies them
    /// when it next chooses a speed.
    Bounds,
    /// `energy_performance_preference`: the processor chooses speeds itself, and favours
    /// performance or energy. Never run on hardware.
    Preference,
    /// `sched_util_clamp_max`: the greatest utilization by which schedutil chooses a speed. Also
    /// `sched_util_clamp_min`, which must not be greater. Both hold for the whole machine, which
    /// must have one domain. Never run on hardware.
    Clamp,
}

impl Actuator {
    /// All actuators. The first one that a domain has is used, unless a file of rules names one.
    pub const ALL: [Self; 4] = [Self::SetSpeed, Self::Bounds, Self::Preference, Self::Clamp];

    /// The name in files of rules, in reports and in the journal.
    pub fn name(self) -> &'static str {
        match self {
            Self::SetSpeed => "setspeed",
            Self::Bounds => "bounds",
            Self::Preference => "preference",
            Self::Clamp => "clamp",
        }
    }

    /// The actuator with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    /// What to say of an actuator that no machine at hand has.
    pub fn caveat(self) -> Option<&'static str> {
        matches!(self, Self::Preference | Self::Clamp).then_some("tested with simulated files only")
    }

    /// The best actuator of a domain that sets speeds and not only preferences.
    pub fn best(root: &Path, domain: &FrequencyDomain) -> Self {
        match Self::SetSpeed.is_available(root, domain) {
            true => Self::SetSpeed,
            false => Self::Bounds,
        }
    }

    /// Whether a domain has the files. `root` is `/` except in tests.
    pub fn is_available(self, root: &Path, domain: &FrequencyDomain) -> bool {
        let folder = domain_folder(root, domain.number);
        match self {
            Self::SetSpeed => {
                let governors = fs::read_to_string(folder.join("scaling_available_governors"));
                governors.unwrap_or_default().split_ascii_whitespace().any(|one| one == USERSPACE)
            }
            Self::Bounds => true,
            Self::Preference => preferences(&folder).len() > 1,
            Self::Clamp => domain.governor == SCHEDUTIL && clamp_files(root).1.exists(),
        }
    }
}

/// The files of [`Actuator::Bounds`]: the minimum and the maximum.
pub(super) fn bounds_files(folder: &Path) -> (PathBuf, PathBuf) {
    (folder.join("scaling_min_freq"), folder.join("scaling_max_freq"))
}

/// The file of [`Actuator::Preference`].
pub(super) fn preference_file(folder: &Path) -> PathBuf {
    folder.join("energy_performance_preference")
}

/// The preferences of a domain, from slow to fast.
pub(super) fn preferences(folder: &Path) -> Vec<&'static str> {
    let available = folder.join("energy_performance_available_preferences");
    let available = fs::read_to_string(available).unwrap_or_default();
    let is_available = |name: &str| available.split_ascii_whitespace().any(|one| one == name);
    PREFERENCES.into_iter().filter(|name| is_available(name)).collect()
}

/// The files of [`Actuator::Clamp`] (Documentation/scheduler/sched-util-clamp.rst): the minimum and
/// the maximum.
pub(super) fn clamp_files(root: &Path) -> (PathBuf, PathBuf) {
    let folder = root.join("proc/sys/kernel");
    (folder.join("sched_util_clamp_min"), folder.join("sched_util_clamp_max"))
}
