//! `tollgate lens diff`: compares two reports side by side.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::report::{Call, LensReport};
use crate::document_input;
use crate::format::{count, duration, short_command_line};
use crate::options::ResultOptions;
use crate::output::Output;
use crate::report::{Header, SCHEMA};

/// The part of a report that is compared.
#[derive(Deserialize)]
struct Report {
    #[serde(flatten)]
    header: Header,
    #[serde(flatten)]
    lens: LensReport,
}

/// One call in both reports. `wall_ns` and `blocked_ns` are totals. `mean_ns` is the wall time per
/// call, because two runs seldom make the same number of calls.
#[derive(Debug, Serialize)]
struct Difference {
    name: String,
    abi: String,
    count: [u64; 2],
    wall_ns: [u64; 2],
    mean_ns: [Option<f64>; 2],
    blocked_ns: [u64; 2],
    p99_ns: [Option<u64>; 2],
}

/// The comparison in its JSON form. Each array has the value before and the value after.
#[derive(Serialize)]
struct ReportComparison {
    schema: &'static str,
    before: Vec<String>,
    after: Vec<String>,
    elapsed_ns: [u64; 2],
    calls: Vec<Difference>,
}

/// Prints the comparison of two reports of `run` or `lens`.
pub fn diff(before: &Path, after: &Path, result: &ResultOptions) -> Result<ExitCode> {
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    let comparison = compare(&read(before)?, &read(after)?);
    let body = if result.json {
        serde_json::to_string_pretty(&comparison)? + "\n"
    } else {
        text(&comparison, result.top)
    };
    output.write(&body)?;
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> Result<Report> {
    document_input::read(path, SCHEMA, "tollgate run --json")
}

fn compare(before: &Report, after: &Report) -> ReportComparison {
    type Pair<'a> = [Option<&'a Call>; 2];
    let mut pairs: BTreeMap<(&str, &str), Pair> = BTreeMap::new();
    for (side, report) in [before, after].into_iter().enumerate() {
        for call in &report.lens.calls {
            pairs.entry((&call.name, &call.abi)).or_default()[side] = Some(call);
        }
    }
    let mut calls: Vec<_> = pairs
        .into_iter()
        .map(|((name, abi), pair)| {
            let values = |part: fn(&Call) -> u64| pair.map(|call| call.map_or(0, part));
            Difference {
                name: name.into(),
                abi: abi.into(),
                count: values(|call| call.count),
                wall_ns: values(|call| call.wall_ns),
                mean_ns: pair.map(|call| call.and_then(mean)),
                blocked_ns: values(|call| call.blocked_ns),
                p99_ns: pair.map(|call| call.map(|call| call.p99_ns)),
            }
        })
        .collect();
    calls.sort_by_key(|call| std::cmp::Reverse(call.wall_ns[0].abs_diff(call.wall_ns[1])));
    ReportComparison {
        schema: "tollgate.lens.diff/1",
        before: before.header.command.clone(),
        after: after.header.command.clone(),
        elapsed_ns: [before.header.elapsed_ns, after.header.elapsed_ns],
        calls,
    }
}

fn mean(call: &Call) -> Option<f64> {
    let timed = call.count - call.denied;
    (timed > 0).then(|| call.wall_ns as f64 / timed as f64)
}

fn text(comparison: &ReportComparison, top: usize) -> String {
    let mut out = String::new();
    let [before, after] = comparison.elapsed_ns.map(duration);
    let _ = writeln!(out, "before: {} ({before})", short_command_line(&comparison.before));
    let _ = writeln!(out, "after:  {} ({after})", short_command_line(&comparison.after));
    let _ = writeln!(
        out,
        "\n{:<18} {:>23}  {:>9} {:>9} {:>10}  {:>19}  {:>19}",
        "call", "count", "wall", "wall", "change", "a call", "p99"
    );
    for call in comparison.calls.iter().take(top) {
        let pair = |values: [String; 2]| values.join(" > ");
        let known = |ns: Option<u64>| ns.map_or("-".into(), duration);
        let each = call.mean_ns.map(|mean| known(mean.map(|ns| ns.round() as u64)));
        let _ = writeln!(
            out,
            "{:<18} {:>23}  {:>9} {:>9} {:>10}  {:>19}  {:>19}",
            call.name,
            pair(call.count.map(count)),
            duration(call.wall_ns[0]),
            duration(call.wall_ns[1]),
            change(call.wall_ns),
            pair(each),
            pair(call.p99_ns.map(known)),
        );
    }
    let all = comparison.calls.len();
    if all > top {
        let _ = writeln!(
            out,
            "… and {} more calls (--top {})",
            comparison.calls.len() - top,
            comparison.calls.len()
        );
    }
    out
}

fn change([before, after]: [u64; 2]) -> String {
    match (before, after) {
        (0, 0) => "0 %".into(),
        (0, _) => "new".into(),
        (_, 0) => "gone".into(),
        _ => format!("{:+.1} %", (after as f64 / before as f64 - 1.0) * 100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_signed() {
        assert_eq!(change([100, 150]), "+50.0 %");
        assert_eq!(change([200, 100]), "-50.0 %");
        assert_eq!(change([0, 5]), "new");
        assert_eq!(change([5, 0]), "gone");
    }
}
