//! A clock source other than the processor's, which a test should not set on a machine that others
//! use.

use std::fs;

use crate::harness::Job;

const SOURCES: &str = "/sys/devices/system/clocksource/clocksource0";

/// Restores the original clock source.
struct ClockSourceGuard(String);

impl ClockSourceGuard {
    fn change_to(name: &str) -> Self {
        let current = format!("{SOURCES}/current_clocksource");
        let before = fs::read_to_string(&current).expect("the kernel has it");
        fs::write(&current, name).expect("root may change it");
        Self(before)
    }
}

impl Drop for ClockSourceGuard {
    fn drop(&mut self) {
        let _ = fs::write(format!("{SOURCES}/current_clocksource"), self.0.trim());
    }
}

#[test]
fn the_lab_warns_of_a_slow_clock() {
    let available = fs::read_to_string(format!("{SOURCES}/available_clocksource"))
        .expect("the kernel has them");
    let slow = available
        .split_whitespace()
        .find(|name| *name != "tsc")
        .expect("QEMU has a HPET or an ACPI timer");
    let changed = ClockSourceGuard::change_to(slow);
    let ran = Job::from_command_line("cost run --bench getppid --arm off --budget 2s")
        .with_row_lock_exclusive()
        .finish();
    drop(changed);
    assert!([0, 1, 3].contains(&ran.status), "{}", ran.err);
    let text = ran.text();
    assert!(text.contains(&format!("WARNING: the clock source is {slow}, not tsc")), "{text}");
}
