//! The result of a simulation, as JSON and as text.

use std::fmt::Write as _;

use ::pace::WorkCurve;
use serde::Serialize;

use super::level_set::LevelRow;
use super::policy::PolicyName;
use super::report_format::{ReportedInterval, interval, or_dash, significant};
use crate::format::{count, printable};

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
    pub estimator: String,
    /// Null without a judged task.
    pub verdict: Option<PaceVerdict>,
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

/// The energy and the misses of a policy. All energy is modelled from the power of the levels.
#[derive(Debug, Serialize)]
pub struct PolicyRow {
    pub policy: PolicyName,
    /// The energy of all judged tasks beyond that of an idle processor.
    pub modelled_energy_j: f64,
    /// The energy as a fraction of that of the fastest speed.
    pub of_fastest: Option<ReportedInterval>,
    /// The number of judged tasks that missed their deadlines.
    pub missed: u64,
    pub missed_share: Option<ReportedInterval>,
}

/// The result of a comparison of pace with the cheapest other policy that meets the target. This is
/// neither `four-steps`, which is another way to make the same schedule, nor `clairvoyant`, which
/// no real policy can be.
#[derive(Debug, Serialize)]
pub struct PaceVerdict {
    #[serde(rename = "verdict")]
    pub kind: VerdictKind,
    /// The other policy.
    pub against: Option<PolicyName>,
    /// The energy of pace as a fraction of that of the other policy.
    pub of_other: Option<ReportedInterval>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerdictKind {
    /// Pace needs less energy.
    Less,
    /// Pace needs more energy.
    More,
    /// The interval of the difference contains 0.
    NoDifference,
    /// Pace misses more deadlines than the target allows.
    MissesTarget,
    /// No policy meets the target, not even the fastest speed.
    NoneMeets,
}

/// The report as text.
pub fn simulation_text(report: &SimulateReport) -> String {
    let mut out = String::new();
    for (index, set) in report.sets.iter().enumerate() {
        if index > 0 {
            out += "\n";
        }
        let name = printable(set.name.as_deref().unwrap_or("levels"));
        let _ = writeln!(out, "{name}: {}", set.summary);
        for kind in &set.types {
            type_text(&mut out, kind);
        }
    }
    out += "
The energy is modelled from the power of the levels. It is what the tasks use beyond an idle
processor. Figures in brackets are 95 % intervals. A policy meets the target if its share of missed
tasks is at most 1.5 percentage points above what the target allows.
";
    out
}

fn type_text(out: &mut String, kind: &TypeReport) {
    let _ = writeln!(
        out,
        "\n{} (deadline {} ms for {} % of the tasks; {} tasks to train, {} to judge)",
        printable(&kind.name),
        kind.deadline_ms,
        percent(kind.target),
        count(kind.trained as u64),
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
    if kind.judged == 0 {
        let _ = writeln!(out, "no task to judge: all tasks of this type are in the first half");
        return;
    }
    let _ = writeln!(
        out,
        "{:<13} {:>12} {:>26} {:>26}",
        "policy", "mJ a task", "% of fastest", "% missed"
    );
    for row in &kind.policies {
        let per_task = row.modelled_energy_j * 1e3 / kind.judged as f64;
        let _ = writeln!(
            out,
            "{:<13} {:>12} {:>26} {:>26}",
            row.policy.name(),
            significant(per_task),
            or_dash(row.of_fastest, interval),
            or_dash(row.missed_share, interval),
        );
    }
    if let Some(verdict) = &kind.verdict {
        let _ = writeln!(out, "{}", verdict.sentence());
    }
}

impl PaceVerdict {
    fn sentence(&self) -> String {
        let (Some(against), Some(ratio)) = (self.against, self.of_other) else {
            return "No policy meets the target, not even the fastest speed.".into();
        };
        let other = format!("{}, the cheapest other policy that meets the target", against.name());
        let difference = |sign: f64| {
            let [a, b, c] = [ratio.estimate, ratio.low, ratio.high]
                .map(|value| format!("{:.1}", sign * (value - 1.0) * 100.0 + 0.0));
            if sign < 0.0 { format!("{a} % [{c}, {b}]") } else { format!("{a} % [{b}, {c}]") }
        };
        match self.kind {
            VerdictKind::Less => {
                format!("Pace needs {} less energy than {other}.", difference(-1.0))
            }
            VerdictKind::More => {
                format!("Pace needs {} more energy than {other}.", difference(1.0))
            }
            VerdictKind::MissesTarget => {
                format!("Pace misses more deadlines than the target allows, unlike {other}.")
            }
            VerdictKind::NoDifference | VerdictKind::NoneMeets => {
                format!("The difference from {other}, is not clear: {}.", difference(1.0))
            }
        }
    }
}

fn percent(share: f64) -> String {
    let rounded = (share * 1e4).round() / 1e2;
    rounded.to_string()
}

fn million(cycles: f64) -> String {
    significant(cycles / 1e6)
}
