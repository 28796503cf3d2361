//! The frequency domains of the machine and their speeds, from sysfs
//! (Documentation/admin-guide/pm/cpufreq.rst).

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::sysfs;

/// Processors that run at the same speed (a cpufreq policy).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrequencyDomain {
    /// The number in the name of the folder `policyN`.
    pub number: u32,
    /// The numbers of its processors, also of those that are offline.
    pub cpus: Vec<u32>,
    /// The driver, such as `acpi-cpufreq`.
    pub driver: String,
    /// The governor, such as `schedutil`.
    pub governor: String,
    /// The speeds that the driver lists, in kHz and in ascending order; empty if it lists none, as
    /// intel_pstate does.
    pub khz: Vec<u64>,
    /// The speeds from the slowest to the fastest one, in kHz.
    pub range: (u64, u64),
}

/// The frequency domains; none without a cpufreq driver. `root` is `/` except in tests.
///
/// # Errors
/// If the files of a domain cannot be read.
pub fn domains(root: &Path) -> io::Result<Vec<FrequencyDomain>> {
    let folder = root.join("sys/devices/system/cpu/cpufreq");
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("policy"));
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            match domain(&entry.path(), number) {
                // All its processors are offline.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                one => all.push(one?),
            }
        }
    }
    all.sort_by_key(|domain| domain.number);
    Ok(all)
}

/// The speed at which a domain runs now, as far as its driver knows, in kHz.
///
/// # Errors
/// If the domain is offline.
pub fn current_khz(root: &Path, number: u32) -> io::Result<u64> {
    sysfs::number(&domain_folder(root, number).join("scaling_cur_freq"))
}

/// The folder of a domain. `root` is `/` except in tests.
pub(super) fn domain_folder(root: &Path, number: u32) -> PathBuf {
    root.join(format!("sys/devices/system/cpu/cpufreq/policy{number}"))
}

fn domain(folder: &Path, number: u32) -> io::Result<FrequencyDomain> {
    let read = |file: &str| fs::read_to_string(folder.join(file));
    let khz = |file: &str| sysfs::number(&folder.join(file));
    let mut speeds = match read("scaling_available_frequencies") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        text => numbers(&text?),
    };
    speeds.sort_unstable();
    speeds.dedup();
    Ok(FrequencyDomain {
        number,
        cpus: numbers(&read("related_cpus")?).into_iter().map(|cpu| cpu as u32).collect(),
        driver: read("scaling_driver")?.trim().to_owned(),
        governor: read("scaling_governor")?.trim().to_owned(),
        khz: speeds,
        range: (khz("cpuinfo_min_freq")?, khz("cpuinfo_max_freq")?),
    })
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_without_a_driver_has_no_domain() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(domains(root.path()).unwrap(), []);
    }

    #[test]
    fn domains_are_read_in_their_order() {
        let root = tempfile::tempdir().unwrap();
        for (number, speeds) in [(2, Some("1200000 800000 \n")), (0, None)] {
            let folder = root.path().join(format!("sys/devices/system/cpu/cpufreq/policy{number}"));
            fs::create_dir_all(&folder).unwrap();
            let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
            write("related_cpus", "2 3\n");
            write("scaling_driver", "acpi-cpufreq\n");
            write("scaling_governor", "schedutil\n");
            write("cpuinfo_min_freq", "800000\n");
            write("cpuinfo_max_freq", "1200000\n");
            if let Some(speeds) = speeds {
                write("scaling_available_frequencies", speeds);
            }
        }
        let all = domains(root.path()).unwrap();
        let read: Vec<_> = all.iter().map(|domain| (domain.number, domain.khz.clone())).collect();
        assert_eq!(read, [(0, vec![]), (2, vec![800_000, 1_200_000])]);
        assert_eq!(all[1].cpus, [2, 3]);
        assert_eq!(all[1].range, (800_000, 1_200_000));
        let folder = root.path().join("sys/devices/system/cpu/cpufreq/policy2");
        fs::write(folder.join("cpuinfo_max_freq"), "fast\n").unwrap();
        assert!(domains(root.path()).unwrap_err().to_string().contains("has \"fast\""));
    }
}
