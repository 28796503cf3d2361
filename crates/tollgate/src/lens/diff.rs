//! `tollgate lens diff`: compares two reports side by side.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::call_table::shown_name;
use super::report::{Call, LensReport, RingRequest};
use crate::document_input;
use crate::fitted_table::{FittedTable, TableColumn};
use crate::format::{count, duration, short_command_line};
use crate::options::ResultOptions;
use crate::output::Output;
use crate::report::{Header, SCHEMA, TextOptions, laid_out, more_rows};

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
    output.refuse_inputs([before, after])?;
    let comparison = compare(&read(before)?, &read(after)?);
    let body = if result.json {
        serde_json::to_string_pretty(&comparison)? + "\n"
    } else {
        text(&comparison, &TextOptions { top: result.top, columns: output.columns() })
    };
    output.write(&body)?;
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> Result<Report> {
    document_input::read(path, SCHEMA, "tollgate run --json")
}

fn compare(before: &Report, after: &Report) -> ReportComparison {
    type Pair<'a> = [Option<&'a Call>; 2];
    let [calls_before, calls_after] = [before, after].map(calls_and_requests);
    let mut pairs: BTreeMap<(&str, &str), Pair> = BTreeMap::new();
    for (side, report) in [&calls_before, &calls_after].into_iter().enumerate() {
        for call in report {
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

/// The rows of a report's tables.
fn calls_and_requests(report: &Report) -> Vec<Call> {
    let requests = report.lens.io_uring.iter().map(RingRequest::as_call);
    report.lens.calls.iter().cloned().chain(requests).collect()
}

fn mean(call: &Call) -> Option<f64> {
    let timed = call.count - call.denied;
    (timed > 0).then(|| call.wall_ns as f64 / timed as f64)
}

const COLUMNS: [TableColumn<Difference>; 5] = [
    TableColumn {
        title: "wall before > after",
        rank: 0,
        gap: 1,
        cell: |call| pair(call.wall_ns.map(duration)),
    },
    TableColumn { title: "change", rank: 1, gap: 1, cell: |call| change(call.wall_ns) },
    TableColumn { title: "count", rank: 3, gap: 2, cell: |call| pair(call.count.map(count)) },
    TableColumn {
        title: "a call",
        rank: 2,
        gap: 2,
        cell: |call| pair(call.mean_ns.map(mean_time)),
    },
    TableColumn { title: "p99", rank: 4, gap: 2, cell: |call| pair(call.p99_ns.map(known_time)) },
];

fn pair(values: [String; 2]) -> String {
    values.join(" > ")
}

fn mean_time(ns: Option<f64>) -> String {
    known_time(ns.map(|ns| ns.round() as u64))
}

fn known_time(ns: Option<u64>) -> String {
    ns.map_or("-".into(), duration)
}

fn text(comparison: &ReportComparison, layout: &TextOptions) -> String {
    let mut out = String::new();
    let [before, after] = comparison.elapsed_ns.map(duration);
    let _ = writeln!(out, "before: {} ({before})", short_command_line(&comparison.before));
    let _ = writeln!(out, "after:  {} ({after})", short_command_line(&comparison.after));
    let name = |call: &Difference| shown_name(&call.name, &call.abi);
    let calls = comparison.calls.iter().take(layout.top);
    let titles = ["call"].into_iter();
    let table = FittedTable::new(&COLUMNS, name, titles, calls.clone(), layout.columns);
    let _ = writeln!(out);
    table.titles(&mut out, "call");
    calls.for_each(|call| table.row(&mut out, call));
    more_rows(&mut out, comparison.calls.len(), layout.top, "calls");
    table.left_out(&mut out);
    laid_out(&out, layout.columns)
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
    use crate::lens::report::IO_URING;

    #[test]
    fn tables_fit_a_terminal() {
        let call = |name: &str| Difference {
            name: name.into(),
            abi: "i386".into(),
            count: [1_234_567, 1_234_567],
            wall_ns: [9_990_000, 1_000_000],
            mean_ns: [Some(9_990.0), None],
            blocked_ns: [0, 0],
            p99_ns: [Some(9_990), None],
        };
        let comparison = ReportComparison {
            schema: "",
            before: vec!["before".into(); 20],
            after: vec!["a\u{1b}[2J".into()],
            elapsed_ns: [1, 1],
            calls: vec![call("futex_wait\u{1b}\n"), call("read")],
        };
        let shown = text(&comparison, &TextOptions { top: 1, columns: Some(80) });
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        assert!(!shown.contains('\u{1b}'), "{shown}");
        for part in [
            "futex_wait\\x1b\\n (i386)",
            "9.99 ms > 1.00 ms",
            "(no room for ",
            "… 1 of 2 calls are not shown (--top 2 shows all)",
        ] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
        let all = text(&comparison, &TextOptions { top: 2, columns: None });
        assert!(!all.contains("no room") && !all.contains("not shown"), "{all}");
    }

    #[test]
    fn requests_are_compared_as_calls_are() {
        let report = |count: u64| -> Report {
            let json = include_str!("fixtures/io_uring.json");
            let mut json: serde_json::Value = serde_json::from_str(json).expect("JSON");
            json["io_uring"][1]["count"] = count.into();
            serde_json::from_value(json).expect("a report")
        };
        let comparison = compare(&report(1), &report(7));
        let is_nop =
            |call: &&Difference| (call.name.as_str(), call.abi.as_str()) == ("NOP", IO_URING);
        let nop = comparison.calls.iter().find(is_nop).expect("a row");
        assert_eq!(nop.count, [1, 7]);
        assert!(
            text(&comparison, &TextOptions { top: 20, columns: None }).contains("io_uring: NOP")
        );
    }

    #[test]
    fn changes_are_signed() {
        assert_eq!(change([100, 150]), "+50.0 %");
        assert_eq!(change([200, 100]), "-50.0 %");
        assert_eq!(change([0, 5]), "new");
        assert_eq!(change([5, 0]), "gone");
    }
}
