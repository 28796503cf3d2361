//! Speeds of emulated processors, which vm/pstates.asl describes. Only one Tollgate at a time may
//! set them.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::harness::job::{folder, kill};
use crate::harness::{Job, Running, eventually, workload};

/// A target is met if no more tasks miss the deadline than it allows, plus RightSpeed's precision.
const PRECISION: f64 = 0.015;
const TARGET: f64 = 0.9;
const DEADLINE_MS: u64 = 100;
const TASKS: u64 = 150;

fn load_drivers() {
    for name in ["acpi-cpufreq", "cpufreq_userspace"] {
        Job::of(workload(&format!("load-module /lib/modules/{name}.ko"))).finish().success();
    }
}

fn policy(file: &str) -> String {
    let path = format!("/sys/devices/system/cpu/cpufreq/policy0/{file}");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
}

fn set_governor(name: &str) {
    let folder = Path::new("/sys/devices/system/cpu/cpufreq");
    // A governor may have a folder beside the policies.
    for number in 0..2 {
        let file = folder.join(format!("policy{number}/scaling_governor"));
        if file.exists() {
            fs::write(file, name).expect("a governor");
        }
    }
}

/// The governor and the bounds of the first domain.
fn state() -> [String; 3] {
    ["scaling_governor", "scaling_min_freq", "scaling_max_freq"].map(policy)
}

/// The governors of all domains.
fn governors() -> Vec<String> {
    let folder = Path::new("/sys/devices/system/cpu/cpufreq");
    let files = (0..2).map(|number| folder.join(format!("policy{number}/scaling_governor")));
    files.filter_map(|file| fs::read_to_string(file).ok()).collect()
}

/// A `tollgate run --pace` of tasks, which are one second of work or more in sum.
fn paced(tasks: u64) -> Job {
    let inputs = folder();
    let rules = inputs.path().join("rules.toml");
    let text =
        format!("[[type]]\nname = \"frame\"\ndeadline-ms = {DEADLINE_MS}\ntarget = {TARGET}\n");
    fs::write(&rules, text).expect("the folder is ours");
    let command = workload(&format!("slowed-tasks {tasks} {} {DEADLINE_MS} 1", DEADLINE_MS + 10));
    // The file is read when the command starts.
    let inputs = inputs.keep();
    let mut job = Job::run(&format!("--pace {}", inputs.join("rules.toml").display()), command);
    job.command.env("TOLLGATE_PACE_STORE", inputs.join("store"));
    job
}

/// Waits until the speeds are in Tollgate's hands.
#[track_caller]
fn wait_until_paced(running: &Running) {
    eventually("the governor of pace", || {
        assert!(!running.is_over(), "{}", running.read("err"));
        policy("scaling_governor") == "userspace"
    });
}

#[test]
fn targets_are_met_at_lower_speeds() {
    load_drivers();
    let before = state();
    let ran = paced(TASKS).finish().success();
    assert_eq!(state(), before);
    let document = fs::read(ran.path("report")).expect("there is a report");
    let document: Value = serde_json::from_slice(&document).expect("JSON");
    let pacing = &document["pacing"];
    let kind = &pacing["types"][0];
    assert_eq!(
        (kind["name"].as_str(), kind["tasks"].as_u64()),
        (Some("workloads: frame"), Some(TASKS))
    );
    // The workload has seen the same.
    let said = ran.text();
    let numbers: Vec<u64> =
        said.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let (met, at_speed) = (numbers[0], &numbers[1..]);
    let missed = kind["missed"].as_u64().expect("a number");
    // It measures a little more than the task, so that a few tasks are late only for it.
    let late = TASKS - met;
    assert!(missed <= late && late - missed <= TASKS / 20, "{met} met, {missed} missed");
    let allowed = (1.0 - TARGET + PRECISION) * TASKS as f64;
    // Three standard deviations of the number of misses, if each task has this chance of one.
    let chance = 3.0 * (allowed * (TARGET - PRECISION)).sqrt();
    assert!((missed as f64) < allowed + chance, "{missed} missed: {pacing}");
    // Much of the work was done at lower speeds, as the register of the processor showed. How much
    // depends on how late speeds change, which the machine's host decides.
    assert!(at_speed[0] < at_speed.iter().sum::<u64>() / 4 * 3, "{at_speed:?}: {pacing}");
    let mhz = kind["mean_mhz"].as_f64().expect("a speed");
    assert!(mhz < 2700.0, "{pacing}");
}

/// The watchdog of a Tollgate process.
fn watchdog(running: &Running) -> u32 {
    running.child_running("tollgate-wdog")
}

#[test]
fn speeds_are_restored_after_a_kill() {
    load_drivers();
    let before = state();
    let running = paced(10_000).start();
    wait_until_paced(&running);
    running.signal(libc::SIGKILL);
    eventually("the system's governor", || state() == before);
}

#[test]
fn next_command_restores_speeds_after_a_kill_of_both() {
    load_drivers();
    let before = state();
    let running = paced(10_000).start();
    wait_until_paced(&running);
    let watchdog = watchdog(&running);
    running.signal(libc::SIGSTOP);
    kill(watchdog as i32, libc::SIGKILL);
    running.signal(libc::SIGKILL);
    eventually("the end", || running.is_over());
    assert_eq!(policy("scaling_governor"), "userspace");
    Job::from_command_line("pace restore").finish().success();
    assert_eq!(state(), before);
    Job::from_command_line("pace restore").finish().success();
}

#[test]
fn killed_watchdog_is_replaced() {
    load_drivers();
    let before = state();
    let running = paced(10_000).start();
    wait_until_paced(&running);
    let first = watchdog(&running);
    kill(first as i32, libc::SIGKILL);
    eventually("another watchdog", || watchdog(&running) != first);
    running.signal(libc::SIGKILL);
    eventually("the system's governor", || state() == before);
}

#[test]
fn governor_of_somebody_else_stands() {
    load_drivers();
    let before = policy("scaling_governor");
    let running = paced(10_000).start();
    wait_until_paced(&running);
    // Tollgate may be about to write a governor itself, which it cannot notice.
    eventually("a message", || {
        set_governor("performance");
        running.read("err").contains("policy0 is not paced any more")
    });
    running.signal(libc::SIGTERM);
    running.finish();
    assert_eq!(policy("scaling_governor"), "performance");
    set_governor(&before);
}

#[test]
fn second_pacer_is_refused() {
    load_drivers();
    let running = paced(10_000).start();
    wait_until_paced(&running);
    paced(1).finish().exits_with(125).says("already sets the speeds");
    running.signal(libc::SIGTERM);
    running.finish();
}

#[test]
fn processor_may_go_offline_and_return() {
    load_drivers();
    let before = governors();
    let running = paced(10_000).start();
    wait_until_paced(&running);
    let online = "/sys/devices/system/cpu/cpu1/online";
    fs::write(online, "0").expect("the processor can be removed");
    // The tasks go on, on the other processor.
    eventually("the next speeds", || policy("scaling_governor") == "userspace");
    fs::write(online, "1").expect("the processor can return");
    running.signal(libc::SIGTERM);
    running.finish();
    Job::from_command_line("pace restore").finish().success();
    assert_eq!(governors(), before);
}
