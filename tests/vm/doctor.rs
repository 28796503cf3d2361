//! The findings of `tollgate doctor` on a kernel that has nearly everything.

use serde_json::Value;

use crate::harness::doctor::{doctor, has};

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
        "file iterator",
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
