//! Chooses the actuators of the frequency domains.

use std::path::Path;

use anyhow::{Result, bail};
use kernel::pace::actuator::Actuator;
use kernel::pace::cpufreq::FrequencyDomain;

use crate::format::number_of;

/// The help for a file of rules that names an actuator that the machine lacks.
pub const HELP: &str =
    "without `actuator`, the best one of the machine is chosen; `tollgate doctor` shows them";

/// The domains, each with the actuator of this name or, without one, the best actuator.
pub fn with_actuators(
    root: &Path,
    domains: &[FrequencyDomain],
    name: Option<&str>,
) -> Result<Vec<(FrequencyDomain, Actuator)>> {
    let named = name.and_then(Actuator::of_name);
    if named == Some(Actuator::Clamp) && domains.len() > 1 {
        bail!(
            "the actuator \"clamp\" limits the whole machine, so it needs a single frequency \
            domain; this machine has {}",
            number_of(domains.len(), "frequency domain")
        );
    }
    let with_actuator = |domain: &FrequencyDomain| {
        let actuator = named.unwrap_or_else(|| Actuator::best(root, domain));
        if !actuator.is_available(root, domain) {
            bail!(
                "policy{} does not support the actuator {:?} (driver {}, governor {})",
                domain.number,
                actuator.name(),
                domain.driver,
                domain.governor
            );
        }
        Ok((domain.clone(), actuator))
    };
    domains.iter().map(with_actuator).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn domain(number: u32) -> FrequencyDomain {
        FrequencyDomain {
            number,
            cpus: vec![number],
            driver: "acpi-cpufreq".into(),
            governor: "schedutil".into(),
            khz: Vec::new(),
            range: (800_000, 3_000_000),
        }
    }

    #[test]
    fn actuators_need_their_files() {
        let root = tempfile::tempdir().unwrap();
        let (folder, kernel) = (
            root.path().join("sys/devices/system/cpu/cpufreq/policy0"),
            root.path().join("proc/sys/kernel"),
        );
        for path in [&folder, &kernel] {
            fs::create_dir_all(path).unwrap();
        }
        let of = |name| {
            let all = with_actuators(root.path(), &[domain(0)], name);
            all.map(|all| all[0].1).map_err(|error| error.to_string())
        };
        assert_eq!(of(None), Ok(Actuator::Bounds));
        for name in ["setspeed", "preference", "clamp"] {
            let expected = format!(
                "policy0 does not support the actuator {name:?} (driver acpi-cpufreq, governor \
                schedutil)"
            );
            assert_eq!(of(Some(name)), Err(expected));
        }
        for (path, text) in [
            (folder.join("scaling_available_governors"), "schedutil userspace\n"),
            (folder.join("energy_performance_available_preferences"), "performance power\n"),
            (kernel.join("sched_util_clamp_max"), "1024\n"),
        ] {
            fs::write(path, text).unwrap();
        }
        assert_eq!(of(None), Ok(Actuator::SetSpeed));
        for actuator in Actuator::ALL {
            assert_eq!(of(Some(actuator.name())), Ok(actuator));
        }
        let two = with_actuators(root.path(), &[domain(0), domain(1)], Some("clamp"));
        let error = two.unwrap_err().to_string();
        assert!(error.contains("needs a single frequency domain; this machine has 2"), "{error}");
    }
}
