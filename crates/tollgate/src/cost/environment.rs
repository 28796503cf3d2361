//! The machine of a run as it was at the beginning, and the time that its hypervisor took during
//! the run.

use std::collections::BTreeMap;
use std::fs;

use serde::{Deserialize, Serialize};

/// The machine of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Environment {
    pub tollgate: String,
    pub kernel: String,
    pub cpu: String,
    pub cpus: usize,
    pub pinned_to: usize,
    pub clock_source: String,
    /// The contents of /sys/devices/system/cpu/vulnerabilities.
    pub mitigations: BTreeMap<String, String>,
    /// The frequency governor; null without one, as in most guests.
    pub governor: Option<String>,
    pub load: String,
    /// Hundredths of a second that the hypervisor took from all processors during the run.
    pub steal_ticks: u64,
    /// The part of the last 10 s before the run in which some tasks waited for a CPU, in percent;
    /// null without PSI.
    pub cpu_pressure: Option<f64>,
    /// Nanoseconds from one clock reading to the next, and per iteration of the loop around the
    /// units; both are subtracted.
    pub clock_ns: f64,
    pub loop_ns: f64,
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

impl Environment {
    /// Reads the environment when the run begins.
    pub fn now(pinned_to: usize) -> Self {
        Self {
            tollgate: env!("CARGO_PKG_VERSION").into(),
            kernel: read("/proc/sys/kernel/osrelease").unwrap_or_default(),
            cpu: cpu_model().unwrap_or_default(),
            cpus: kernel::cpus::allowed().len(),
            pinned_to,
            clock_source: clock_source(),
            mitigations: mitigations(),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            load: read("/proc/loadavg").unwrap_or_default(),
            steal_ticks: steal_ticks(),
            cpu_pressure: read("/proc/pressure/cpu").and_then(|text| pressure(&text)),
            clock_ns: 0.0,
            loop_ns: 0.0,
        }
    }

    /// Adds what is known at the end of the run.
    pub fn ended(&mut self, clock_ns: f64, loop_ns: f64) {
        self.steal_ticks = steal_ticks().saturating_sub(self.steal_ticks);
        (self.clock_ns, self.loop_ns) = (clock_ns, loop_ns);
    }
}

/// The clock source of the kernel.
pub fn clock_source() -> String {
    read("/sys/devices/system/clocksource/clocksource0/current_clocksource").unwrap_or_default()
}

fn cpu_model() -> Option<String> {
    let text = read("/proc/cpuinfo")?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn mitigations() -> BTreeMap<String, String> {
    let folder =
        fs::read_dir("/sys/devices/system/cpu/vulnerabilities").into_iter().flatten().flatten();
    let one = |entry: fs::DirEntry| {
        let state = fs::read_to_string(entry.path()).ok()?.trim().to_owned();
        (state != "Not affected").then(|| (entry.file_name().to_string_lossy().into_owned(), state))
    };
    folder.filter_map(one).collect()
}

/// The eighth number of /proc/stat's first line, in ticks of 10 ms.
fn steal_ticks() -> u64 {
    let text = read("/proc/stat").unwrap_or_default();
    text.lines().next().and_then(|line| line.split_whitespace().nth(8)?.parse().ok()).unwrap_or(0)
}

/// "some avg10=1.23 avg60=…"
fn pressure(text: &str) -> Option<f64> {
    text.split_whitespace().find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_of_ten_seconds() {
        assert_eq!(
            pressure("some avg10=1.25 avg60=0.4 avg300=0.1 total=7\nfull avg10=0.00"),
            Some(1.25)
        );
        assert_eq!(pressure(""), None);
    }
}
