//! Tests that need the machine for themselves and run one by one: measurements that only a quiet
//! machine gives, and the cost lab, which refuses to run beside another gate. As root:
//!
//!     scripts/test live                                        (together with the live tests)
//!     cargo test --release --workspace --test alone -- --test-threads 1
//!     … --test alone -- --ignored --nocapture                  (the lab finds an injected cost)
//!
//! The results are ratios of times that are measured alternately.

mod combined_cost;
mod cpu_shares;
#[expect(dead_code, unused_imports, reason = "what the live tests share is more than these need")]
#[path = "../live/harness/mod.rs"]
mod harness;
mod injected_control;
mod lab;
mod machine_total;
mod migrations;
mod noisy_neighbour;
mod printed_toll;
mod scale;
mod time_split;

use std::process::Command;

use serde_json::Value;

use harness::table_locks::Rows;

fn tollgate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(arguments);
    command
}

/// Returns the document of a `tollgate cost run` while no other task is gated.
fn lab(options: &str) -> Value {
    let _alone = Rows::exclusive();
    let output =
        tollgate(&["cost", "run", "--json"]).args(options.split(' ')).output().expect("it starts");
    let document: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}; {}", String::from_utf8_lossy(&output.stderr)));
    assert!(document["error"].is_null(), "{}", document["error"]);
    document
}

/// Returns what an arm costs more than `off`, in nanoseconds per unit of the only benchmark.
fn toll(document: &Value, arm: &str) -> f64 {
    let mut rows = document["rows"].as_array().expect("rows").iter();
    let row = rows.find(|row| row["arm"] == arm).expect("the arm ran");
    row["delta"].as_f64().expect("a number")
}
