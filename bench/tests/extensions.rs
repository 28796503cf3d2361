//! Two extensions in one gate cost less than the sum of each alone: they share the programs, the thread's
//! state and the clock. Needs root, and no other Tollgate at work.

use std::process::Command;

use serde_json::Value;

const ROUNDS: &str = "7";

/// Medians over rounds of what an arm costs more than bare, in nanoseconds a getppid call.
fn toll(document: &Value, arm: &str) -> f64 {
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

#[test]
fn two_extensions_cost_less_than_the_sum_of_each() {
    let arms = ["lens --no-sites", "tally", "lens + tally"];
    let mut bench = Command::new(env!("CARGO_BIN_EXE_bench"));
    bench.args(["--json", "--exercise", "getppid", "--rounds", ROUNDS]);
    for arm in arms {
        bench.args(["--arm", arm]);
    }
    let output = bench.output().expect("the bench starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let [lens, tally, both] = arms.map(|arm| toll(&document, arm));
    eprintln!("lens {lens:.0} ns, tally {tally:.0} ns, both {both:.0} ns");
    assert!(both < lens + tally, "both {both:.0} ns, lens {lens:.0} ns + tally {tally:.0} ns");
    // Tally alone pays for the programs and the look-up; beside lens it pays for neither.
    assert!(both - lens < tally / 2.0, "beside lens, tally costs {:.0} of its {tally:.0} ns", both - lens);
}
