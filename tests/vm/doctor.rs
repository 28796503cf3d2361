//! The findings of `tollgate doctor` on a kernel that has nearly everything.

use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::tollgate;

fn doctor(arguments: &[&str]) -> Output {
    Command::new(tollgate()).arg("doctor").args(arguments).output().expect("tollgate starts")
}

fn has(report: &Value, name: &str) -> bool {
    let capabilities = report["capabilities"].as_array().expect("capabilities");
    let found = capabilities.iter().find(|capability| capability["name"] == name);
    found.unwrap_or_else(|| panic!("no capability {name}"))["have"] == true
}

#[test]
fn run_is_possible() {
    let output = doctor(&["--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["can_run"], true, "{report:#}");
    assert_eq!(output.status.code(), Some(0));
    for name in [
        "BPF LSM",
        "cgroup programs that set the errno",
        "holds before calls take effect",
        "fentry programs",
        "kprobes",
        "socket storage",
        "socket iterator",
        "cgroup v2",
        "cpu controller",
    ] {
        assert!(has(&report, name), "{name} is missing: {report:#}");
    }
}

#[test]
fn text_has_all_capabilities() {
    let output = doctor(&[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("`tollgate run` can work here"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}
