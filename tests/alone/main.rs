//! Tests that need the machine for themselves, one after the other: figures that only a quiet machine
//! gives, and the cost lab, which lets no other gate be there. As root:
//!
//!     scripts/test live                                                  (among the others)
//!     cargo test --release --workspace --test alone -- --test-threads 1
//!     … --test alone -- --ignored --nocapture                            (the lab finds what is injected)
//!
//! Figures are ratios of what was measured in turns.

mod cost;
mod extensions;
#[expect(dead_code, unused_imports, reason = "what the live tests share is more than these need")]
#[path = "../live/harness/mod.rs"]
mod harness;
mod injected;
mod machine;
mod moves;
mod neighbours;
mod scale;
mod shares;
mod split;
mod toll;

use std::process::Command;

use serde_json::Value;

use harness::rows::Rows;

fn tollgate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(arguments);
    command
}

/// The document of `tollgate cost run` with nothing else gated.
fn lab(options: &str) -> Value {
    let _alone = Rows::all();
    let output = tollgate(&["cost", "run", "--json"]).args(options.split(' ')).output().expect("it starts");
    let document: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}; {}", String::from_utf8_lossy(&output.stderr)));
    assert!(document["error"].is_null(), "{}", document["error"]);
    document
}

/// What an arm costs more than nothing, in nanoseconds a unit of the one benchmark.
fn toll(document: &Value, arm: &str) -> f64 {
    let mut rows = document["rows"].as_array().expect("rows").iter();
    let row = rows.find(|row| row["arm"] == arm).expect("the arm ran");
    row["delta"].as_f64().expect("a number")
}
