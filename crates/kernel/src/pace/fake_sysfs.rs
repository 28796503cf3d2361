//! The files of cpufreq in a temporary folder, for tests.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

/// A false sysfs, in which each write takes effect as it is.
pub struct FakeSysfs {
    root: TempDir,
}

impl FakeSysfs {
    /// Domains with these numbers, each with one processor of the same number.
    pub fn new(domains: &[u32]) -> Self {
        let sysfs = Self { root: tempfile::tempdir().unwrap() };
        for number in domains {
            fs::create_dir_all(sysfs.root().join(path(*number, ""))).unwrap();
            for (file, text) in [
                ("related_cpus", number.to_string().as_str()),
                ("scaling_driver", "acpi-cpufreq"),
                ("scaling_governor", "schedutil"),
                ("scaling_available_governors", "userspace schedutil performance"),
                ("scaling_available_frequencies", "3000000 2400000 1800000 1200000 800000"),
                ("scaling_setspeed", "<unsupported>"),
                ("scaling_min_freq", "800000"),
                ("scaling_max_freq", "3000000"),
                ("cpuinfo_min_freq", "800000"),
                ("cpuinfo_max_freq", "3000000"),
            ] {
                sysfs.write(*number, file, text);
            }
        }
        sysfs
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn write(&self, domain: u32, file: &str, text: &str) {
        fs::write(self.root().join(path(domain, file)), text).unwrap();
    }

    /// The first line of a file. What follows it is left of an earlier, longer value.
    pub fn read(&self, domain: u32, file: &str) -> String {
        let text = fs::read_to_string(self.root().join(path(domain, file))).unwrap();
        text.lines().next().unwrap_or_default().to_owned()
    }
}

fn path(domain: u32, file: &str) -> String {
    format!("sys/devices/system/cpu/cpufreq/policy{domain}/{file}")
}
