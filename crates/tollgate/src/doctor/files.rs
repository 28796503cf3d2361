//! Capabilities that files of /proc and /sys show.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use kernel::gate::Lock;
use kernel::pace::CycleEvent;
use kernel::pace::actuator::Actuator;
use kernel::pace::cpufreq::{self, FrequencyDomain};
use kernel::pace::energy_sensor::EnergySensors;
use kernel::process::{has_own_proc, is_root};

use super::finding::Finding;

pub fn own_proc() -> Finding {
    match has_own_proc() {
        true => Finding::yes(""),
        false => Finding::no(kernel::Error::NoProc.to_string()),
    }
}

pub fn lock_file() -> Finding {
    match Lock::file() {
        Ok(path) => Finding::yes(path.display().to_string()),
        Err(kernel::Error::NotRoot) => Finding::untried("only root can open it"),
        Err(error) => Finding::no(error.to_string()),
    }
}

pub fn kernel_addresses() -> Finding {
    const READ_LIMIT: u64 = 64 << 10;
    let mut text = String::new();
    let read = fs::File::open("/proc/kallsyms")
        .and_then(|file| file.take(READ_LIMIT).read_to_string(&mut text));
    match read {
        Err(error) => Finding::no(format!("/proc/kallsyms: {error}")),
        Ok(_) if shows_addresses(&text) => Finding::yes(""),
        Ok(_) if !is_root() => Finding::untried("shown to root only"),
        Ok(_) => Finding::no("the addresses are hidden"),
    }
}

/// Some symbols are legitimately at 0, so one address that is not 0 is enough.
fn shows_addresses(kallsyms: &str) -> bool {
    kallsyms.lines().any(|line| {
        let address = line.split(' ').next().unwrap_or_default();
        !address.is_empty() && address.bytes().any(|digit| digit != b'0')
    })
}

/// Clock sources that are read without leaving the processor.
const FAST_CLOCKS: [&str; 4] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "xen"];

pub fn fast_clock() -> Finding {
    const DIRECTORY: &str = "/sys/devices/system/clocksource/clocksource0";
    let read = |file: &str| fs::read_to_string(format!("{DIRECTORY}/{file}"));
    let Ok(clock) = read("current_clocksource") else {
        return Finding::untried("the clock source is not shown");
    };
    let clock = clock.trim();
    if FAST_CLOCKS.contains(&clock) {
        return Finding::yes(clock);
    }
    let others = read("available_clocksource").unwrap_or_default();
    Finding::no(format!("{clock} is slow to read")).remedy(faster_clock(&others))
}

fn faster_clock(available: &str) -> String {
    match available.split_whitespace().find(|name| FAST_CLOCKS.contains(name)) {
        Some(name) => format!("the kernel knows a fast one: boot with clocksource={name}"),
        None => "a machine whose time-stamp counter is stable (the kernel log says why it is not)"
            .into(),
    }
}

pub fn pressure() -> Finding {
    match fs::read_to_string("/proc/pressure/cpu") {
        Ok(_) => Finding::yes(""),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Finding::no("/proc/pressure is missing")
        }
        Err(_) => Finding::no("switched off").remedy("boot with psi=1"),
    }
}

/// The content of this file in the folder of the first frequency policy.
fn of_first_policy(file: &str) -> Option<String> {
    let mut policies: Vec<_> =
        fs::read_dir("/sys/devices/system/cpu/cpufreq").ok()?.filter_map(Result::ok).collect();
    policies.retain(|entry| entry.file_name().to_string_lossy().starts_with("policy"));
    policies.sort_by_key(fs::DirEntry::file_name);
    let text = fs::read_to_string(policies.first()?.path().join(file)).ok()?;
    Some(text.trim().to_owned())
}

pub fn frequency_driver() -> Finding {
    match of_first_policy("scaling_driver") {
        Some(driver) => Finding::yes(driver),
        None => Finding::no("no frequency domain"),
    }
}

pub fn userspace_governor() -> Finding {
    match of_first_policy("scaling_available_governors") {
        None => Finding::no("no frequency domain").remedy("cpufreq, as above"),
        Some(list) if list.split(' ').any(|name| name == "userspace") => Finding::yes(list),
        Some(list) => Finding::no(format!("only {list}")),
    }
}

pub fn energy_preference() -> Finding {
    preference_in(Path::new("/"))
}

