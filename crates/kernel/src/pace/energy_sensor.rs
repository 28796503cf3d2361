//! Sensors of the energy that the processors use: powercap
//! (Documentation/power/powercap/powercap.rst), or else the energy events of perf (the PMU `power`
//! of arch/x86/events/rapl.c).

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::sysfs::number;
use crate::cpus::parse_cpu_list;
use crate::perf_event::PerfEvent;

/// The minimum time between two readings: each may cost a call of the firmware.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// The counters of all processor packages.
pub struct EnergySensors {
    sensors: Vec<Sensor>,
    source: EnergySource,
    latest_reading: Option<Instant>,
}

/// What the counters are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnergySource {
    /// `/sys/class/powercap`
    Powercap,
    /// The event `energy-pkg`.
    Perf,
}

impl EnergySource {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Powercap => "powercap",
            Self::Perf => "perf",
        }
    }
}

enum Sensor {
    Powercap {
        counter: PathBuf,
        /// The counter wraps around to 0 after this value, in µJ.
        range: u64,
        latest: u64,
        /// µJ since the sensor was found.
        total: u64,
    },
    Perf {
        event: File,
        /// The energy of a count, in joules.
        scale: f64,
        count: u64,
        /// The count from which on energy is measured.
        first: u64,
    },
}

impl EnergySensors {
    /// The counters of this machine. `None` if it has none. `root` is `/` except in tests.
    pub fn find(root: &Path) -> Option<Self> {
        let powercap = powercap_packages(root);
        let (sensors, source) = match powercap.is_empty() {
            false => (powercap, EnergySource::Powercap),
            true => (perf_packages(root), EnergySource::Perf),
        };
        (!sensors.is_empty()).then_some(Self { sensors, source, latest_reading: None })
    }

    /// What the counters are read from.
    pub fn source(&self) -> EnergySource {
        self.source
    }

    /// Reads the counters. The time between two readings must be shorter than that in which a
    /// counter passes its whole range: at 100 W, a range of 262 kJ (the usual one of RAPL) lasts 43
    /// minutes. Does nothing if the last reading was a moment ago.
    pub fn update(&mut self) {
        if self.is_due(Instant::now()) {
            self.read();
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.latest_reading.is_none_or(|latest| now.duration_since(latest) >= MIN_INTERVAL)
    }

    fn read(&mut self) {
        self.latest_reading = Some(Instant::now());
        self.sensors.iter_mut().for_each(Sensor::update);
    }

    /// Measures from now on.
    pub fn restart(&mut self) {
        self.read();
        for sensor in &mut self.sensors {
            match sensor {
                Sensor::Powercap { total, .. } => *total = 0,
                Sensor::Perf { count, first, .. } => *first = *count,
            }
        }
    }

    /// The energy since the counters were found or restarted, as of the latest update, in joules.
    pub fn joules(&self) -> f64 {
        self.sensors.iter().map(Sensor::joules).sum()
    }
}

impl Sensor {
    fn update(&mut self) {
        match self {
            Self::Powercap { counter, range, latest, total } => {
                let Ok(now) = number::<u64>(counter) else { return };
                *total += match now >= *latest {
                    true => now - *latest,
                    false => (*range + now).saturating_sub(*latest),
                };
                *latest = now;
            }
            Self::Perf { event, count, .. } => {
                let mut bytes = [0; 8];
                if event.read_exact(&mut bytes).is_ok() {
                    *count = u64::from_ne_bytes(bytes);
                }
            }
        }
    }

