//! The lab finds an injected cost and finds none where none was injected, also beside a process
//! that occupies a processor.

use std::process::{Child, Command};

use serde_json::Value;

use crate::lab;

const RUNS: usize = 20;
const FOUND_AT_LEAST: usize = 19;

struct CpuHog(Child);

impl CpuHog {
    fn start() -> Self {
        Self(
            Command::new("/bin/sh")
                .args(["-c", "while :; do :; done"])
                .spawn()
                .expect("there is a shell"),
        )
    }
}

impl Drop for CpuHog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn control<'a>(document: &'a Value, kind: &str) -> &'a Value {
    let mut controls = document["controls"].as_array().expect("controls").iter();
    controls.find(|control| control["kind"] == kind).expect("it is in each report")
}

fn print_control(kind: &str, control: &Value) {
    let percent = |name: &str| (control[name].as_f64().unwrap_or(f64::NAN) - 1.0) * 100.0;
    eprintln!(
        "  {kind}: {:+.2} % [{:+.2}, {:+.2}], true value {:+.2}: {}",
        percent("ratio"),
        percent("ratio_low"),
        percent("ratio_high"),
        percent("truth"),
        control["verdict"]
    );
}

/// Runs the arm `off` only: this test is about that arm and the controls.
#[track_caller]
fn finds_what_is_injected(budget: &str) {
    let mut found = 0;
    let mut false_alarms = 0;
    for run in 0..RUNS {
        let document = lab(&format!("--bench getppid --arm off --budget {budget}"));
        let (aa, injected) = (control(&document, "aa"), control(&document, "injected"));
        eprintln!("run {}, {:.0} s", run + 1, document["elapsed_s"].as_f64().unwrap_or_default());
        print_control("A/A", aa);
        print_control("injected", injected);
        found += usize::from(injected["verdict"] == "passed");
        false_alarms += usize::from(aa["verdict"] == "failed");
    }
    assert!(found >= FOUND_AT_LEAST, "found in {found} of {RUNS} runs");
    assert_eq!(false_alarms, 0, "A/A was called different in {false_alarms} of {RUNS} runs");
}

#[test]
#[ignore = "takes minutes: make bench"]
fn injected_two_percent_is_detected() {
    finds_what_is_injected("2m");
}

#[test]
#[ignore = "takes minutes: make bench"]
fn injected_two_percent_is_detected_beside_a_busy_loop() {
    let _hog = CpuHog::start();
    finds_what_is_injected("4m");
}
