//! `tollgate cost list`: lists arms and benchmarks.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use kernel::benchmark::BENCHMARKS;
use serde_json::json;

use super::built_in::built_in;
use crate::output::Output;

/// Prints the benchmarks and the built-in arms.
pub fn list(as_json: bool) -> Result<ExitCode> {
    let text = if as_json { serde_json::to_string_pretty(&document())? + "\n" } else { text() };
    Output::Stdout.write(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn document() -> serde_json::Value {
    let benchmarks: Vec<_> = BENCHMARKS
        .iter()
        .map(|benchmark| {
            json!({
                "name": benchmark.name,
                "unit": benchmark.unit,
                "stresses": benchmark.stresses
            })
        })
        .collect();
    let arms: Vec<_> = built_in()
        .into_iter()
        .map(|(arm, what)| json!({ "name": arm.name, "what": what }))
        .collect();
    json!({ "schema": "tollgate.cost.list/1", "benchmarks": benchmarks, "arms": arms })
}

fn text() -> String {
    let mut out =
        String::from("benchmarks (name, unit; NAME:free is not pinned to one processor)\n");
    for benchmark in BENCHMARKS {
        let _ =
            writeln!(out, "  {:<23} {:<12} {}", benchmark.name, benchmark.unit, benchmark.stresses);
    }
    out += "\narms (others come from --arm-file)\n";
    for (arm, what) in built_in() {
        let _ = writeln!(out, "  {:<23} {what}", arm.name);
    }
    out += "\nEvery run also has two controls: A/A (a second arm with nothing on) and injected \
        (nothing on, but\na busy loop of 2 % of the benchmark's time).\n";
    out
}
