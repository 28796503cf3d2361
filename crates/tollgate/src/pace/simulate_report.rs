//! The result of a simulation, as JSON and as text.

use std::cmp::Reverse;
use std::fmt::Write as _;

use ::pace::WorkCurve;
use serde::Serialize;

use super::level_set::LevelRow;
use super::policy::{PolicyName, PolicyRow};
use super::report_format::{interval, milliseconds, or_dash, significant, tenths};
use super::verdict::PaceVerdict;
use crate::format::{count, number_of, printable};
use crate::report::more_rows;

/// A period is called shorter than the deadline below this share of it, so that rounding does not
/// decide.
const SHORTER: f64 = 0.99;

pub const SCHEMA: &str = "tollgate.pace.simulation/1";

#[derive(Debug, Serialize)]
pub struct SimulateReport {
    pub schema: &'static str,
    /// In the order of the command line.
    pub sets: Vec<LevelSetReport>,
}

#[derive(Debug, Serialize)]
pub struct LevelSetReport {
    pub name: Option<String>,
    pub source: Option<String>,
    pub idle_watts: f64,
    pub summary: String,
    pub levels: Vec<LevelRow>,
    pub types: Vec<TypeReport>,
}

#[derive(Debug, Serialize)]
pub struct TypeReport {
    pub name: String,
    pub deadline_ms: f64,
    pub target: f64,
    /// The number of tasks that trained the policies.
    pub trained: usize,
    /// The number of tasks that are judged.
    pub judged: usize,
    /// Null without a task.
    pub work: Option<Work>,
    /// The median time between the beginnings of two tasks. Null with fewer tasks.
    pub median_period_ms: Option<f64>,
    pub estimator: String,
    pub verdict: PaceVerdict,
    pub policies: Vec<PolicyRow>,
}

/// Quantiles of the work of all tasks, in cycles.
#[derive(Debug, Serialize)]
pub struct Work {
    pub median: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

impl Work {
    pub fn of(curve: &WorkCurve) -> Self {
        let [median, p95, p99, max] = [0.5, 0.95, 0.99, 1.0].map(|share| curve.quantile(share));
        Self { median, p95, p99, max }
    }
}

/// The report as text, with at most `top` types on each set of levels: those with the most tasks,
/// in this order.
pub fn simulation_text(report: &SimulateReport, top: usize) -> String {
    let mut out = String::new();
    for (index, set) in report.sets.iter().enumerate() {
        if index > 0 {
            out += "\n";
        }
        let name = printable(set.name.as_deref().unwrap_or("levels"));
        let _ = writeln!(out, "{name}: {}", set.summary);
        let mut types: Vec<_> = set.types.iter().collect();
        types.sort_by_key(|kind| Reverse(kind.trained + kind.judged));
        types.iter().take(top).for_each(|kind| type_text(&mut out, kind));
        if types.len() > top {
            out += "\n";
            more_rows(&mut out, types.len(), top, "types");
        }
    }
    out += "
The energy of a task is modelled from the power of the levels. It is what the task uses beyond an
idle processor. Figures in brackets are 95 % intervals. A policy meets the target if its share of
missed tasks is at most 1.5 percentage points above what the target allows.
";
    out
}

fn type_text(out: &mut String, kind: &TypeReport) {
    let _ = writeln!(
        out,
        "\n{} (deadline {} ms for {} % of the tasks; {} to train, {} to judge)",
        printable(&kind.name),
        milliseconds(kind.deadline_ms),
        percent(kind.target),
        number_of(kind.trained, "task"),
        count(kind.judged as u64)
    );
    if let Some(work) = &kind.work {
        let [median, p95, p99, max] = [work.median, work.p95, work.p99, work.max].map(million);
        let _ = writeln!(
            out,
            "work, million cycles: median {median}, 95 % {p95}, 99 % {p99}, maximum {max}\n\
             estimated by {}",
            kind.estimator
        );
    }
    if kind.judged > 0 {
        policies_text(out, kind);
        overlaps_text(out, kind);
    }
    let _ = writeln!(out, "{}", kind.verdict.sentence());
}

fn policies_text(out: &mut String, kind: &TypeReport) {
    let _ = writeln!(
        out,
        "{:<13} {:>12} {:>26} {:>26}",
        "policy", "modelled mJ", "% of fastest", "% missed"
    );
    for row in &kind.policies {
        let per_task = row.modelled_energy_j * 1e3 / kind.judged as f64;
        let _ = writeln!(
            out,
            "{:<13} {:>12} {:>26} {:>26}",
            row.policy.name(),
            significant(per_task),
            or_dash(row.modelled_of_fastest, interval),
            or_dash(row.missed_share, interval),
        );
    }
}

/// How many of the tasks overlapped others, if any did, and why.
fn overlaps_text(out: &mut String, kind: &TypeReport) {
    let overlapped = |policy| {
        let row = kind.policies.iter().find(|row| row.policy == policy);
        row.map_or(0, |row| row.overlapped)
    };
    let shown = [PolicyName::Fastest, PolicyName::Pace, PolicyName::Clairvoyant];
    if shown.into_iter().all(|policy| overlapped(policy) == 0) {
        return;
    }
    let [fastest, pace, clairvoyant] = shown.map(|policy| {
        format!("{} %", tenths(overlapped(policy) as f64 * 1e2 / kind.judged as f64))
    });
    let _ = writeln!(
        out,
        "While another task was unfinished: {fastest} of the tasks with fastest, {pace} with pace, \
        {clairvoyant} with clairvoyant."
    );
    if let Some(period) =
        kind.median_period_ms.filter(|period| *period < kind.deadline_ms * SHORTER)
    {
        let _ = writeln!(
            out,
            "The tasks begin every {} ms (median), which is less than the deadline: a slower task \
            delays the next ones, and clairvoyant is no bound.",
            significant(period)
        );
    }
}

fn percent(share: f64) -> String {
    let rounded = (share * 1e4).round() / 1e2;
    rounded.to_string()
}

fn million(cycles: f64) -> String {
    significant(cycles / 1e6)
}
