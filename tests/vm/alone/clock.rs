//! A clock that is not the processor's: nobody would change that of a machine that others use.

use std::fs;

use crate::harness::Job;

const SOURCES: &str = "/sys/devices/system/clocksource/clocksource0";

/// Puts the source of before back.
struct Source(String);

impl Source {
    fn change_to(name: &str) -> Self {
        let current = format!("{SOURCES}/current_clocksource");
        let before = fs::read_to_string(&current).expect("the kernel tells it");
        fs::write(&current, name).expect("root may change it");
        Self(before)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let _ = fs::write(format!("{SOURCES}/current_clocksource"), self.0.trim());
    }
}

#[test]
fn the_lab_warns_of_a_slow_clock_and_times_longer_batches() {
    let available =
        fs::read_to_string(format!("{SOURCES}/available_clocksource")).expect("the kernel tells them");
    let slow =
        available.split_whitespace().find(|name| *name != "tsc").expect("QEMU has a HPET or an ACPI timer");
    let changed = Source::change_to(slow);
    let lab = |options| {
        let job = Job::typed(&format!("cost run --bench getppid --arm off --budget 2s {options}"));
        let ran = job.with_all_rows().finish();
        assert!([0, 1, 3].contains(&ran.status), "{}", ran.err);
        ran
    };
    let (text, document) = (lab("").text(), lab("--json").json());
    drop(changed);
    assert!(text.contains(&format!("WARNING: the clock source is {slow}, not tsc")), "{text}");
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    let units = number(&document["counts"][0]["units"]);
    let ns = document["samples"][0]["ns"].as_array().expect("a list").iter().map(number);
    let batch_ns = ns.fold(f64::MAX, f64::min) * units;
    let clock_ns = number(&document["environment"]["clock_ns"]);
    // A thousand clock readings were asked for; an emulated processor is not always as fast.
    assert!(batch_ns > 300.0 * clock_ns, "{batch_ns} ns, and {clock_ns} ns to time it");
}