    fn joules(&self) -> f64 {
        match self {
            Self::Powercap { total, .. } => *total as f64 / 1e6,
            Self::Perf { scale, count, first, .. } => (*count - *first) as f64 * scale,
        }
    }
}

/// The zones of whole packages. Their parts, such as `core`, have zones of their own.
fn powercap_packages(root: &Path) -> Vec<Sensor> {
    let Ok(zones) = fs::read_dir(root.join("sys/class/powercap")) else { return Vec::new() };
    let mut zones: Vec<_> = zones.filter_map(|zone| Some(zone.ok()?.path())).collect();
    // A package may have a second zone (intel-rapl-mmio) with the same name and the same energy.
    zones.sort_by_key(|zone| (zone.to_string_lossy().contains("mmio"), zone.clone()));
    let mut seen = BTreeSet::new();
    let mut sensor = |zone: &PathBuf| {
        let name = fs::read_to_string(zone.join("name")).ok()?;
        if !name.starts_with("package-") || !seen.insert(name) {
            return None;
        }
        let counter = zone.join("energy_uj");
        let latest = number(&counter).ok()?;
        let range = number(&zone.join("max_energy_range_uj")).ok()?;
        Some(Sensor::Powercap { counter, range, latest, total: 0 })
    };
    zones.iter().filter_map(&mut sensor).collect()
}

/// A counter of the event `energy-pkg` for each package.
fn perf_packages(root: &Path) -> Vec<Sensor> {
    let Some((event, scale, cpus)) = perf_event(root) else { return Vec::new() };
    let sensor = |cpu| {
        let event = File::from(event.open(cpu).ok()?);
        Some(Sensor::Perf { event, scale, count: 0, first: 0 })
    };
    cpus.into_iter().filter_map(sensor).collect()
}

/// The event `energy-pkg`, the energy of a count, and a processor of each package.
fn perf_event(root: &Path) -> Option<(PerfEvent, f64, Vec<u32>)> {
    let pmu = root.join("sys/bus/event_source/devices/power");
    let event = fs::read_to_string(pmu.join("events/energy-pkg")).ok()?;
    let config = event.trim().strip_prefix("event=0x")?;
    let event = PerfEvent {
        kind: number(&pmu.join("type")).ok()?,
        config: u64::from_str_radix(config, 16).ok()?,
        ..Default::default()
    };
    let scale = number(&pmu.join("events/energy-pkg.scale")).ok()?;
    let cpus = fs::read_to_string(pmu.join("cpumask")).ok()?;
    Some((event, scale, parse_cpu_list(&cpus).map(|cpu| cpu as u32).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn energy_of_packages_is_added_across_a_wraparound() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert!(EnergySensors::find(root).is_none());
        for (zone, name) in [
            ("intel-rapl:0", "package-0"),
            ("intel-rapl:0:0", "core"),
            ("intel-rapl:1", "psys"),
            ("intel-rapl-mmio:0", "package-0"),
        ] {
            let file = |name: &str| format!("sys/class/powercap/{zone}/{name}");
            write(root, &file("name"), &format!("{name}\n"));
            write(root, &file("energy_uj"), "900000\n");
            write(root, &file("max_energy_range_uj"), "1000000\n");
        }
        let mut sensors = EnergySensors::find(root).unwrap();
        assert_eq!(sensors.source().name(), "powercap");
        // At most ten readings a second.
        let now = Instant::now();
        assert!(sensors.is_due(now));
        sensors.latest_reading = Some(now);
        assert!(!sensors.is_due(now + Duration::from_millis(99)));
        assert!(sensors.is_due(now + Duration::from_millis(100)));
        let counter = "sys/class/powercap/intel-rapl:0/energy_uj";
        for (value, joules) in [("950000", 0.05), ("200000", 0.3), ("200000", 0.3)] {
            write(root, counter, value);
            sensors.read();
            assert!((sensors.joules() - joules).abs() < 1e-9, "{value}: {}", sensors.joules());
        }
        sensors.restart();
        assert_eq!(sensors.joules(), 0.0);
        write(root, counter, "500000");
        sensors.read();
        // A zone that cannot be read adds nothing.
        fs::remove_file(root.join(counter)).unwrap();
        sensors.read();
        assert!((sensors.joules() - 0.3).abs() < 1e-9);
    }

    #[test]
    fn event_of_perf_is_described_by_sysfs() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for (file, text) in [
            ("type", "21\n"),
            ("cpumask", "0,18-19\n"),
            ("events/energy-pkg", "event=0x02\n"),
            ("events/energy-pkg.scale", "2.3283064365386962890625e-10\n"),
        ] {
            write(root, &format!("sys/bus/event_source/devices/power/{file}"), text);
        }
        let (event, scale, cpus) = perf_event(root).unwrap();
        assert_eq!((event.kind, event.config), (21, 2));
        // 2^-32 J, the unit of the kernel's counter.
        assert_eq!(scale, 2.0_f64.powi(-32));
        assert_eq!(cpus, [0, 18, 19]);
        write(root, "sys/bus/event_source/devices/power/cpumask", "one");
        assert_eq!(perf_event(root).unwrap().2, []);
    }
}
