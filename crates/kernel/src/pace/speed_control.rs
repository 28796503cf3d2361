//! Sets the speed of a frequency domain through the files of cpufreq
//! (Documentation/admin-guide/pm/cpufreq.rst).

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::actuator::{
    Actuator, USERSPACE, bounds_files, clamp_files, preference_file, preferences,
};
use super::cpufreq::{FrequencyDomain, domain_folder};
use super::limits_pair::{LimitsPair, open, write_value};
use super::original_speed::OriginalSpeed;

/// Why this process does not pace a domain any more.
pub const OTHER_GOVERNOR: &str = "another process has changed its governor";

/// `SCHED_CAPACITY_SCALE` of include/linux/sched.h: the utilization of a processor that is always
/// busy at its fastest speed.
const FULL_UTILIZATION: u64 = 1024;

/// What a domain runs at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// What the system's governor chooses.
    System,
    /// This speed, in kHz.
    At(u64),
    /// The speed that the system's governor chooses, but at least this one, in kHz. With
    /// [`Actuator::SetSpeed`], it is the fastest speed, which is no slower than any choice.
    AtLeast(u64),
}

/// The speed of a domain that this process paces.
pub struct SpeedControl {
    folder: PathBuf,
    original: OriginalSpeed,
    /// The slowest and the fastest speed of the domain, in kHz.
    range: (u64, u64),
    files: ControlFiles,
    /// The domain is as `original` says.
    is_released: bool,
}

enum ControlFiles {
    SetSpeed(File),
    Bounds(LimitsPair),
    Preference {
        file: File,
        /// From slow to fast.
        names: Vec<&'static str>,
    },
    Clamp(LimitsPair),
}

impl ControlFiles {
    fn open(root: &Path, folder: &Path, original: &OriginalSpeed) -> io::Result<Self> {
        Ok(match original.actuator {
            Actuator::SetSpeed => Self::SetSpeed(open(folder.join("scaling_setspeed"))?),
            Actuator::Bounds => {
                Self::Bounds(LimitsPair::open(bounds_files(folder), original.bounds)?)
            }
            Actuator::Preference => Self::Preference {
                file: open(preference_file(folder))?,
                names: preferences(folder),
            },
            Actuator::Clamp => {
                Self::Clamp(LimitsPair::open(clamp_files(root), original.clamps()?)?)
            }
        })
    }
}

impl SpeedControl {
    /// Opens the files of a domain. Nothing changes before [`SpeedControl::set`].
    pub fn open(root: &Path, domain: &FrequencyDomain, actuator: Actuator) -> io::Result<Self> {
        let mut original = OriginalSpeed::read(root, domain.number, actuator)?;
        // If the system limits the speed now, the maximum of the user is not known. Most machines
        // have none below the fastest speed.
        original.keep_maximum(root, domain.range.1, domain.range.1);
        let folder = domain_folder(root, domain.number);
        let files = ControlFiles::open(root, &folder, &original)?;
        Ok(Self { folder, original, range: domain.range, files, is_released: true })
    }

    /// How the domain was. It must be in the journal before the speed is set.
    pub fn original(&self) -> &OriginalSpeed {
        &self.original
    }

    /// Whether the governor has the domain.
    pub fn is_released(&self) -> bool {
        self.is_released
    }

    /// Reads again how a released domain is, because another process may have changed it. Returns
    /// whether it has changed. Fails if its governor has changed.
    pub fn reread(&mut self, root: &Path) -> io::Result<bool> {
        let mut now = OriginalSpeed::read(root, self.original.domain, self.original.actuator)?;
        if let ControlFiles::Bounds(pair) = &mut self.files {
            now.bounds = pair.effective(now.bounds);
        }
        now.keep_maximum(root, self.original.bounds.1, self.range.1);
        if now.governor != self.original.governor {
            return Err(io::Error::other(OTHER_GOVERNOR));
        }
        if let ControlFiles::Clamp(pair) = &mut self.files {
            pair.effective(now.clamps()?);
        }
        let has_changed = now != self.original;
        self.original = now;
        Ok(has_changed)
    }

