//! The levels of this machine.

use std::path::Path;

use ::pace::{Level, LevelFile, Levels};
use anyhow::{Context, Result, bail};
use kernel::pace::cpufreq::{self, FrequencyDomain};
use kernel::pace::power::{self, PowerSource};

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
