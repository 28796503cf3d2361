//! The text form of the document.

use std::fmt::Write as _;

use anyhow::Result;

use super::document::{Report, Toll};
use super::layout::{TextOptions, losses, more_rows};
use crate::format::{count, duration, short_command_line};
use crate::guard::guard_text;
use crate::lens::lens_text;
use crate::options::ResultOptions;
use crate::output::Output;
use crate::plugin::plugin_text;

/// Writes the document in the form that the options select.
pub fn print(document: &Report, options: &ResultOptions, output: &mut Output) -> Result<()> {
    let body = if options.json {
        serde_json::to_string_pretty(document)? + "\n"
    } else {
        text(document, &TextOptions { top: options.top })
    };
    output.write(&body)
}

fn text(document: &Report, layout: &TextOptions) -> String {
    let mut out = String::new();
    out += &losses(&document.losses);
    headline(&mut out, document);
    let has_others = document.guard.is_some() || !document.plugins.is_empty();
    if !document.lens.is_empty() || !has_others {
        lens_text(&mut out, &document.lens, layout);
    }
    in_progress(&mut out, document, layout);
    if let Some(guard) = &document.guard {
        guard_text(&mut out, guard, layout);
    }
    plugin_text(&mut out, &document.plugins, layout);
    let _ = writeln!(out);
    for note in &document.notes {
        let _ = writeln!(out, "note: {note}");
    }
    let _ = writeln!(out, "{}", toll_line(document));
    // Removes the padding of columns at the ends of lines.
    out.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn headline(out: &mut String, document: &Report) {
    let status = match document.exit {
        Some(status) => format!(", exit status {status}"),
        None => String::new(),
    };
    let _ = writeln!(
        out,
        "{}: {} elapsed{status}{}",
        short_command_line(&document.command),
        duration(document.elapsed_ns),
        cpu_used(document),
    );
}

fn cpu_used(document: &Report) -> String {
    match (document.user_ns, document.system_ns) {
        (Some(user), Some(system)) => {
            format!(", CPU {} user {} system", duration(user), duration(system))
        }
        _ => String::new(),
    }
}

fn in_progress(out: &mut String, document: &Report, layout: &TextOptions) {
    if document.in_progress.is_empty() {
        return;
    }
    let _ = writeln!(out, "\nstill in progress (not in the figures above)");
    for call in document.in_progress.iter().take(layout.top) {
        let since = call
            .ns
            .map_or_else(|| "for an unknown time".into(), |ns| format!("for {}", duration(ns)));
        let abi = if call.abi == "x86-64" { String::new() } else { format!(" ({})", call.abi) };
        let _ = writeln!(out, "thread {}: {}{abi} {since}", call.tid, call.name);
    }
    more_rows(out, document.in_progress.len(), layout.top, "calls in progress");
}

fn toll_line(document: &Report) -> String {
    let Toll { calls, ns_per_call, low, high, confidence, against } = &document.toll;
    let losses = if document.losses.is_empty() {
        "no losses"
    } else {
        "losses are listed in the first line"
    };
    let is_uncounted = *calls == 0 && !document.plugins.is_empty();
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
        "{seen}; {each:.0} ns a call{over} [{low:.0}, {high:.0}] ({:.0} % interval, getppid here \
        and now){in_all}",
        confidence * 100.0,
    )
}

#[cfg(test)]
mod tests {
    use snapbox::{assert_data_eq, file};

    use super::*;

    fn rendered(json: &str, top: usize) -> String {
        text(&serde_json::from_str(json).expect("a document"), &TextOptions { top })
    }

    // After an intended change, SNAPSHOTS=overwrite writes the new texts.

    #[test]
    fn a_report_has_everything_a_person_needs() {
        assert_data_eq!(
            rendered(include_str!("fixtures/report.json"), 4),
            file!["fixtures/report.txt"].raw()
        );
    }

    #[test]
    fn rows_have_tables_of_their_own() {
        assert_data_eq!(
            rendered(include_str!("fixtures/groups.json"), 20),
            file!["fixtures/groups.txt"].raw()
        );
    }
}
