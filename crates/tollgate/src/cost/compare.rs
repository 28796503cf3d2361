//! `tollgate cost compare`: compares the same arms in two runs, such as before and after a change.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use serde::Serialize;
use stats::interval::{median, median_interval};
use stats::sign::Verdict;

use super::analysis::{BlockTime, CONFIDENCE, ControlVerdict, Row, differences};
use super::arguments::CostCompareArguments;
use super::arms::{CONTROLS, OFF};
use super::report::{Conclusion, CostReport, SCHEMA};
use super::text::in_percent;
use crate::document_input;
use crate::format::shown_path;
use crate::output::Output;

/// The cost of an arm in the second run relative to the first.
#[derive(Debug, Serialize)]
struct ArmChange {
    benchmark: String,
    arm: String,
    ratio_before: f64,
    ratio_after: f64,
    change: f64,
    change_low: f64,
    change_high: f64,
    /// False with too few quads: the interval is as wide as it can be, and its confidence is lower.
    has_confidence: bool,
    /// Null for the floor.
    verdict: Option<Verdict>,
}

#[derive(Serialize)]
struct CostComparison {
    schema: &'static str,
    limit: f64,
    /// Doubts about either run, and what cannot be compared.
    warnings: Vec<String>,
    /// Differences between the two machines. If there are any, the arms may not be the only cause
    /// of a change.
    differences: Vec<String>,
    changes: Vec<ArmChange>,
}

/// Prints the changes, with verdicts against the limit.
pub fn compare(arguments: &CostCompareArguments) -> Result<ExitCode> {
    let mut output = Output::open(arguments.output.as_deref(), Output::Stdout)?;
    output.refuse_inputs([&arguments.before, &arguments.after])?;
    let (before, after) = (read(&arguments.before)?, read(&arguments.after)?);
    let comparison = CostComparison {
        schema: "tollgate.cost.compare/1",
        limit: arguments.limit,
        warnings: [("before", &before), ("after", &after)]
            .into_iter()
            .flat_map(own_warnings)
            .chain(only_in_one("before", &before, &after))
            .chain(only_in_one("after", &after, &before))
            .collect(),
        differences: machine_differences(&before, &after),
        changes: changes(&before, &after, arguments.limit),
    };
    if comparison.changes.is_empty() {
        bail!("the two runs have no arm and benchmark in common");
    }
    let body = if arguments.json {
        serde_json::to_string_pretty(&comparison)? + "\n"
    } else {
        text(&comparison)
    };
    output.write(&body)?;
    let has = |verdict| comparison.changes.iter().any(|change| change.verdict == Some(verdict));
    let failed = [&before, &after].iter().any(|run| run.controls_with(ControlVerdict::Failed) > 0);
    let conclusion = match (
        has(Verdict::Dearer) || failed,
        has(Verdict::Inconclusive) || !comparison.warnings.is_empty(),
    ) {
        (true, _) => Conclusion::DearerOrControlsFailed,
        (false, true) => Conclusion::Inconclusive,
        (false, false) => Conclusion::Within,
    };
    Ok(ExitCode::from(conclusion.status()))
}

fn read(path: &Path) -> Result<CostReport> {
    let report: CostReport = document_input::read(path, SCHEMA, "tollgate cost run --json")?;
    for block in &report.samples {
        if block.ns.is_empty() || median(&block.ns) <= 0.0 {
            bail!(
                "{}: a block of quad {} of {} has no time",
                shown_path(path),
                block.quad,
                block.benchmark
            );
        }
    }
    Ok(report)
}

fn own_warnings((name, run): (&str, &CostReport)) -> Vec<String> {
    let failed = run.controls_with(ControlVerdict::Failed);
    let controls = (failed > 0)
        .then(|| format!("CONTROLS FAILED in the run {name}: {failed} of {}", run.controls.len()));
    let partial = run.partial.then(|| format!("PARTIAL: the run {name} was not finished"));
    controls.into_iter().chain(partial).collect()
}

/// Rows that only one of the runs has.
fn only_in_one(name: &str, run: &CostReport, other: &CostReport) -> Vec<String> {
    let is_in = |row: &Row, run: &CostReport| {
        run.rows.iter().any(|other| other.benchmark == row.benchmark && other.arm == row.arm)
    };
    let rows = run.rows.iter().filter(|row| !is_in(row, other));
    rows.map(|row| format!("ONLY in the run {name}: {} {}", row.benchmark, row.arm)).collect()
}