    /// Sets the speed. The kernel rounds it up to one of the driver's.
    pub fn set(&mut self, root: &Path, setting: Setting) -> io::Result<()> {
        let (slowest, fastest) = self.range;
        let (khz, is_exact) = match setting {
            Setting::At(khz) => (khz.clamp(slowest, fastest), true),
            Setting::AtLeast(khz) => (khz.clamp(slowest, fastest), false),
            Setting::System => return self.release(root),
        };
        if self.is_released && self.original.actuator == Actuator::SetSpeed {
            fs::write(self.folder.join("scaling_governor"), USERSPACE)?;
        }
        self.is_released = false;
        match &mut self.files {
            ControlFiles::SetSpeed(file) => write_value(file, if is_exact { khz } else { fastest }),
            ControlFiles::Bounds(pair) => {
                // The user's own bounds hold for tasks, too.
                let (min, max) = self.original.bounds;
                let khz = khz.clamp(min, max);
                pair.write((khz, if is_exact { khz } else { max }))
            }
            ControlFiles::Preference { file, names } => {
                let of_original = || {
                    let original = self.original.value.as_deref();
                    names.iter().position(|name| Some(*name) == original)
                };
                let least = if is_exact { None } else { of_original() };
                let wanted = position(khz, self.range, names.len() as u64 - 1) as usize;
                write_value(file, names[wanted.max(least.unwrap_or(0))])
            }
            ControlFiles::Clamp(pair) => {
                let (min, max) = self.original.clamps()?;
                let wanted = position(khz, (0, fastest), FULL_UTILIZATION);
                let wanted = if is_exact { wanted } else { wanted.max(max) };
                pair.write((min.min(wanted), wanted))
            }
        }
    }

    fn release(&mut self, root: &Path) -> io::Result<()> {
        if self.is_released {
            return Ok(());
        }
        match &mut self.files {
            ControlFiles::Bounds(pair) => pair.write(self.original.bounds)?,
            ControlFiles::Clamp(pair) => pair.write(self.original.clamps()?)?,
            ControlFiles::SetSpeed(_) | ControlFiles::Preference { .. } => {
                self.original.restore(root)?;
            }
        }
        self.is_released = true;
        Ok(())
    }

    /// Whether the governor is still the one under which this process sets the speed.
    pub fn is_ours(&self) -> io::Result<bool> {
        let governor = fs::read_to_string(self.folder.join("scaling_governor"))?;
        Ok(match self.original.actuator {
            Actuator::SetSpeed => governor.trim() == USERSPACE,
            _ => governor.trim() == self.original.governor,
        })
    }
}

