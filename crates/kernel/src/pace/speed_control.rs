//! Sets the speed of a frequency domain through the files of cpufreq
//! (Documentation/admin-guide/pm/cpufreq.rst).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::cpufreq::{FrequencyDomain, domain_folder};

/// The governor that leaves the choice of the speed to a process.
const USERSPACE: &str = "userspace";

/// Why a domain is not in the hands of this process any more.
pub const OTHER_GOVERNOR: &str = "another process has changed its governor";

/// The files by which the speed of a domain is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actuator {
    /// `scaling_setspeed` with the governor `userspace`. The speed changes at once.
    SetSpeed,
    /// `scaling_min_freq` and `scaling_max_freq`. The system's governor stays, and applies them
    /// when it next chooses a speed.
    Bounds,
}

impl Actuator {
    /// The name in reports and in the journal.
    pub fn name(self) -> &'static str {
        match self {
            Self::SetSpeed => "setspeed",
            Self::Bounds => "bounds",
        }
    }

    /// The actuator with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::SetSpeed, Self::Bounds].into_iter().find(|one| one.name() == name)
    }
}

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

/// How a domain was before its speed was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginalSpeed {
    /// The number in the name of the folder `policyN`.
    pub domain: u32,
    /// By what its speed is set.
    pub actuator: Actuator,
    /// Its governor.
    pub governor: String,
    /// `scaling_min_freq` and `scaling_max_freq`, in kHz.
    pub bounds: (u64, u64),
    /// `scaling_setspeed`, if the governor was `userspace`.
    pub speed: Option<u64>,
}

impl OriginalSpeed {
    /// Reads how a domain is. `root` is `/` except in tests.
    pub fn read(root: &Path, domain: u32, actuator: Actuator) -> io::Result<Self> {
        let folder = domain_folder(root, domain);
        let read = |file: &str| fs::read_to_string(folder.join(file));
        let governor = read("scaling_governor")?.trim().to_owned();
        let speed = match governor == USERSPACE {
            true => read("scaling_setspeed")?.trim().parse().ok(),
            false => None,
        };
        let khz = |file: &str| -> io::Result<u64> {
            let text = read(file)?;
            text.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
        };
        let bounds = (khz("scaling_min_freq")?, khz("scaling_max_freq")?);
        Ok(Self { domain, actuator, governor, bounds, speed })
    }

    /// Restores the domain. A governor that another process has set meanwhile is kept.
    pub fn restore(&self, root: &Path) -> io::Result<()> {
        let folder = domain_folder(root, self.domain);
        if self.actuator == Actuator::Bounds {
            return write_bounds(&folder, self.bounds);
        }
        let governor = folder.join("scaling_governor");
        if fs::read_to_string(&governor)?.trim() != USERSPACE {
            return Ok(());
        }
        match self.speed {
            Some(speed) => fs::write(folder.join("scaling_setspeed"), speed.to_string()),
            None => fs::write(governor, &self.governor),
        }
    }
}

/// Writes both bounds. The kernel refuses a minimum above the maximum, so the one that moves away
/// from the other is first.
fn write_bounds(folder: &Path, (min, max): (u64, u64)) -> io::Result<()> {
    let (min_file, max_file) = (folder.join("scaling_min_freq"), folder.join("scaling_max_freq"));
    let now = fs::read_to_string(&max_file)?.trim().parse().unwrap_or(0_u64);
    if max >= now {
        fs::write(max_file, max.to_string())?;
        fs::write(min_file, min.to_string())
    } else {
        fs::write(min_file, min.to_string())?;
        fs::write(max_file, max.to_string())
    }
}

/// Writes a speed to a file of sysfs, to which each write is a whole value.
fn write_khz(file: &File, khz: u64) -> io::Result<()> {
    file.write_all_at(format!("{khz}\n").as_bytes(), 0)
}

/// The actuator that a domain can have: `scaling_setspeed` if it has the governor for it.
pub fn best_actuator(root: &Path, domain: &FrequencyDomain) -> Actuator {
    let governors = domain_folder(root, domain.number).join("scaling_available_governors");
    let governors = fs::read_to_string(governors).unwrap_or_default();
    match governors.split_ascii_whitespace().any(|name| name == USERSPACE) {
        true => Actuator::SetSpeed,
        false => Actuator::Bounds,
    }
}

/// The speed of a domain in the hands of this process.
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
    Bounds { min: File, max: File, now: (u64, u64) },
}

impl SpeedControl {
    /// Opens the files of a domain. Nothing changes before [`SpeedControl::set`].
    pub fn open(root: &Path, domain: &FrequencyDomain, actuator: Actuator) -> io::Result<Self> {
        let original = OriginalSpeed::read(root, domain.number, actuator)?;
        let folder = domain_folder(root, domain.number);
        let open = |name: &str| OpenOptions::new().write(true).open(folder.join(name));
        let files = match original.actuator {
            Actuator::SetSpeed => ControlFiles::SetSpeed(open("scaling_setspeed")?),
            Actuator::Bounds => ControlFiles::Bounds {
                min: open("scaling_min_freq")?,
                max: open("scaling_max_freq")?,
                now: original.bounds,
            },
        };
        Ok(Self { folder, original, range: domain.range, files, is_released: true })
    }

    /// How the domain was. It must be in the journal before the speed is set.
    pub fn original(&self) -> &OriginalSpeed {
        &self.original
    }

    /// Whether the domain is in the hands of the system.
    pub fn is_released(&self) -> bool {
        self.is_released
    }

