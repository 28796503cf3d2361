//! How well targets are met, by a clock that counts instructions (`scripts/vm -i`): nothing depends
//! on how busy the host is. The work of a task takes as long as it would at the speed in the
//! register of the emulated processor.

use super::super::emulated::{TARGET, load_drivers, paced, report, state};

/// A target is met if no more tasks miss the deadline than it allows, plus RightSpeed's precision.
const PRECISION: f64 = 0.015;

/// Paces tasks, and checks how many met the deadline, and at which speeds they ran.
fn check_targets(tasks: u64) {
    load_drivers();
    let before = state();
    let ran = paced(tasks).finish().success();
    assert_eq!(state(), before);
    let document = report(&ran);
    let pacing = &document["pacing"];
    let kind = &pacing["types"][0];
    assert_eq!(kind["tasks"].as_u64(), Some(tasks));
    // The workload has seen the same.
    let said = ran.text();
    let numbers: Vec<u64> =
        said.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let (met, at_speed) = (numbers[0], &numbers[1..]);
    let missed = kind["missed"].as_u64().expect("a number");
    println!("{missed} of {tasks} missed, at speeds {at_speed:?}: {pacing}");
    // It measures a little more than the task, so that a few tasks are late only for it.
    let late = tasks - met;
    assert!(missed <= late && late - missed <= tasks / 100 + 1, "{met} met, {missed} missed");
    let allowed = (1.0 - TARGET + PRECISION) * tasks as f64;
    // Three standard deviations of the number of misses, if each task has this chance of one.
    let chance = 3.0 * (allowed * (TARGET - PRECISION)).sqrt();
    assert!((missed as f64) < allowed + chance, "{missed} missed: {pacing}");
}

#[test]
fn targets_are_met_at_lower_speeds() {
    check_targets(150);
}

#[test]
fn long_run_meets_the_target() {
    check_targets(10_000);
}
