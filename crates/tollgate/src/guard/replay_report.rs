//! The results of a replay, as JSON and as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::format::{count, duration, number_of, printable};

pub const SCHEMA: &str = "tollgate.guard.replay/1";

/// What is known of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Label {
    Normal,
    Attack,
    Unknown,
}

/// The report of a replay.
#[derive(Debug, Serialize)]
pub struct ReplayReport {
    pub schema: &'static str,
    pub trained: Trained,
    pub models: BTreeMap<&'static str, ModelSummary>,
    pub processes: Vec<ReplayedProcess>,
}

/// What the models were trained on.
#[derive(Debug, Serialize)]
pub struct Trained {
    pub processes: usize,
    pub calls: u64,
}

/// How well a model distinguishes attacks from normal runs. Rates are fractions of 1, and null if
/// there are no processes of that kind. The LFC is the number of anomalies among the latest 128
/// calls.
#[derive(Debug, Serialize)]
pub struct ModelSummary {
    /// Number of calls in the model's window.
    pub length: usize,
    /// Number of pairs or windows that the model has learned.
    pub size: usize,
    /// Area under the ROC curve.
    pub auc: Option<f64>,
    /// Fraction of attacks with a maximum LFC of at least `at`.
    pub detection: Option<f64>,
    /// Fraction of normal processes with a maximum LFC of at least `at`.
    pub false_alarms: Option<f64>,
    pub at: u32,
}

/// The result of one process in one model.
#[derive(Debug, Serialize)]
pub struct ReplayedProcess {
    pub source: String,
    pub pid: Option<u64>,
    pub label: Label,
    pub model: &'static str,
    pub calls: usize,
    pub anomalies: u64,
    pub max_lfc: u32,
    /// The first call that would have been delayed, counted from 1.
    pub delay_begins: Option<usize>,
    /// The delays of all calls together.
    pub delay_ns: u64,
}

/// The report as text, with at most `top` processes.
pub fn text(report: &ReplayReport, top: usize) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "trained on {} calls of {}",
        count(report.trained.calls),
        number_of(report.trained.processes, "process")
    );
    let of = |label: Label| {
        report.processes.iter().filter(|process| process.label == label).count()
            / report.models.len().max(1)
    };
    let _ = writeln!(
        out,
        "\n{:<12} {:>6} {:>9} {:>20} {:>20} {:>9}",
        "model", "calls", "knows", "attacks found", "false alarms", "ROC area"
    );
    for (name, model) in &report.models {
        let rate = |rate: Option<f64>, all: usize| {
            rate.map_or("-".into(), |rate| format!("{:.1} % of {all}", rate * 100.0))
        };
        let _ = writeln!(
            out,
            "{name:<12} {:>6} {:>9} {:>20} {:>20} {:>9}",
            model.length,
            count(model.size as u64),
            rate(model.detection, of(Label::Attack)),
            rate(model.false_alarms, of(Label::Normal)),
            model.auc.map_or("-".into(), |auc| format!("{auc:.3}"))
        );
    }
    let at = report.models.values().next().map_or(0, |model| model.at);
    let _ = writeln!(
        out,
        "attacks found and false alarms: processes with {at} or more anomalies among 128 calls \
        (LFC)"
    );
    processes(&mut out, report, top);
    out
}

/// Formats a delay, which can become very long because each anomaly doubles it.
fn long(ns: u64) -> String {
    const HOUR_NS: u64 = 3600 * 1_000_000_000;
    match ns / HOUR_NS {
        0 => duration(ns),
        hours @ 1..48 => format!("{hours} h"),
        hours => format!("{} days", count(hours / 24)),
    }
}

/// Lists the processes, the most anomalous first.
fn processes(out: &mut String, report: &ReplayReport, top: usize) {
    let mut flagged: Vec<_> =
        report.processes.iter().filter(|process| process.anomalies > 0).collect();
    flagged.sort_by_key(|process| std::cmp::Reverse((process.max_lfc, process.anomalies)));
    if flagged.is_empty() {
        let tested = report.processes.len() / report.models.len().max(1);
        let _ = writeln!(out, "\nno anomaly in {}", number_of(tested, "process"));
        return;
    }
    let _ = writeln!(
        out,
        "\n{:<8} {:<10} {:>9} {:>9} {:>7} {:>12} {:>10}  process",
        "label", "model", "calls", "anomalies", "LFC", "delayed from", "for"
    );
    for process in flagged.iter().take(top) {
        let label = match process.label {
            Label::Normal => "normal",
            Label::Attack => "attack",
            Label::Unknown => "",
        };
        let pid = process.pid.map_or(String::new(), |pid| format!(" {pid}"));
        let _ = writeln!(
            out,
            "{label:<8} {:<10} {:>9} {:>9} {:>7} {:>12} {:>10}  {}{pid}",
            process.model,
            count(process.calls as u64),
            count(process.anomalies),
            process.max_lfc,
            process
                .delay_begins
                .map_or(String::new(), |call| format!("call {}", count(call as u64))),
            long(process.delay_ns),
            printable(&process.source)
        );
    }
    if flagged.len() > top {
        let _ = writeln!(out, "… {} more", flagged.len() - top);
    }
}
