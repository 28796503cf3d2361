//! The levels of this machine.

use std::path::Path;

use ::pace::{Level, LevelFile, Levels};
use anyhow::{Context, Result, bail};
use kernel::pace::cpufreq::{self, FrequencyDomain};
use kernel::pace::power::{self, PowerSource};
use kernel::process::is_root;

use crate::format::number_of;

/// The levels of each kind of frequency domain.
pub fn find() -> Result<Vec<LevelFile>> {
    find_in(Path::new("/"))
}

fn find_in(root: &Path) -> Result<Vec<LevelFile>> {
    let domains = cpufreq::domains(root).context("cannot read the frequency domains")?;
    if domains.is_empty() {
        bail!("this machine has no cpufreq driver, so its speeds cannot be chosen");
    }
    let mut kinds: Vec<(LevelFile, Vec<FrequencyDomain>)> = Vec::new();
    for domain in domains {
        let file = of_domain(root, &domain)?;
        match kinds.iter_mut().find(|(kind, _)| *kind == file) {
            Some((_, same)) => same.push(domain),
            None => kinds.push((file, vec![domain])),
        }
    }
    let named = kinds.into_iter().map(|(file, domains)| {
        let cpus: usize = domains.iter().map(|domain| domain.cpus.len()).sum();
        let domains = number_of(domains.len(), "frequency domain");
        let name = format!("{} in {domains}", number_of(cpus, "processor"));
        LevelFile { name: Some(name), ..file }
    });
    Ok(named.collect())
}

fn of_domain(root: &Path, domain: &FrequencyDomain) -> Result<LevelFile> {
    let (slowest, fastest) = domain.range;
    let Some((table, source)) = power::power(root, domain) else {
        if !is_root() {
            bail!(
                "the power of the speeds is not known: usually, only root can read the kernel's \
                energy model and the tables of ACPI; run it with sudo"
            );
        }
        bail!(
            "the power of the speeds is not known: the kernel has no energy model for policy{}, \
            and ACPI no _PSS with its speeds (driver {}, {} to {} MHz)",
            domain.number,
            domain.driver,
            slowest / 1000,
            fastest / 1000
        );
    };
    let levels = table.iter().map(|(khz, watts)| Level { hz: *khz as f64 * 1e3, watts: *watts });
    let levels = Levels::new(levels.collect(), 0.0)
        .with_context(|| format!("the levels of policy{} make no sense", domain.number))?;
    let source = match source {
        PowerSource::EnergyModel => "the energy model of the kernel, without power at idle",
        PowerSource::Acpi => "ACPI (_PSS): the maximum power of each speed, without power at idle",
    };
    Ok(LevelFile { name: None, source: Some(source.into()), levels })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Two domains of one kind, and one of another kind, with an energy model for all but `except`.
    fn machine(except: u32) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let slow: &[(u64, u64)] = &[(600_000, 100_000), (1_200_000, 400_000)];
        let fast: &[(u64, u64)] = &[(800_000, 300_000), (2_000_000, 2_500_000)];
        for (number, cpus, speeds) in [(0, "0", slow), (1, "1", slow), (2, "2 3", fast)] {
            let folder = root.path().join(format!("sys/devices/system/cpu/cpufreq/policy{number}"));
            fs::create_dir_all(&folder).unwrap();
            let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
            write("related_cpus", cpus);
            write("scaling_driver", "scmi");
            write("scaling_governor", "schedutil");
            write("cpuinfo_min_freq", &speeds[0].0.to_string());
            write("cpuinfo_max_freq", &speeds[1].0.to_string());
            write("scaling_available_frequencies", &format!("{} {}", speeds[0].0, speeds[1].0));
            if number == except {
                continue;
            }
            let model = root.path().join(format!("sys/kernel/debug/energy_model/cpu{number}"));
            for (khz, microwatts) in speeds {
                let state = model.join(format!("ps:{khz}"));
                fs::create_dir_all(&state).unwrap();
                fs::write(state.join("frequency"), khz.to_string()).unwrap();
                fs::write(state.join("power"), microwatts.to_string()).unwrap();
            }
            fs::write(model.join("flags"), "0x1").unwrap();
        }
        root
    }

    #[test]
    fn domains_of_a_kind_are_listed_once() {
        let found = find_in(machine(u32::MAX).path()).unwrap();
        let names: Vec<_> = found.iter().map(|file| file.name.as_deref().unwrap()).collect();
        assert_eq!(
            names,
            ["2 processors in 2 frequency domains", "2 processors in 1 frequency domain"]
        );
        let levels = |file: &LevelFile| -> Vec<_> {
            file.levels.all().iter().map(|level| (level.hz, level.watts)).collect()
        };
        assert_eq!(levels(&found[0]), [(6e8, 0.1), (1.2e9, 0.4)]);
        assert_eq!(levels(&found[1]), [(8e8, 0.3), (2e9, 2.5)]);
        assert!(found[0].source.as_deref().unwrap().contains("energy model"));
    }

    #[test]
    fn machine_without_speeds_or_power_says_what_is_missing() {
        let error = |root: &Path| find_in(root).unwrap_err().to_string();
        let empty = tempfile::tempdir().unwrap();
        assert!(error(empty.path()).contains("no cpufreq driver"));
        let text = error(machine(2).path());
        if !is_root() {
            assert!(text.ends_with("run it with sudo"), "{text}");
            return;
        }
        let expected = "no energy model for policy2, and ACPI no _PSS with its speeds \
            (driver scmi, 800 to 2000 MHz)";
        assert!(text.contains(expected), "{text}");
    }
}