/// The position of a speed in a range, as a number from 0 to `steps`, rounded up.
fn position(khz: u64, (slowest, fastest): (u64, u64), steps: u64) -> u64 {
    ((khz - slowest) * steps).div_ceil((fastest - slowest).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::cpufreq;
    use crate::pace::fake_sysfs::FakeSysfs;

    fn control(sysfs: &FakeSysfs, actuator: Actuator) -> SpeedControl {
        let domain = cpufreq::domains(sysfs.root()).unwrap().remove(0);
        assert!(actuator.is_available(sysfs.root(), &domain));
        SpeedControl::open(sysfs.root(), &domain, actuator).unwrap()
    }

    #[test]
    fn setspeed_is_written_under_its_governor() {
        let sysfs = FakeSysfs::new(&[0]);
        let mut control = control(&sysfs, Actuator::SetSpeed);
        assert_eq!(sysfs.read(0, "scaling_governor"), "schedutil");
        for (setting, khz) in [
            (Setting::At(1_800_000), "1800000"),
            (Setting::At(1), "800000"),
            (Setting::AtLeast(1_200_000), "3000000"),
        ] {
            control.set(sysfs.root(), setting).unwrap();
            assert_eq!(sysfs.read(0, "scaling_setspeed"), khz, "{setting:?}");
            assert_eq!(sysfs.read(0, "scaling_governor"), "userspace");
        }
        assert!(control.is_ours().unwrap() && !control.is_released());
        control.set(sysfs.root(), Setting::System).unwrap();
        assert_eq!(sysfs.read(0, "scaling_governor"), "schedutil");
        assert!(control.is_released());
    }

    #[test]
    fn bounds_leave_the_governor() {
        let sysfs = FakeSysfs::new(&[0]);
        sysfs.write(0, "scaling_max_freq", "2400000");
        let mut control = control(&sysfs, Actuator::Bounds);
        for (setting, bounds) in [
            (Setting::At(1_200_000), ("1200000", "1200000")),
            (Setting::AtLeast(1_200_000), ("1200000", "2400000")),
            // The user's own bounds hold.
            (Setting::At(3_000_000), ("2400000", "2400000")),
            (Setting::At(800_000), ("800000", "800000")),
        ] {
            control.set(sysfs.root(), setting).unwrap();
            let now = (sysfs.read(0, "scaling_min_freq"), sysfs.read(0, "scaling_max_freq"));
            assert_eq!((now.0.as_str(), now.1.as_str()), bounds, "{setting:?}");
        }
        assert_eq!(sysfs.read(0, "scaling_governor"), "schedutil");
        control.set(sysfs.root(), Setting::System).unwrap();
        assert_eq!(sysfs.read(0, "scaling_max_freq"), "2400000");
        // Another process sets other bounds and another governor, which are kept.
        sysfs.write(0, "scaling_max_freq", "1800000");
        assert!(control.reread(sysfs.root()).unwrap() && !control.reread(sysfs.root()).unwrap());
        control.set(sysfs.root(), Setting::AtLeast(800_000)).unwrap();
        assert_eq!(sysfs.read(0, "scaling_max_freq"), "1800000");
        control.set(sysfs.root(), Setting::System).unwrap();
        sysfs.write(0, "scaling_governor", "performance");
        assert_eq!(control.reread(sysfs.root()).unwrap_err().to_string(), OTHER_GOVERNOR);
    }

    #[test]
    fn bounds_that_are_not_in_effect_yet_are_not_anothers() {
        let sysfs = FakeSysfs::new(&[0]);
        let mut control = control(&sysfs, Actuator::Bounds);
        control.set(sysfs.root(), Setting::At(1_200_000)).unwrap();
        control.set(sysfs.root(), Setting::At(800_000)).unwrap();
        control.set(sysfs.root(), Setting::System).unwrap();
        // The kernel has applied none of the writes, only the first ones, or some of the last.
        for (min, max) in [("800000", "1200000"), ("1200000", "1200000"), ("800000", "800000")] {
            sysfs.write(0, "scaling_min_freq", min);
            sysfs.write(0, "scaling_max_freq", max);
            assert!(!control.reread(sysfs.root()).unwrap(), "{min} {max}");
            assert_eq!(control.original().bounds, (800_000, 3_000_000));
        }
        // This process has not written such a maximum.
        sysfs.write(0, "scaling_max_freq", "1800000");
        assert!(control.reread(sysfs.root()).unwrap());
        assert_eq!(control.original().bounds, (800_000, 1_800_000));
        // Once the files have shown the latest values, all others are another's.
        sysfs.write(0, "scaling_max_freq", "1200000");
        assert!(control.reread(sysfs.root()).unwrap());
    }

    #[test]
    fn limit_of_the_system_does_not_stay() {
        let sysfs = FakeSysfs::new(&[0]);
        let mut control = control(&sysfs, Actuator::Bounds);
        // The firmware limits the speed between two tasks.
        sysfs.write(0, "bios_limit", "1200000");
        sysfs.write(0, "scaling_max_freq", "1200000");
        assert!(!control.reread(sysfs.root()).unwrap());
        control.set(sysfs.root(), Setting::At(800_000)).unwrap();
        control.set(sysfs.root(), Setting::System).unwrap();
        assert_eq!(sysfs.read(0, "scaling_max_freq"), "3000000");
        // The same limit is active when the domain is opened.
        sysfs.write(0, "scaling_max_freq", "1200000");
        let domain = cpufreq::domains(sysfs.root()).unwrap().remove(0);
        let opened = SpeedControl::open(sysfs.root(), &domain, Actuator::Bounds).unwrap();
        assert_eq!(opened.original().bounds, (800_000, 3_000_000));
    }

    #[test]
    fn preference_is_rounded_up_and_no_lower_than_the_systems_for_other_work() {
        let sysfs = FakeSysfs::new(&[0]);
        let domain = cpufreq::domains(sysfs.root()).unwrap().remove(0);
        assert!(!Actuator::Preference.is_available(sysfs.root(), &domain));
        let (file, available) =
            ("energy_performance_preference", "energy_performance_available_preferences");
        sysfs.write(0, available, "default performance balance_performance balance_power power");
        sysfs.write(0, file, "balance_performance");
        let mut control = control(&sysfs, Actuator::Preference);
        for (setting, preference) in [
            (Setting::At(800_000), "power"),
            (Setting::At(800_001), "balance_power"),
            (Setting::At(2_400_000), "performance"),
            (Setting::AtLeast(800_000), "balance_performance"),
            (Setting::At(3_000_000), "performance"),
        ] {
            control.set(sysfs.root(), setting).unwrap();
            assert_eq!(sysfs.read(0, file), preference, "{setting:?}");
        }
        control.set(sysfs.root(), Setting::System).unwrap();
        assert_eq!(sysfs.read(0, file), "balance_performance");
        // With another governor, the preference is not this process's to write.
        control.set(sysfs.root(), Setting::At(800_000)).unwrap();
        sysfs.write(0, "scaling_governor", "performance");
        sysfs.write(0, file, "performance");
        control.set(sysfs.root(), Setting::System).unwrap_err();
        assert_eq!(sysfs.read(0, file), "performance");
        // The driver has saved the one before, and returns to it.
        sysfs.write(0, "scaling_governor", "schedutil");
        control.set(sysfs.root(), Setting::System).unwrap();
        assert_eq!(sysfs.read(0, file), "balance_performance");
    }

    #[test]
    fn clamp_is_a_part_of_the_full_utilization() {
        let sysfs = FakeSysfs::new(&[0]);
        let file = "proc/sys/kernel/sched_util_clamp_max";
        fs::create_dir_all(sysfs.root().join("proc/sys/kernel")).unwrap();
        let min_file = sysfs.root().join("proc/sys/kernel/sched_util_clamp_min");
        fs::write(sysfs.root().join(file), "1024\n").unwrap();
        fs::write(&min_file, "1024\n").unwrap();
        let clamp = || {
            let text = fs::read_to_string(sysfs.root().join(file)).unwrap();
            text.lines().next().unwrap_or_default().to_owned()
        };
        let mut control = control(&sysfs, Actuator::Clamp);
        for (setting, value) in [
            (Setting::At(1_500_000), "512"),
            (Setting::At(800_000), "274"),
            (Setting::AtLeast(800_000), "1024"),
            (Setting::At(3_000_000), "1024"),
        ] {
            control.set(sysfs.root(), setting).unwrap();
            assert_eq!(clamp(), value, "{setting:?}");
        }
        control.set(sysfs.root(), Setting::At(800_000)).unwrap();
        // The minimum must not be above the maximum.
        assert!(fs::read_to_string(&min_file).unwrap().starts_with("274\n"));
        control.set(sysfs.root(), Setting::System).unwrap();
        assert_eq!(
            (clamp().as_str(), fs::read_to_string(&min_file).unwrap().trim()),
            ("1024", "1024")
        );
    }

    #[test]
    fn governor_of_another_process_is_kept() {
        let sysfs = FakeSysfs::new(&[0]);
        let mut control = control(&sysfs, Actuator::SetSpeed);
        control.set(sysfs.root(), Setting::At(800_000)).unwrap();
        sysfs.write(0, "scaling_governor", "performance");
        assert!(!control.is_ours().unwrap());
        control.set(sysfs.root(), Setting::System).unwrap();
        assert_eq!(sysfs.read(0, "scaling_governor"), "performance");
    }

    #[test]
    fn speed_of_another_process_is_restored() {
        let sysfs = FakeSysfs::new(&[0]);
        sysfs.write(0, "scaling_governor", "userspace");
        sysfs.write(0, "scaling_setspeed", "1200000");
        let mut control = control(&sysfs, Actuator::SetSpeed);
        control.set(sysfs.root(), Setting::At(2_400_000)).unwrap();
        control.set(sysfs.root(), Setting::System).unwrap();
        assert_eq!(sysfs.read(0, "scaling_setspeed"), "1200000");
        assert_eq!(sysfs.read(0, "scaling_governor"), "userspace");
    }
}