fn machine_differences(before: &CostReport, after: &CostReport) -> Vec<String> {
    let of = |name: &str, a: &str, b: &str| {
        (a != b).then(|| format!("{name}: {a:?} before, {b:?} after"))
    };
    let (a, b) = (&before.environment, &after.environment);
    [
        of("processor", &a.cpu, &b.cpu),
        of("kernel", &a.kernel, &b.kernel),
        of("clock source", &a.clock_source, &b.clock_source),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Log ratios to `off`, one for each quad, by benchmark and arm.
fn logs(report: &CostReport) -> BTreeMap<(String, String), Vec<f64>> {
    type Quad<'a> = BTreeMap<&'a str, Vec<BlockTime>>;
    let mut quads: BTreeMap<(&str, usize), Quad> = BTreeMap::new();
    for block in &report.samples {
        let quad = quads.entry((&block.benchmark, block.quad)).or_default();
        quad.entry(&block.arm).or_default().push(BlockTime::of(&block.ns));
    }
    let mut all: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for ((benchmark, _), arms) in quads {
        let pair = |arm: &str| <[BlockTime; 2]>::try_from(arms.get(arm)?.as_slice()).ok();
        let Some(base) = pair(OFF) else { continue };
        for arm in arms.keys() {
            if let Some(own) = pair(arm) {
                let log = differences(&[own], &[base]).logs[0];
                all.entry((benchmark.to_owned(), (*arm).to_owned())).or_default().push(log);
            }
        }
    }
    all
}

fn changes(before: &CostReport, after: &CostReport, limit: f64) -> Vec<ArmChange> {
    // Rows without a verdict in the runs, such as the floor's, have none here either.
    let is_reference = |benchmark: &str, arm: &str| {
        let mut rows = before.rows.iter().chain(&after.rows);
        rows.any(|row| row.benchmark == benchmark && row.arm == arm && row.verdict.is_none())
    };
    let (before, after) = (logs(before), logs(after));
    // Each interval has this confidence, so that all intervals, two for each row, hold together at
    // `CONFIDENCE` (Bonferroni).
    let confidence = 1.0 - (1.0 - CONFIDENCE) / (2 * before.len()).max(1) as f64;
    let change = |((benchmark, arm), old): (&(String, String), &Vec<f64>)| {
        if arm == OFF || CONTROLS.contains(&arm.as_str()) {
            return None;
        }
        let new = after.get(&(benchmark.clone(), arm.clone()))?;
        let (old, new) = (median_interval(old, confidence)?, median_interval(new, confidence)?);
        let (low, high) = ((new.low - old.high).exp(), (new.high - old.low).exp());
        let is_sure = old.confidence >= confidence && new.confidence >= confidence;
        let verdict = match is_sure {
            _ if is_reference(benchmark, arm) => None,
            true if low > 1.0 + limit => Some(Verdict::Dearer),
            true if high < 1.0 + limit => Some(Verdict::Within),
            _ => Some(Verdict::Inconclusive),
        };
        Some(ArmChange {
            benchmark: benchmark.clone(),
            arm: arm.clone(),
            ratio_before: old.estimate.exp(),
            ratio_after: new.estimate.exp(),
            change: (new.estimate - old.estimate).exp(),
            change_low: low,
            change_high: high,
            has_confidence: is_sure,
            verdict,
        })
    };
    before.iter().filter_map(change).collect()
}

fn text(comparison: &CostComparison) -> String {
    let mut out = String::new();
    for warning in &comparison.warnings {
        let _ = writeln!(out, "{warning}");
    }
    for difference in &comparison.differences {
        let _ = writeln!(out, "WARNING: {difference}");
    }
    let _ = writeln!(
        out,
        "{:<16} {:<22} {:>9} {:>9} {:>26}  verdict",
        "benchmark", "arm", "before", "after", "change, %"
    );
    for change in &comparison.changes {
        let percent = |ratio: f64| format!("{:+.2}", (ratio - 1.0) * 100.0);
        let _ = writeln!(
            out,
            "{:<16} {:<22} {:>9} {:>9} {:>26}  {}",
            change.benchmark,
            change.arm,
            format!("{:.4}", change.ratio_before),
            format!("{:.4}", change.ratio_after),
            format!(
                "{} [{}, {}]",
                percent(change.change),
                percent(change.change_low),
                percent(change.change_high)
            ),
            match (change.has_confidence, change.verdict) {
                (false, _) => "too few quads".to_owned(),
                (true, None) => "(the floor)".to_owned(),
                (true, Some(verdict)) => verdict.to_string(),
            }
        );
    }
    let has_few = comparison.changes.iter().any(|change| !change.has_confidence);
    let _ = writeln!(
        out,
        "\nbefore, after: time as a multiple of the time with nothing on. Change: with its \
        interval; the intervals of {} hold together at 95 %. Limit: {} %.",
        if has_few { "rows with enough quads" } else { "all rows" },
        in_percent(comparison.limit)
    );
    if has_few {
        let _ = writeln!(
            out,
            "The intervals of rows with too few quads do not hold at 95 %: they are the range of \
            the samples."
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::measured::RawBlock;

    /// A run of so many quads in which an arm takes 10 % more than nothing.
    fn run(quads: usize) -> CostReport {
        let mut report: CostReport =
            serde_json::from_str(include_str!("fixtures/run.json")).expect("a report");
        let block = |quad, position, arm: &str, ns| RawBlock {
            quad,
            position,
            arm: arm.into(),
            benchmark: "getppid".into(),
            ns: vec![ns; 3],
            clock_ns: 0.0,
            loop_ns: 0.0,
            injected_ns: 0.0,
        };
        report.samples = (0..quads)
            .flat_map(|quad| {
                [(0, OFF, 100.0), (1, "lens", 110.0), (2, "lens", 110.0), (3, OFF, 100.0)]
                    .map(|(position, arm, ns)| block(quad, position, arm, ns))
            })
            .collect();
        report
    }

    #[test]
    fn few_quads_have_no_confidence() {
        let compared = |quads| CostComparison {
            schema: SCHEMA,
            limit: 0.02,
            warnings: Vec::new(),
            differences: Vec::new(),
            changes: changes(&run(quads), &run(20), 0.02),
        };
        let has_confidence = |comparison: &CostComparison| {
            let all: Vec<_> = comparison.changes.iter().map(|it| it.has_confidence).collect();
            assert_eq!(all.len(), 1);
            all[0]
        };
        let (few, many) = (compared(1), compared(20));
        assert!(!has_confidence(&few) && has_confidence(&many));
        let (few, many) = (text(&few), text(&many));
        assert!(few.contains("too few quads") && few.contains("do not hold at 95 %"), "{few}");
        assert!(!many.contains("few quads") && many.contains("within"), "{many}");
    }
}