    /// Reads again how a released domain is, because somebody may have changed it. Returns whether
    /// its bounds have changed. Fails if its governor has changed.
    pub fn reread(&mut self, root: &Path) -> io::Result<bool> {
        let now = OriginalSpeed::read(root, self.original.domain, self.original.actuator)?;
        if now.governor != self.original.governor {
            return Err(io::Error::other(OTHER_GOVERNOR));
        }
        if let ControlFiles::Bounds { now: bounds, .. } = &mut self.files {
            *bounds = now.bounds;
        }
        let has_changed = now != self.original;
        self.original = now;
        Ok(has_changed)
    }

    /// Sets the speed. The kernel rounds it up to one of the driver's.
    pub fn set(&mut self, root: &Path, setting: Setting) -> io::Result<()> {
        if setting == Setting::System {
            if !self.is_released {
                self.original.restore(root)?;
                self.is_released = true;
            }
            return Ok(());
        }
        if self.is_released && self.original.actuator == Actuator::SetSpeed {
            fs::write(self.folder.join("scaling_governor"), USERSPACE)?;
        }
        self.is_released = false;
        let (slowest, fastest) = self.range;
        let max = self.original.bounds.1;
        let within = |khz: u64| khz.clamp(slowest, fastest);
        match &mut self.files {
            ControlFiles::SetSpeed(file) => {
                let khz = match setting {
                    Setting::At(khz) => within(khz),
                    Setting::AtLeast(_) | Setting::System => fastest,
                };
                write_khz(file, khz)
            }
            ControlFiles::Bounds { min: min_file, max: max_file, now } => {
                let wanted = match setting {
                    Setting::At(khz) => (within(khz), within(khz)),
                    Setting::AtLeast(khz) => (within(khz), max.max(within(khz))),
                    Setting::System => self.original.bounds,
                };
                // As in `write_bounds`.
                if wanted.1 >= now.1 {
                    write_khz(max_file, wanted.1)?;
                    write_khz(min_file, wanted.0)?;
                } else {
                    write_khz(min_file, wanted.0)?;
                    write_khz(max_file, wanted.1)?;
                }
                *now = wanted;
                Ok(())
            }
        }
    }

    /// Whether the governor is still the one under which this process sets the speed.
    pub fn is_ours(&self) -> io::Result<bool> {
        let governor = fs::read_to_string(self.folder.join("scaling_governor"))?;
        Ok(match self.original.actuator {
            Actuator::SetSpeed => governor.trim() == USERSPACE,
            Actuator::Bounds => governor.trim() == self.original.governor,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::cpufreq;
    use crate::pace::false_sysfs::FalseSysfs;

    fn open(sysfs: &FalseSysfs, actuator: Actuator) -> SpeedControl {
        let domain = cpufreq::domains(sysfs.root()).unwrap().remove(0);
        SpeedControl::open(sysfs.root(), &domain, actuator).unwrap()
    }

    #[test]
    fn setspeed_is_written_under_its_governor() {
        let sysfs = FalseSysfs::new(&[0]);
        let mut control = open(&sysfs, Actuator::SetSpeed);
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
        let sysfs = FalseSysfs::new(&[0]);
        sysfs.write(0, "scaling_max_freq", "2400000");
        let mut control = open(&sysfs, Actuator::Bounds);
        for (setting, bounds) in [
            (Setting::At(1_200_000), ("1200000", "1200000")),
            (Setting::AtLeast(1_200_000), ("1200000", "2400000")),
            (Setting::At(3_000_000), ("3000000", "3000000")),
            (Setting::At(800_000), ("800000", "800000")),
        ] {
            control.set(sysfs.root(), setting).unwrap();
            let now = (sysfs.read(0, "scaling_min_freq"), sysfs.read(0, "scaling_max_freq"));
            assert_eq!((now.0.as_str(), now.1.as_str()), bounds, "{setting:?}");
        }
        assert_eq!(sysfs.read(0, "scaling_governor"), "schedutil");
        control.set(sysfs.root(), Setting::System).unwrap();
        assert_eq!(sysfs.read(0, "scaling_max_freq"), "2400000");
        // Somebody else sets other bounds and another governor, which stand.
        sysfs.write(0, "scaling_max_freq", "1800000");
        assert!(control.reread(sysfs.root()).unwrap() && !control.reread(sysfs.root()).unwrap());
        control.set(sysfs.root(), Setting::AtLeast(800_000)).unwrap();
        assert_eq!(sysfs.read(0, "scaling_max_freq"), "1800000");
        control.set(sysfs.root(), Setting::System).unwrap();
        sysfs.write(0, "scaling_governor", "performance");
        assert_eq!(control.reread(sysfs.root()).unwrap_err().to_string(), OTHER_GOVERNOR);
    }

    #[test]
    fn governor_of_somebody_else_stands() {
        let sysfs = FalseSysfs::new(&[0]);
        let mut control = open(&sysfs, Actuator::SetSpeed);
        control.set(sysfs.root(), Setting::At(800_000)).unwrap();
        sysfs.write(0, "scaling_governor", "performance");
        assert!(!control.is_ours().unwrap());
        control.set(sysfs.root(), Setting::System).unwrap();
        assert_eq!(sysfs.read(0, "scaling_governor"), "performance");
    }

    #[test]
    fn speed_of_another_process_is_restored() {
        let sysfs = FalseSysfs::new(&[0]);
        sysfs.write(0, "scaling_governor", "userspace");
        sysfs.write(0, "scaling_setspeed", "1200000");
        let mut control = open(&sysfs, Actuator::SetSpeed);
        control.set(sysfs.root(), Setting::At(2_400_000)).unwrap();
        control.set(sysfs.root(), Setting::System).unwrap();
        assert_eq!(sysfs.read(0, "scaling_setspeed"), "1200000");
        assert_eq!(sysfs.read(0, "scaling_governor"), "userspace");
    }
}
