//! Tasks that begin when a program reads an event of an input device.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::host_monitor::HostMonitor;
use crate::harness::job::folder;
use crate::harness::{Job, eventually, workload};

const RULE: &str = "\
[[rule]]
name = \"key\"
calls = \"read\"
descriptor = \"input\"
";

/// The device of the emulated keyboard.
fn keyboard() -> PathBuf {
    let devices = fs::read_dir("/sys/class/input").expect("there are input devices");
    let is_keyboard = |name: &str| {
        let path = format!("/sys/class/input/{name}/device/name");
        name.starts_with("event")
            && fs::read_to_string(path).is_ok_and(|name| name.contains("keyboard"))
    };
    let names = devices.map(|device| device.expect("an entry").file_name().into_string());
    let name = names.flatten().find(|name| is_keyboard(name)).expect("a keyboard");
    format!("/dev/input/{name}").into()
}

#[test]
fn each_key_is_a_type() {
    Job::of(workload("load-module /lib/modules/evdev.ko")).finish().success();
    let inputs = folder();
    let rules = inputs.path().join("rules.toml");
    fs::write(&rules, RULE).expect("the folder is ours");
    let options = format!("--levels rightspeed --rules {}", rules.display());
    let command = workload(&format!("read-keys {} 6", keyboard().display()));
    let running = Job::pace_watch(&options, command).start();
    let mut host = HostMonitor::open();
    eventually("six key presses", || {
        host.press("a");
        host.press("b");
        running.is_over()
    });
    let ran = running.finish().success();
    let document = ran.document("report");
    let types = document["pace"]["types"].as_array().expect("an array").iter();
    let mut names: Vec<_> = types.map(|one| one["name"].as_str().expect("a name")).collect();
    names.sort_unstable();
    // KEY_A and KEY_B of include/uapi/linux/input-event-codes.h
    assert_eq!(names, ["workloads: key (input, key 30)", "workloads: key (input, key 48)"]);
}
