//! Tasks that begin when a program reads an event of an input device. These tests are alone,
//! because the monitor answers to one test at a time.

use std::fs;
use std::path::PathBuf;

use super::super::host_monitor::HostMonitor;
use crate::harness::job::folder;
use crate::harness::{Job, eventually, workload};

const RULE: &str = "\
[[rule]]
name = \"key\"
calls = \"read\"
descriptor = \"input\"
";

/// The input device whose name contains this, once there is one.
fn device(name: &str) -> PathBuf {
    let mut found = None;
    eventually(name, || {
        let devices = fs::read_dir("/sys/class/input").expect("there are input devices");
        let is_it = |device: &str| {
            let path = format!("/sys/class/input/{device}/device/name");
            device.starts_with("event")
                && fs::read_to_string(path).is_ok_and(|text| text.contains(name))
        };
        let names = devices.map(|device| device.expect("an entry").file_name().into_string());
        found = names.flatten().find(|device| is_it(device));
        found.is_some()
    });
    format!("/dev/input/{}", found.expect("just found")).into()
}

/// The types of the tasks of a program that reads a device until it has read this number of key
/// presses. `input` makes events.
fn types(name: &str, presses: u32, mut input: impl FnMut(&mut HostMonitor)) -> Vec<String> {
    for module in ["evdev", "psmouse"] {
        let command = workload(&format!("load-module /lib/modules/{module}.ko"));
        Job::of(command).finish().success();
    }
    let inputs = folder();
    let rules = inputs.path().join("rules.toml");
    fs::write(&rules, RULE).expect("the folder is ours");
    let options = format!("--levels rightspeed --rules {}", rules.display());
    let command = workload(&format!("read-keys {} {presses}", device(name).display()));
    let running = Job::pace_watch(&options, command).start();
    let mut host = HostMonitor::open();
    eventually("the key presses", || {
        input(&mut host);
        running.is_over()
    });
    let document = running.finish().success().document("report");
    let types = document["pace"]["types"].as_array().expect("an array").iter();
    let mut names: Vec<_> =
        types.map(|one| one["name"].as_str().expect("a name").to_owned()).collect();
    names.sort_unstable();
    names
}

// The numbers are those of include/uapi/linux/input-event-codes.h.

#[test]
fn each_key_is_a_type() {
    let names = types("keyboard", 6, |host| {
        host.press("a");
        host.press("b");
    });
    // KEY_A and KEY_B
    assert_eq!(names, ["workloads: key (input, key 30)", "workloads: key (input, key 48)"]);
}

#[test]
fn buttons_and_motions_are_types() {
    let names = types("Mouse", 3, |host| {
        host.move_mouse();
        host.click();
    });
    // BTN_LEFT
    assert_eq!(names, ["workloads: key (input, key 272)", "workloads: key (input, motion)"]);
}