pub fn utilization_clamp() -> Finding {
    clamp_in(Path::new("/"))
}

fn available(actuator: Actuator) -> Finding {
    Finding::yes(actuator.caveat().unwrap_or_default())
}

/// `root` is `/` except in tests, as in the next function.
fn preference_in(root: &Path) -> Finding {
    let domains = cpufreq::domains(root).unwrap_or_default();
    let has_it = |domain: &FrequencyDomain| Actuator::Preference.is_available(root, domain);
    match &domains[..] {
        [] => Finding::no("no frequency domain"),
        domains if domains.iter().all(has_it) => available(Actuator::Preference),
        _ => Finding::no("a domain has none, or only one"),
    }
}

fn clamp_in(root: &Path) -> Finding {
    const FILE: &str = "proc/sys/kernel/sched_util_clamp_max";
    if !root.join(FILE).exists() {
        return Finding::no(format!("no /{FILE}"));
    }
    match &cpufreq::domains(root).unwrap_or_default()[..] {
        [] => Finding::no("no frequency domain").remedy("cpufreq, as above"),
        [domain] if Actuator::Clamp.is_available(root, domain) => available(Actuator::Clamp),
        [domain] => Finding::no(format!("the governor is {}, not schedutil", domain.governor))
            .remedy("the governor schedutil"),
        domains => Finding::no(format!("{} frequency domains, not one", domains.len()))
            .remedy("a machine with one frequency domain"),
    }
}

pub fn cycle_counters() -> Finding {
    match CycleEvent::CPU_CYCLES.is_available() {
        true => Finding::yes("cpu-cycles"),
        false => Finding::no("none"),
    }
}

pub fn energy_counters() -> Finding {
    match EnergySensors::find(Path::new("/")) {
        Some(sensors) => Finding::yes(sensors.source().name()),
        None => Finding::no("none"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_nonzero_address_means_visible() {
        assert!(shows_addresses("0000000000000000 A first\nffffffff81000000 T _text\n"));
        assert!(!shows_addresses("0000000000000000 A first\n0000000000000000 T _text\n"));
        assert!(!shows_addresses(""));
    }

    /// A machine with frequency domains of this governor and these energy preferences.
    fn machine(domains: u32, governor: &str, preferences: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for number in 0..domains {
            let folder = root.path().join(format!("sys/devices/system/cpu/cpufreq/policy{number}"));
            fs::create_dir_all(&folder).unwrap();
            let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
            write("related_cpus", &number.to_string());
            write("scaling_driver", "intel_pstate");
            write("scaling_governor", governor);
            write("cpuinfo_min_freq", "800000");
            write("cpuinfo_max_freq", "3000000");
            write("energy_performance_available_preferences", preferences);
        }
        let kernel = root.path().join("proc/sys/kernel");
        fs::create_dir_all(&kernel).unwrap();
        fs::write(kernel.join("sched_util_clamp_min"), "1024").unwrap();
        fs::write(kernel.join("sched_util_clamp_max"), "1024").unwrap();
        root
    }

    /// Doctor finds these actuators exactly where pacing uses them.
    #[test]
    fn actuators_are_found_where_they_can_be_used() {
        let of = |domains, governor, preferences| {
            let machine = machine(domains, governor, preferences);
            let (preference, clamp) = (preference_in(machine.path()), clamp_in(machine.path()));
            ((preference.have, clamp.have), clamp.detail)
        };
        let (yes, no) = (Some(true), Some(false));
        let all = "performance balance_performance power";
        assert_eq!(of(1, "schedutil", all).0, (yes, yes));
        assert_eq!(of(1, "schedutil", "performance").0, (no, yes));
        let expected = ((yes, no), "the governor is powersave, not schedutil".to_owned());
        assert_eq!(of(1, "powersave", all), expected);
        assert_eq!(of(2, "schedutil", all).1, "2 frequency domains, not one");
        assert_eq!(of(0, "", "").0, (no, no));
        let without = tempfile::tempdir().unwrap();
        assert!(clamp_in(without.path()).detail.starts_with("no /proc/sys/kernel"));
    }

    #[test]
    fn a_fast_clock_is_named_where_there_is_one() {
        assert!(faster_clock("hpet acpi_pm tsc\n").ends_with("clocksource=tsc"));
        assert!(faster_clock("hpet acpi_pm").contains("stable"));
    }
}
