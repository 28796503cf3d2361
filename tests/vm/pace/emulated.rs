//! Emulated processors, whose speeds vm/pstates.asl describes.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::harness::job::folder;
use crate::harness::{Finished, Job, Running, eventually, workload};

/// The target of the tasks.
pub const TARGET: f64 = 0.9;
const DEADLINE_MS: u64 = 100;

pub fn load_drivers() {
    for name in ["acpi-cpufreq", "cpufreq_userspace"] {
        Job::of(workload(&format!("load-module /lib/modules/{name}.ko"))).finish().success();
    }
}

pub fn policy(file: &str) -> String {
    let path = format!("/sys/devices/system/cpu/cpufreq/policy0/{file}");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
}

pub fn set_governor(name: &str) {
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
pub fn state() -> [String; 3] {
    ["scaling_governor", "scaling_min_freq", "scaling_max_freq"].map(policy)
}

/// The governors of all domains.
pub fn governors() -> Vec<String> {
    let folder = Path::new("/sys/devices/system/cpu/cpufreq");
    let files = (0..2).map(|number| folder.join(format!("policy{number}/scaling_governor")));
    files.filter_map(|file| fs::read_to_string(file).ok()).collect()
}

/// A `tollgate run --pace` of this number of tasks.
pub fn paced(tasks: u64) -> Job {
    // The files are read when the command starts.
    paced_with_store(tasks, &folder().keep())
}

/// The same, with the samples of earlier runs that are stored in a folder.
pub fn paced_with_store(tasks: u64, folder: &Path) -> Job {
    let rules = folder.join("rules.toml");
    let text =
        format!("[[type]]\nname = \"frame\"\ndeadline-ms = {DEADLINE_MS}\ntarget = {TARGET}\n");
    fs::write(&rules, text).expect("the folder is ours");
    let command = workload(&format!("slowed-tasks {tasks} {} {DEADLINE_MS} 1", DEADLINE_MS + 10));
    let mut job = Job::run(&format!("--pace {}", rules.display()), command);
    job.command.env("TOLLGATE_PACE_STORE", folder.join("store"));
    job
}

/// Waits until the speeds are in Tollgate's hands.
#[track_caller]
pub fn wait_until_paced(running: &Running) {
    eventually("the governor of pace", || {
        assert!(!running.is_over(), "{}", running.read("err"));
        policy("scaling_governor") == "userspace"
    });
}

/// The report of a command that has ended.
pub fn report(ran: &Finished) -> Value {
    let document = fs::read(ran.path("report")).expect("there is a report");
    serde_json::from_slice(&document).expect("JSON")
}
