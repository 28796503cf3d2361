//! Running the bench on getppid, and reading its samples.

use std::process::Command;

use serde_json::Value;

pub fn bench(rounds: u32, arms: &[&str]) -> Value {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_bench"));
    bench.args(["--json", "--exercise", "getppid", "--rounds", &rounds.to_string()]);
    for arm in arms {
        bench.args(["--arm", arm]);
    }
    let output = bench.output().expect("the bench starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Medians over rounds of what an arm costs more than bare, in nanoseconds a getppid call.
pub fn toll(document: &Value, arm: &str) -> f64 {
    let of = |name: &str| {
        let arms = document["arms"].as_array().expect("arms");
        let index = arms.iter().position(|arm| arm == name).expect("the arm ran");
        let rounds = document["samples_ns"][index].as_array().expect("samples");
        rounds.iter().map(|times| times[0].as_f64().expect("a time")).collect::<Vec<_>>()
    };
    let mut tolls: Vec<_> = of(arm).iter().zip(of("bare")).map(|(own, bare)| own - bare).collect();
    tolls.sort_by(f64::total_cmp);
    tolls[tolls.len() / 2]
}
