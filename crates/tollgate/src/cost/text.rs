//! The document as a person reads it.

use std::fmt::Write as _;

use super::analysis::{Control, Row, StoppedBy};
use super::document::Document;
use crate::format::{count, duration, title};

pub fn text(document: &Document) -> String {
    let mut out = String::new();
    first_lines(&mut out, document);
    let mut benchmark = "";
    for row in &document.rows {
        if row.benchmark != benchmark {
            benchmark = &row.benchmark;
            let _ = writeln!(
                out,
                "\n{:<24} {:>22} {:>26} {:>20} {:>6}  verdict",
                format!("{} (ns a {})", row.benchmark, row.unit),
                "more, %",
                "more, ns",
                "floors",
                "quads"
            );
        }
        line(&mut out, row);
    }
    controls(&mut out, document);
    for left in &document.carry_over {
        let _ = writeln!(
            out,
            "note: {} right after {}: {} % [{}, {}]; a longer settle time would keep arms apart",
            left.benchmark,
            left.after,
            percent(left.ratio),
            percent(left.ratio_low),
            percent(left.ratio_high)
        );
    }
    footer(&mut out, document);
    out.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn first_lines(out: &mut String, document: &Document) {
    let failed = document.controls_with("failed");
    if failed > 0 {
        let _ = writeln!(
            out,
            "CONTROLS FAILED: {failed} of {}; the figures below cannot be trusted",
            document.controls.len()
        );
    }
    if let Some(error) = &document.error {
        let _ = writeln!(out, "PARTIAL: {error}");
    } else if document.partial {
        let _ = writeln!(out, "PARTIAL: interrupted; what was measured until then");
    }
    let losses = document.rows.iter().filter(|row| row.loss.is_some_and(|lost| lost > 0));
    let mut told: Vec<_> = losses.map(|row| (row.arm.as_str(), row.loss.unwrap_or(0))).collect();
    told.dedup();
    for (arm, lost) in told {
        let _ = writeln!(out, "LOSSES: {arm} dropped {} events", count(lost));
    }
    let environment = &document.environment;
    let _ = writeln!(out, "{}: {:.0} s elapsed", title(&document.command), document.elapsed_s);
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
        (Some(floors), Some(low), Some(high)) => format!("{floors:.2} [{low:.2}, {high:.2}]"),
        _ => String::new(),
    };
    let _ = writeln!(
        out,
        "  {:<22} {:>22} {:>26} {:>20} {:>6}  {}{}",
        row.arm,
        format!("{} [{}, {}]", percent(row.ratio), percent(row.ratio_low), percent(row.ratio_high)),
        format!("{:+.digits$} [{:+.digits$}, {:+.digits$}]", row.delta, row.delta_low, row.delta_high),
        floors,
        row.quads,
        row.verdict.as_deref().unwrap_or("(the floor)"),
        stopped(row),
    );
    if row.mean_ratio_low > row.ratio_high || row.mean_ratio_high < row.ratio_low {
        let _ = writeln!(
            out,
            "    by means {} % [{}, {}]: what happens seldom is not in the medians",
            percent(row.mean_ratio),
            percent(row.mean_ratio_low),
            percent(row.mean_ratio_high)
        );
    }
}

fn stopped(row: &Row) -> &'static str {
    match row.stopped_by {
        StoppedBy::Precision => "",
        StoppedBy::Time => ", time was up",
        StoppedBy::Runs => ", most quads",
        StoppedBy::Interrupt => ", interrupted",
    }
}

fn percent(ratio: f64) -> String {
    format!("{:+.2}", (ratio - 1.0) * 100.0)
}

fn controls(out: &mut String, document: &Document) {
    let _ = writeln!(out, "\ncontrols (simultaneous intervals, %)");
    for kind in ["aa", "injected"] {
        let of_kind: Vec<_> = document.controls.iter().filter(|control| control.kind == kind).collect();
        let passed = of_kind.iter().filter(|control| control.verdict == "passed").count();
        let name = if kind == "aa" { "A/A: no difference" } else { "injected: found as large as it is" };
        let _ = writeln!(out, "  {name}: {passed} of {} passed", of_kind.len());
        for control in of_kind.iter().filter(|control| control.verdict != "passed") {
            let Control { benchmark, ratio, ratio_low, ratio_high, truth, verdict, .. } = control;
            let _ = writeln!(
                out,
                "    {verdict}: {benchmark} {} [{}, {}], in truth {}",
                percent(*ratio),
                percent(*ratio_low),
                percent(*ratio_high),
                percent(*truth)
            );
        }
    }
}

fn footer(out: &mut String, document: &Document) {
    let _ = writeln!(
        out,
        "\nMedians over quads with 95 % intervals (sign test), each by itself; verdicts against {:.4} % hold for all rows together\n\
         (Holm), at every look. Clock {} and loop {:.2} ns are subtracted. Seed {}.",
        document.limit * 100.0,
        duration(document.environment.clock_ns.round().max(0.0) as u64),
        document.environment.loop_ns,
        document.seed
    );
}
