//! The text form of a report.

use std::fmt::Write as _;

use anyhow::{Result, bail};

use super::layout::{TextOptions, laid_out, losses};
use super::session_report::{Header, Report, Toll};
use crate::format::{count, duration, printable, short_command_line};
use crate::options::ResultOptions;
use crate::output::Output;

/// Writes the report in the form that the options select.
///
/// # Errors
/// If it cannot be written, or if another file of the session could not.
pub fn print(report: &Report, options: &ResultOptions, output: &mut Output) -> Result<()> {
    let body = if options.json {
        serde_json::to_string_pretty(&report.to_json()?)? + "\n"
    } else {
        text(report, &TextOptions { top: options.top, columns: output.columns() })
    };
    output.write(&body)?;
    if report.has_unwritten_file {
        bail!("a file could not be written, as the report's notes say");
    }
    Ok(())
}

/// The report as text.
pub fn text(report: &Report, layout: &TextOptions) -> String {
    let mut out = losses(&report.losses);
    for line in report.sections.iter().filter_map(|section| section.first_line()) {
        let _ = writeln!(out, "{line}");
    }
    headline(&mut out, &report.header);
    let is_only = report.sections.len() == 1;
    for section in &report.sections {
        section.text(&mut out, layout, is_only);
    }
    let _ = writeln!(out);
    for note in &report.notes {
        let _ = writeln!(out, "note: {}", printable(note));
    }
    let _ = writeln!(out, "{}", toll_line(report));
    laid_out(&out, layout.columns)
}

fn headline(out: &mut String, header: &Header) {
    let status = match header.exit {
        Some(status) => format!(", exit status {status}"),
        None => String::new(),
    };
    let _ = writeln!(
        out,
        "{}: {} elapsed{status}{}",
        short_command_line(&header.command),
        duration(header.elapsed_ns),
        cpu_used(header),
    );
}

fn cpu_used(header: &Header) -> String {
    match (header.user_ns, header.system_ns) {
        (Some(user), Some(system)) => {
            format!(", CPU {} user {} system", duration(user), duration(system))
        }
        _ => String::new(),
    }
}

fn toll_line(report: &Report) -> String {
    let Toll { calls, ns_per_call, low, high, confidence, against } = &report.toll;
    let losses =
        if report.losses.is_empty() { "no losses" } else { "losses are listed in the first line" };
    let is_uncounted =
        *calls == 0 && report.sections.iter().any(|section| section.calls_seen().is_none());
    let seen = if is_uncounted {
        format!("toll: {losses}")
    } else {
        format!("toll: {} calls seen, {losses}", count(*calls))
    };
    let (Some(each), Some(low), Some(high), Some(confidence)) =
        (ns_per_call, low, high, confidence)
    else {
        return format!("{seen}; not measured");
    };
    let total = (each * *calls as f64).max(0.0) as u64;
    let over = if against == "bystander" {
        " more than a bystander's call (another session keeps the gate attached)"
    } else {
        ""
    };
    let in_all = if is_uncounted { String::new() } else { format!(", {} in all", duration(total)) };
    format!(
        "{seen}; {each:.0} ns a call{over} [{low:.0}, {high:.0}] ({:.0} % interval, measured \
        with getppid on this machine){in_all}",
        confidence * 100.0,
    )
}
