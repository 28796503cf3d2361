//! The power of the speeds of a frequency domain, as the machine describes it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::cpufreq::FrequencyDomain;
use super::pss;

/// `EM_PERF_DOMAIN_MICROWATTS` of include/linux/energy_model.h (Linux 6.1): the power is in
/// microwatts and not in an abstract unit.
const MICROWATTS: u64 = 1;

/// Where a table of power is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerSource {
    /// The kernel's energy model (debugfs).
    EnergyModel,
    /// The object `_PSS` of the ACPI tables: the maximum power of each speed.
    Acpi,
}

/// The power of each speed in watts, by kHz. `None` if the machine does not describe it.
pub fn power(root: &Path, domain: &FrequencyDomain) -> Option<(BTreeMap<u64, f64>, PowerSource)> {
    let of_model = energy_model(root, domain).map(|table| (table, PowerSource::EnergyModel));
    of_model.or_else(|| acpi(root, domain).map(|table| (table, PowerSource::Acpi)))
}

/// Documentation/power/energy-model.rst: `energy_model/cpuN/ps:KHZ/{frequency,power}`.
fn energy_model(root: &Path, domain: &FrequencyDomain) -> Option<BTreeMap<u64, f64>> {
    let models = root.join("sys/kernel/debug/energy_model");
    let folder = domain.cpus.iter().map(|cpu| models.join(format!("cpu{cpu}")));
    let folder = folder.into_iter().find(|folder| folder.is_dir())?;
    let number = |path: &Path| -> Option<u64> {
        let text = fs::read_to_string(path).ok()?;
        let text = text.trim();
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    };
    if number(&folder.join("flags"))? & MICROWATTS == 0 {
        return None;
    }
    let states = fs::read_dir(&folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let table: BTreeMap<_, _> = states
        .filter_map(|state| {
            let khz = number(&state.join("frequency"))?;
            Some((khz, number(&state.join("power"))? as f64 / 1e6))
        })
        .collect();
    (!table.is_empty()).then_some(table)
}

fn acpi(root: &Path, domain: &FrequencyDomain) -> Option<BTreeMap<u64, f64>> {
    let tables = root.join("sys/firmware/acpi/tables");
    let files = [tables.clone(), tables.join("dynamic")]
        .into_iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<_> = files.filter(|path| path.is_file()).collect();
    files.sort();
    let all = files.iter().filter_map(|path| fs::read(path).ok());
    let mut packages = all.flat_map(|bytes| pss::packages(&bytes));
    // Each processor may have an object of its own. Those of the domain have its speeds.
    packages.find_map(|states| {
        let table: BTreeMap<_, _> =
            states.iter().map(|state| (state.mhz * 1000, state.milliwatts as f64 / 1e3)).collect();
        let has_all = domain.khz.iter().all(|khz| table.contains_key(khz));
        (has_all && !domain.khz.is_empty() && table.values().all(|watts| *watts > 0.0))
            .then_some(table)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain() -> FrequencyDomain {
        FrequencyDomain {
            number: 0,
            cpus: vec![0, 1],
            driver: "test".into(),
            governor: "schedutil".into(),
            khz: vec![800_000, 3_000_000],
            range: (800_000, 3_000_000),
        }
    }

    fn with_model(flags: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/kernel/debug/energy_model/cpu0");
        for (khz, microwatts) in [(800_000, 400_000), (3_000_000, 2_500_000)] {
            let state = folder.join(format!("ps:{khz}"));
            fs::create_dir_all(&state).unwrap();
            fs::write(state.join("frequency"), format!("{khz}\n")).unwrap();
            fs::write(state.join("power"), format!("{microwatts}\n")).unwrap();
        }
        fs::write(folder.join("flags"), flags).unwrap();
        root
    }

    #[test]
    fn energy_model_in_microwatts_is_used() {
        let (table, source) = power(with_model("0x1\n").path(), &domain()).unwrap();
        assert_eq!(source, PowerSource::EnergyModel);
        assert_eq!(table, BTreeMap::from([(800_000, 0.4), (3_000_000, 2.5)]));
        assert_eq!(power(with_model("0x2\n").path(), &domain()), None);
        assert_eq!(power(Path::new("/nonexistent"), &domain()), None);
    }

    #[test]
    fn acpi_table_with_the_domains_speeds_is_used() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/firmware/acpi/tables/dynamic");
        fs::create_dir_all(&folder).unwrap();
        let other = pss::tests::table(&[(1600, 9000), (600, 3000)]);
        let own = pss::tests::table(&[(3000, 30_000), (800, 4000)]);
        fs::write(folder.join("SSDT1"), [other, own].concat()).unwrap();
        let (table, source) = power(root.path(), &domain()).unwrap();
        assert_eq!(source, PowerSource::Acpi);
        assert_eq!(table, BTreeMap::from([(800_000, 4.0), (3_000_000, 30.0)]));
    }
}
