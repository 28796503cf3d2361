//! Chooses the actuators of the frequency domains.

use std::path::Path;

use anyhow::{Result, bail};
use kernel::pace::actuator::Actuator;
use kernel::pace::cpufreq::FrequencyDomain;

use crate::format::number_of;

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
            domain; this machine has {}; name another actuator",
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
