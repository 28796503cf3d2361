//! Emulated processors, whose speeds vm/pstates.asl describes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::job::{folder, stop};
use crate::harness::{Job, Running, eventually, workload};

/// The target of the tasks.
pub const TARGET: f64 = 0.9;
pub const DEADLINE_MS: u64 = 100;
/// The fastest speed of vm/pstates.asl.
pub const FASTEST_KHZ: u64 = 3_000_000;

pub fn load_drivers() {
    for name in ["acpi-cpufreq", "cpufreq_userspace"] {
        Job::of(workload(&format!("load-module /lib/modules/{name}.ko"))).finish().success();
    }
}

/// The numbers of the frequency domains.
fn domains() -> impl Iterator<Item = u32> {
    // A governor may have a folder beside the policies.
    (0..2).filter(|number| path(*number, "").exists())
}

fn path(domain: u32, file: &str) -> PathBuf {
    format!("/sys/devices/system/cpu/cpufreq/policy{domain}/{file}").into()
}

/// The content of a file of a domain.
pub fn setting(domain: u32, file: &str) -> String {
    let path = path(domain, file);
    let text = fs::read_to_string(&path);
    text.unwrap_or_else(|error| panic!("{path:?}: {error}")).trim().to_owned()
}

/// The same for the first domain.
pub fn policy(file: &str) -> String {
    setting(0, file)
}

pub fn set_governor(name: &str) {
    for domain in domains() {
        fs::write(path(domain, "scaling_governor"), name).expect("a governor");
    }
}

/// The governor and the bounds of a domain.
pub type DomainState = [String; 3];

/// The state of a domain.
pub fn state_of(domain: u32) -> DomainState {
    ["scaling_governor", "scaling_min_freq", "scaling_max_freq"].map(|file| setting(domain, file))
}

/// The states of all domains.
pub fn state() -> Vec<DomainState> {
    domains().map(state_of).collect()
}

/// The domains that this actuator has slowed down. `before` is the state before.
pub fn slowed_domains(actuator: &str, before: &[DomainState]) -> Vec<u32> {
    domains().filter(|domain| is_slowed(*domain, actuator, before)).collect()
}

/// Whether this actuator has slowed down a domain.
pub fn is_slowed(domain: u32, actuator: &str, before: &[DomainState]) -> bool {
    let [governor, min, max] = state_of(domain);
    match actuator {
        "bounds" => min == max && max != before[domain as usize][2],
        _ => {
            let khz = setting(domain, "scaling_setspeed").parse();
            governor == "userspace" && khz.is_ok_and(|khz: u64| khz < FASTEST_KHZ)
        }
    }
}

/// The domain of a processor.
pub fn domain_of(cpu: usize) -> u32 {
    let is_its = |domain: &u32| {
        setting(*domain, "affected_cpus").split_whitespace().any(|other| other == cpu.to_string())
    };
    domains().find(is_its).expect("a domain")
}

/// The seed of tests for which the work of the tasks does not matter.
pub const SEED: u64 = 1;

/// A `tollgate run --pace` of this number of tasks.
pub fn paced(tasks: u64) -> Job {
    paced_command(&slowed_tasks(tasks, SEED))
}

/// The same, with one actuator.
pub fn paced_by(actuator: &str, tasks: u64) -> Job {
    paced_with_store(actuator, tasks, &folder().keep())
}

/// The same, with the samples of earlier runs that are stored in a folder.
pub fn paced_with_store(actuator: &str, tasks: u64, folder: &Path) -> Job {
    paced_with_seed(actuator, tasks, SEED, folder)
}

/// The same, with work that depends on a seed. A test of targets needs another seed for each run
/// that learns from earlier ones.
pub fn paced_with_seed(actuator: &str, tasks: u64, seed: u64, folder: &Path) -> Job {
    paced_workload(&slowed_tasks(tasks, seed), &format!("actuator = \"{actuator}\"\n"), folder)
}

/// A `tollgate run --pace` of another workload with tasks of the same type.
pub fn paced_command(arguments: &str) -> Job {
    paced_workload(arguments, "", &folder().keep())
}

/// The arguments of a workload with this number of tasks.
pub fn slowed_tasks(tasks: u64, seed: u64) -> String {
    format!("slowed-tasks {tasks} {} {DEADLINE_MS} {seed}", DEADLINE_MS + 10)
}

/// The folder must exist until the command has started.
fn paced_workload(arguments: &str, keys: &str, folder: &Path) -> Job {
    let rules = write_rules(keys, folder);
    let mut job = Job::run(&format!("--pace {}", rules.display()), workload(arguments));
    job.command.env("TOLLGATE_PACE_STORE", folder.join("store"));
    job
}

/// A daemon that paces the tasks of all programs, with its files in this folder. `keys` are the
/// first lines of its rules.
pub fn pacing_daemon(keys: &str, folder: &Path) -> Job {
    let rules = write_rules(keys, folder);
    pace_command(&format!("daemon --metrics 127.0.0.1:0 --pace {}", rules.display()), folder)
}

/// A command that sends a request to the daemon with its files in this folder.
pub fn pace_command(arguments: &str, folder: &Path) -> Job {
    let mut job = Job::from_command_line(arguments);
    job.command.env("TOLLGATE_SOCKET", folder.join("socket"));
    job.command.env("TOLLGATE_PACE_STORE", folder.join("store"));
    job
}

/// Writes the file of rules. `keys` are its first lines.
fn write_rules(keys: &str, folder: &Path) -> PathBuf {
    let rules = folder.join("rules.toml");
    let text = format!(
        "{keys}[[type]]\nname = \"frame\"\ndeadline-ms = {DEADLINE_MS}\ntarget = {TARGET}\n"
    );
    fs::write(&rules, text).expect("the folder is ours");
    rules
}

/// Waits until Tollgate paces the first domain.
#[track_caller]
pub fn wait_until_paced(running: &Running) {
    eventually("the governor of pace", || {
        assert!(!running.is_over(), "{}", running.read("err"));
        policy("scaling_governor") == "userspace"
    });
}

/// Waits until a task of a `tollgate run --pace` by this actuator runs at a slower speed.
#[track_caller]
pub fn wait_until_slowed(running: &Running, actuator: &str, before: &[DomainState]) {
    eventually("a slower speed", || {
        assert!(!running.is_over(), "{}", running.read("err"));
        !slowed_domains(actuator, before).is_empty()
    });
}

/// Stops Tollgate at a moment at which `find` finds something. Returns what it finds then.
#[track_caller]
pub fn stop_when<T>(running: &Running, what: &str, find: impl Fn() -> Option<T>) -> T {
    let mut found = None;
    eventually(&format!("a stop at {what}"), || {
        eventually(what, || {
            assert!(!running.is_over(), "{}", running.read("err"));
            find().is_some()
        });
        stop(running.pid());
        found = find();
        if found.is_none() {
            running.signal(libc::SIGCONT);
        }
        found.is_some()
    });
    found.expect("it was found")
}

/// Stops Tollgate at a moment at which a domain has a slower speed. Returns the domain.
#[track_caller]
pub fn stop_while_slowed(running: &Running, actuator: &str, before: &[DomainState]) -> u32 {
    stop_when(running, "a slower speed", || slowed_domains(actuator, before).first().copied())
}
