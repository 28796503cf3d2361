//! The toll that `tollgate run` prints agrees with the lab's measurement to within 20 %.

use serde_json::{Value, json};

use crate::harness::table_locks::Rows;
use crate::{lab, toll, tollgate};

/// Both are measured alternately, so that variations of the machine's speed affect them alike.
const ROUNDS: usize = 5;
const AGREEMENT: f64 = 0.2;
/// Other work on a shared machine occasionally spoils an attempt; a wrong toll spoils all.
const ATTEMPTS: usize = 3;

fn printed() -> f64 {
    let _alone = Rows::exclusive();
    let output = tollgate(&["run", "--json", "--", "true"]).output().expect("tollgate starts");
    let report: Value = serde_json::from_slice(&output.stderr).expect("JSON");
    assert_eq!(report["toll"]["against"], "detached", "another Tollgate is at work");
    assert_eq!(report["losses"], json!({}));
    report["toll"]["ns_per_call"].as_f64().expect("a toll")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn printed_toll_matches_the_lab() {
    let round = |_| (printed(), toll(&lab("--bench getppid --arm lens --budget 3s"), "lens"));
    let agree = |_| {
        let (run, lab): (Vec<_>, Vec<_>) = (0..ROUNDS).map(round).unzip();
        let (run, lab) = (median(run), median(lab));
        eprintln!("run prints {run:.0} ns a call, the lab measures {lab:.0}");
        (run / lab - 1.0).abs() <= AGREEMENT
    };
    assert!((0..ATTEMPTS).any(agree), "no attempt agrees within {AGREEMENT}");
}
