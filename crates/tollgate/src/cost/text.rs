//! The text form of the report of a run.

use std::fmt::Write as _;

use stats::sequential::FIRST_LOOK;
use stats::sign::Verdict;

use super::analysis::{
    CONFIDENCE, Control, ControlKind, ControlVerdict, Row, StoppedBy, control_confidence,
};
use super::report::CostReport;
use crate::format::{count, duration, short_command_line};

/// The report as text.
pub fn text(report: &CostReport) -> String {
    let mut out = String::new();
    first_lines(&mut out, report);
    let mut benchmark = "";
    for row in &report.rows {
        if row.benchmark != benchmark {
            benchmark = &row.benchmark;
            let _ = writeln!(
                out,
                "\n{:<28} {:>24} {:>26} {:>20} {:>6}  verdict",
                format!("{} (ns a {})", row.benchmark, row.unit),
                "more, %",
                "more, ns",
                "floors",
                "quads"
            );
        }
        line(&mut out, row);
    }
    controls(&mut out, report);
    for left in &report.carry_over {
        let _ = writeln!(
            out,
            "note: the arm without an agent differs by {2} % [{3}, {4}] in {0} if it is measured \
            right after {1}; a longer --settle would reduce that",
            left.benchmark,
            left.after,
            percent(left.ratio),
            percent(left.ratio_low),
            percent(left.ratio_high)
        );
    }
    footer(&mut out, report);
    out.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn first_lines(out: &mut String, report: &CostReport) {
    let failed = report.controls_with(ControlVerdict::Failed);
    if failed > 0 {
        let _ = writeln!(
            out,
            "CONTROLS FAILED: {failed} of {}; the figures below cannot be trusted",
            report.controls.len()
        );
    }
    if let Some(error) = &report.error {
        let _ = writeln!(out, "PARTIAL: {error}");
    } else if report.partial {
        let _ = writeln!(out, "PARTIAL: interrupted; the figures are those measured until then");
    }
    for benchmark in &report.below_noise {
        let _ = writeln!(
            out,
            "NO FIGURES for {benchmark}: because of noise, nothing of an arm's time was left after \
            the times of the clock and the loop were subtracted"
        );
    }
    let losses = report.rows.iter().filter(|row| row.loss.is_some_and(|lost| lost > 0));
    let mut losses: Vec<_> = losses.map(|row| (row.arm.as_str(), row.loss.unwrap_or(0))).collect();
    losses.sort_unstable();
    losses.dedup();
    for (arm, lost) in losses {
        let _ = writeln!(out, "LOSSES: {arm} dropped {} events", count(lost));
    }
    let environment = &report.environment;
    let _ =
        writeln!(out, "{}: {:.0} s elapsed", short_command_line(&report.command), report.elapsed_s);
    let _ = writeln!(
        out,
        "{}, Linux {}, {} processors, clock source {}, load {}, stolen {} ms",
        environment.cpu,
        environment.kernel,
        environment.cpus,
        environment.clock_source,
        environment.load.split(' ').next().unwrap_or_default(),
        environment.steal_ticks * 10,
    );
    if environment.clock_source != "tsc" {
        let _ = writeln!(
            out,
            "WARNING: the clock source is {}, not tsc: its readings cost more",
            environment.clock_source
        );
    }
}

fn line(out: &mut String, row: &Row) {
    let digits = if row.delta.abs() < 100.0 { 1 } else { 0 };
    let floors = match (row.floors, row.floors_low, row.floors_high) {
        (Some(floors), Some(low), Some(high)) => {
            let digits = if floors.abs() < 100.0 { 2 } else { 0 };
            format!("{floors:.digits$} [{low:.digits$}, {high:.digits$}]")
        }
        _ => String::new(),
    };
    let _ = writeln!(
        out,
        "  {:<26} {:>24} {:>26} {:>20} {:>6}  {}{}",
        row.arm,
        format!("{} [{}, {}]", percent(row.ratio), percent(row.ratio_low), percent(row.ratio_high)),
        format!(
            "{:+.digits$} [{:+.digits$}, {:+.digits$}]",
            row.delta, row.delta_low, row.delta_high
        ),
        floors,
        row.quads,
        row.verdict.map_or("(the floor)".to_owned(), |verdict| verdict.to_string()),
        stop_reason(row),
    );
    let is_apart = row.mean_ratio_low > row.ratio_high || row.mean_ratio_high < row.ratio_low;
    if is_apart && row.confidence >= CONFIDENCE {
        let _ = writeln!(
            out,
            "    the mean is {} % [{}, {}], because of rare events, which a median does not show",
            percent(row.mean_ratio),
            percent(row.mean_ratio_low),
            percent(row.mean_ratio_high)
        );
    }
}

fn stop_reason(row: &Row) -> String {
    let why = match row.stopped_by {
        StoppedBy::Precision => "",
        StoppedBy::Time => ", time budget used up",
        StoppedBy::Runs => ", maximum number of quads",
        StoppedBy::Noise => ", too much noise",
        StoppedBy::Interrupt => ", interrupted",
    };
    match row.quads {
        _ if row.confidence < CONFIDENCE => {
            format!("{why}; intervals of {:.0} % only", row.confidence * 100.0)
        }
        ..FIRST_LOOK if row.verdict == Some(Verdict::Inconclusive) => {
            format!("{why}; too few quads")
        }
        _ => why.to_owned(),
    }
}

/// A fraction as one would type it in percent: "2", "0.5".
pub fn in_percent(part: f64) -> f64 {
    (part * 1e6).round() / 1e4
}

fn percent(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    let digits = match percent.abs() {
        ..100.0 => 2,
        ..1000.0 => 1,
        _ => 0,
    };
    format!("{percent:+.digits$}")
}

fn controls(out: &mut String, report: &CostReport) {
    let _ = writeln!(out, "\ncontrols (simultaneous intervals, %)");
    for kind in [ControlKind::Aa, ControlKind::Injected] {
        let of_kind: Vec<_> =
            report.controls.iter().filter(|control| control.kind == kind).collect();
        let passed =
            of_kind.iter().filter(|control| control.verdict == ControlVerdict::Passed).count();
        let name = match kind {
            ControlKind::Aa => "A/A: no difference",
            ControlKind::Injected => "injected: measured at its true size",
        };
        let _ = writeln!(out, "  {name}: {passed} of {} passed", of_kind.len());
        for control in of_kind.iter().filter(|control| control.verdict != ControlVerdict::Passed) {
            let Control {
                benchmark, ratio, ratio_low, ratio_high, confidence, truth, verdict, ..
            } = control;
            let few = if *confidence < control_confidence(report.controls.len()) {
                "; too few quads"
            } else {
                ""
            };
            let _ = writeln!(
                out,
                "    {}: {benchmark} {} [{}, {}], true value {}{few}",
                verdict.name(),
                percent(*ratio),
                percent(*ratio_low),
                percent(*ratio_high),
                percent(*truth)
            );
        }
    }
}

fn footer(out: &mut String, report: &CostReport) {
    let _ = writeln!(
        out,
        "\nMedians over quads, each with its own 95 % interval (sign test). \
         The verdicts compare with the\n\
         limit of {} %. Their 5 % chance of an error is for all rows (Holm) and all looks \
         together. The\n\
         clock ({}) and the loop ({:.2} ns) are subtracted. Seed {}.",
        in_percent(report.limit),
        duration(report.environment.clock_ns.round().max(0.0) as u64),
        report.environment.loop_ns,
        report.seed
    );
}

#[cfg(test)]
mod tests {
    use snapbox::{assert_data_eq, file};

    use super::*;

    // After an intended change, SNAPSHOTS=overwrite writes the new text.
    #[test]
    fn text_of_a_failed_run() {
        let report = serde_json::from_str(include_str!("fixtures/run.json")).expect("a report");
        assert_data_eq!(text(&report), file!["fixtures/run.txt"].raw());
    }
}
