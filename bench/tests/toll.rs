//! The toll that `tollgate run` prints is the one that the bench measures, within 20 %. Needs root, and no
//! other Tollgate at work; the tollgate beside the bench is the one that is tried.

mod common;

use std::path::Path;
use std::process::Command;

use common::{bench, toll};
use serde_json::Value;

/// One after the other several times, so that both see the same moods of the machine.
const TURNS: usize = 5;
const ROUNDS: u32 = 3;
const AGREEMENT: f64 = 0.2;

fn printed() -> f64 {
    let tollgate = Path::new(env!("CARGO_BIN_EXE_bench")).with_file_name("tollgate");
    assert!(
        tollgate.exists(),
        "{} is missing: `cargo build --workspace --bins` makes it",
        tollgate.display()
    );
    let output =
        Command::new(tollgate).args(["run", "--json", "--", "true"]).output().expect("tollgate starts");
    let report: Value = serde_json::from_slice(&output.stderr).expect("JSON");
    assert_eq!(report["toll"]["against"], "detached", "another Tollgate is at work");
    report["toll"]["ns_per_call"].as_f64().expect("a toll")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn what_run_prints_is_what_the_bench_measures() {
    let pairs: Vec<_> = (0..TURNS).map(|_| (printed(), toll(&bench(ROUNDS, &["lens"]), "lens"))).collect();
    let (run, bench) =
        (median(pairs.iter().map(|p| p.0).collect()), median(pairs.iter().map(|p| p.1).collect()));
    eprintln!("run prints {run:.0} ns a call, the bench measures {bench:.0}");
    assert!(
        (run / bench - 1.0).abs() <= AGREEMENT,
        "run prints {run:.0} ns a call, the bench measures {bench:.0}"
    );
}
