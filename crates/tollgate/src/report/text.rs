//! The text form of the document.

use std::fmt::Write as _;

use anyhow::Result;

use super::document::{Call, Report, RowReport, SlowCall, Toll};
use super::layout::{TextOptions, losses, more_rows};
use crate::format::{count, duration, printable, share, short_command_line};
use crate::guard::guard_text;
use crate::options::ResultOptions;
use crate::output::Output;

/// Blocking sites with less than this share of a call's blocked time are only in the JSON.
const SITE_SHARE_MIN: f64 = 0.05;
const SITES_SHOWN: usize = 3;

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
    let is_timed = !document.calls.is_empty() || !has_others;
    if is_timed {
        calls_headline(&mut out, document);
    }
    if is_timed && document.groups.is_empty() {
        table(&mut out, &document.calls, layout);
    }
    for group in document.groups.iter().take(layout.top) {
        let _ = writeln!(out, "\n{}", group_title(group));
        table(&mut out, &group.calls, layout);
    }
    more_rows(&mut out, document.groups.len(), layout.top, "groups");
    slow_calls(&mut out, &document.slow, layout);
    in_progress(&mut out, document, layout);
    if let Some(guard) = &document.guard {
        guard_text(&mut out, guard, layout);
    }
    for plugin in &document.plugins {
        let _ = write!(out, "\nplugin {}{}", plugin.line(), plugin.memory(layout.top));
    }
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

fn calls_headline(out: &mut String, document: &Report) {
    let sum = |part: fn(&Call) -> u64| document.calls.iter().map(part).sum::<u64>();
    let wall = sum(|call| call.wall_ns);
    let (cpu, blocked, waiting) =
        (sum(|call| call.cpu_ns), sum(|call| call.blocked_ns), sum(|call| call.runqueue_ns));
    let _ = writeln!(
        out,
        "{} system calls took {} of thread time: on CPU {} ({}), blocked {} ({}), waiting for a \
        CPU {} ({})",
        count(sum(|call| call.count)),
        duration(wall),
        duration(cpu),
        share(cpu, wall),
        duration(blocked),
        share(blocked, wall),
        duration(waiting),
        share(waiting, wall),
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

fn group_title(group: &RowReport) -> String {
    let of = match (group.pid, group.tid) {
        (0, _) => String::new(),
        (pid, Some(tid)) => format!(" (process {pid}, thread {tid})"),
        (pid, None) => format!(" (process {pid})"),
    };
    format!("{}{of}", printable(&group.command))
}

fn table(out: &mut String, calls: &[Call], layout: &TextOptions) {
    let _ = writeln!(
        out,
        "\n{:<18} {:>11} {:>8} {:>8} {:>8} {:>8} {:>8}  {:>8} {:>8} {:>8} {:>8} {:>8}",
        "call",
        "count",
        "errors",
        "wall",
        "on CPU",
        "blocked",
        "waiting",
        "p50",
        "p95",
        "p99",
        "max",
        "faults"
    );
    for call in calls.iter().take(layout.top) {
        row(out, call);
    }
    more_rows(out, calls.len(), layout.top, "calls");
}

fn row(out: &mut String, call: &Call) {
    let name = if call.abi == "x86-64" {
        call.name.clone()
    } else {
        format!("{} ({})", call.name, call.abi)
    };
    let errors = call.errors.values().sum::<u64>();
    let blank = |n: u64, text: String| if n == 0 { String::new() } else { text };
    let time = |ns: u64| blank(ns, duration(ns));
    let timed = call.count > call.denied;
    let percentile = |ns: u64| if timed { duration(ns) } else { String::new() };
    let _ = writeln!(
        out,
        "{:<18} {:>11} {:>8} {:>8} {:>8} {:>8} {:>8}  {:>8} {:>8} {:>8} {:>8} {:>8}",
        name,
        count(call.count),
        blank(errors, count(errors)),
        time(call.wall_ns),
        time(call.cpu_ns),
        time(call.blocked_ns),
        time(call.runqueue_ns),
        percentile(call.p50_ns),
        percentile(call.p95_ns),
        percentile(call.p99_ns),
        percentile(call.max_ns),
        blank(call.minor_faults + call.major_faults, count(call.minor_faults + call.major_faults)),
    );
    for line in details(call) {
        let _ = writeln!(out, "    {line}");
    }
}

fn details(call: &Call) -> Vec<String> {
    let mut lines = Vec::new();
    let sites: Vec<_> = call
        .blocked_in
        .iter()
        .filter(|site| site.ns as f64 >= call.blocked_ns as f64 * SITE_SHARE_MIN)
        .take(SITES_SHOWN)
        .map(|site| format!("{} {}", site.function, share(site.ns, call.blocked_ns)))
        .collect();
    if !sites.is_empty() {
        lines.push(format!("blocked in {}", sites.join(", ")));
    }
    if !call.errors.is_empty() {
        let mut errors: Vec<_> = call.errors.iter().collect();
        errors.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
        let errors: Vec<_> =
            errors.iter().map(|(name, n)| format!("{name} {}", count(**n))).collect();
        lines.push(format!("errors {}", errors.join(", ")));
    }
    if call.major_faults > 0 {
        lines.push(format!("major faults {}", count(call.major_faults)));
    }
    if call.denied > 0 {
        lines.push(format!(
            "{} were rejected before they began, for example by seccomp, and have no time",
            count(call.denied)
        ));
    }
    if call.unfinished > 0 {
        lines.push(format!(
            "{} more did not return, because their thread ended",
            count(call.unfinished)
        ));
    }
    if let Some(interval) = call.wall_interval_ns {
        lines.push(format!(
            "{} of them were not timed; wall time between {} and {} ({:.0} % interval)",
            count(call.untimed),
            duration(interval.low),
            duration(interval.high),
            interval.confidence * 100.0
        ));
    }
    lines
}

fn slow_calls(out: &mut String, slow: &[SlowCall], layout: &TextOptions) {
    if slow.is_empty() {
        return;
    }
    let _ = writeln!(out, "\nslowest calls");
    for call in slow.iter().take(layout.top) {
        let _ = writeln!(
            out,
            "{:>8} at {}  {} (process {}, thread {})  {} = {}",
            duration(call.wall_ns),
            duration(call.at_ns),
            printable(&call.command),
            call.pid,
            call.tid,
            call.call,
            call.result
        );
        let _ = writeln!(
            out,
            "         on CPU {}, blocked {}, waiting for a CPU {}",
            duration(call.cpu_ns),
            duration(call.blocked_ns),
            duration(call.runqueue_ns)
        );
        for (side, stack) in [("kernel", &call.kernel_stack), ("user", &call.user_stack)] {
            if !stack.is_empty() {
                let _ = writeln!(out, "         {side}: {}", stack.join(" < "));
            }
        }
    }
    more_rows(out, slow.len(), layout.top, "slow calls");
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
