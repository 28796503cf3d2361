//! The text of the lens' section.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::call_table::call_table;
use super::file_table::file_table;
use super::histogram_text::histograms;
use super::report::{COMMON, Call, LensReport, RingRequest, RowReport, ThreadAccount};
use super::requests::requests_line;
use super::single_calls_text::{in_progress, slow_calls};
use super::why_text;
use crate::format::{count, duration, number_of, printable, share};
use crate::report::{Section, TextOptions, fields, more_rows};

/// Blocking sites with less than this share of a call's blocked time are only in the JSON.
const SITE_SHARE_MIN: f64 = 0.05;
const SITES_SHOWN: usize = 3;
/// Calls that wait are mentioned if they have at least this share of the thread time.
const WAITS_SHARE_MIN: f64 = 0.01;
/// The time in user mode is shown if it is estimated by this many ticks. The interval is then at
/// most two thirds of the time on CPU (Clopper and Pearson, 5 of 10: 0.19 to 0.81).
const TICKS_MIN: u64 = 10;

impl Section for LensReport {
    fn fields(&self) -> serde_json::Result<Map<String, Value>> {
        fields(self)
    }

    fn text(&self, out: &mut String, layout: &TextOptions, is_only: bool) {
        if !self.calls.is_empty() || !self.io_uring.is_empty() || is_only {
            all_calls(out, self, layout);
        }
        rows(out, &self.groups, layout);
        slow_calls(out, &self.slow, layout);
        in_progress(out, &self.in_progress, layout);
    }

    fn calls_seen(&self) -> Option<u64> {
        Some(self.calls.iter().map(|call| call.count + call.unfinished).sum())
    }
}

fn all_calls(out: &mut String, report: &LensReport, layout: &TextOptions) {
    calls_headline(out, report);
    if let Some(line) = requests_line(report) {
        let _ = writeln!(out, "{line}");
    }
    report.account.iter().for_each(|account| account_line(out, account));
    if report.groups.is_empty() {
        table(out, &report.calls, &report.io_uring, layout);
        histograms(out, &report.calls, layout);
        file_table(out, &report.files, layout);
    }
}

/// One table for each row.
fn rows(out: &mut String, rows: &[RowReport], layout: &TextOptions) {
    for row in rows.iter().take(layout.top) {
        let _ = writeln!(out, "\n{}", row_title(row));
        row.account.iter().for_each(|account| account_line(out, account));
        table(out, &row.calls, &row.io_uring, layout);
        histograms(out, &row.calls, layout);
        file_table(out, &row.files, layout);
    }
    more_rows(out, rows.len(), layout.top, "tables");
}

fn calls_headline(out: &mut String, report: &LensReport) {
    let sum = |part: fn(&Call) -> u64| report.calls.iter().map(part).sum::<u64>();
    let wall = sum(|call| call.wall_ns);
    let (cpu, blocked, waiting) =
        (sum(|call| call.cpu_ns), sum(|call| call.blocked_ns), sum(|call| call.runqueue_ns));
    let in_waits = sum(|call| if call.is_wait { call.wall_ns } else { 0 });
    let _ = writeln!(
        out,
        "{} took {} of thread time: on CPU {} ({}), blocked {} ({}), waiting for a \
        CPU {} ({})",
        number_of(sum(|call| call.count) as usize, "system call"),
        duration(wall),
        duration(cpu),
        share(cpu, wall),
        duration(blocked),
        share(blocked, wall),
        duration(waiting),
        share(waiting, wall),
    );
    if in_waits > 0 && in_waits as f64 >= wall as f64 * WAITS_SHARE_MIN {
        let _ = writeln!(
            out,
            "{} of it ({}) were in calls that wait, where idle threads are, too",
            duration(in_waits),
            share(in_waits, wall)
        );
    }
}

/// Where the threads' lives went, without the parts that are 0.
fn account_line(out: &mut String, account: &ThreadAccount) {
    let lifetime = account.lifetime_ns;
    let parts: Vec<_> = account
        .parts()
        .into_iter()
        .filter(|(_, ns)| *ns > 0)
        .map(|(part, ns)| format!("{part} {} ({})", duration(ns), share(ns, lifetime)))
        .collect();
    let threads = match account.threads {
        0 => "threads of later commands".to_owned(),
        n => number_of(n as usize, "thread"),
    };
    let _ = write!(out, "{threads} lived {}", duration(lifetime));
    let _ = writeln!(out, ": {}", parts.join(", "));
    let ticks = account.user_ticks + account.system_ticks;
    let is_estimated = ticks >= TICKS_MIN && account.cpu_ns > 0;
    if let Some(user) = account.user.as_ref().filter(|_| is_estimated) {
        let _ = writeln!(
            out,
            "of the time on CPU outside of calls, {} were in user mode, between {} and {} \
             ({:.0} % interval, {} of {})",
            duration(user.ns),
            duration(user.low_ns),
            duration(user.high_ns),
            user.confidence * 100.0,
            count(account.user_ticks),
            number_of(ticks as usize, "tick")
        );
    }
    if account.minor_faults + account.major_faults > 0 {
        let _ = writeln!(
            out,
            "page faults outside of calls: {} minor, {} major",
            count(account.minor_faults),
            count(account.major_faults)
        );
    }
}

fn row_title(row: &RowReport) -> String {
    if row.pid == 0 && row.command == COMMON {
        return format!("{COMMON}: calls that have no table of their own");
    }
    let of = match (row.pid, row.tid) {
        (0, _) => String::new(),
        (pid, Some(tid)) => format!(" (process {pid}, thread {tid})"),
        (pid, None) => format!(" (process {pid})"),
    };
    format!("{}{of}", printable(&row.command))
}

/// A row of a table, with the lines below it.
type TableRow = (Call, Vec<String>);

/// Calls that do work, and then those that wait. A thread that has nothing to do waits in one, so
/// that their times would otherwise head the table. Requests are last: their times overlap.
fn table(out: &mut String, calls: &[Call], requests: &[RingRequest], layout: &TextOptions) {
    let row = |call: &Call| (call.clone(), details(call));
    let (waits, others): (Vec<_>, Vec<_>) =
        calls.iter().map(row).partition(|(call, _)| call.is_wait);
    let parts: [(&str, &str, Vec<TableRow>); 3] = [
        ("call", "calls", others),
        ("call that waits", "calls", waits),
        ("request", "requests", requests.iter().map(request_row).collect()),
    ];
    let titles = parts.iter().filter(|(_, _, rows)| !rows.is_empty()).map(|(title, ..)| *title);
    let shown = parts.iter().flat_map(|(_, _, rows)| rows.iter().take(layout.top));
    let table = call_table(titles, shown.map(|(call, _)| call), layout.columns);
    for (title, what, rows) in &parts {
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(out);
        table.titles(out, title);
        for (call, lines) in rows.iter().take(layout.top) {
            table.row(out, call);
            for line in lines {
                let _ = writeln!(out, "    {line}");
            }
        }
        more_rows(out, rows.len(), layout.top, what);
    }
    table.left_out(out);
}

fn request_row(request: &RingRequest) -> TableRow {
    let call = request.as_call();
    let mut lines = details(&call);
    if request.in_flight > 0 {
        lines.push(format!("{} more had not completed", count(request.in_flight)));
    }
    if request.silent > 0 {
        lines.push(format!("{} more wanted no completion", count(request.silent)));
    }
    (call, lines)
}

fn details(call: &Call) -> Vec<String> {
    let mut lines = Vec::new();
    let shown = call
        .blocked_in
        .iter()
        .filter(|site| site.ns as f64 >= call.blocked_ns as f64 * SITE_SHARE_MIN)
        .take(SITES_SHOWN);
    let sites: Vec<_> = shown
        .map(|site| {
            let share = share(site.ns, call.blocked_ns);
            (format!("{} {share}", printable(&site.function)), why_text::of_site(site))
        })
        .collect();
    if sites.iter().any(|(_, causes)| !causes.is_empty()) {
        for (site, causes) in sites {
            lines.push(format!("blocked in {site}"));
            lines.extend(causes.iter().map(|cause| format!("    {cause}")));
        }
    } else if !sites.is_empty() {
        let sites: Vec<_> = sites.into_iter().map(|(site, _)| site).collect();
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
        // A call that a supervisor or a tracer has rejected has waited for the decision.
        let time = if call.wall_ns == 0 { ", and have no time" } else { "" };
        lines.push(format!(
            "{} were rejected by seccomp or a tracer before they began{time}",
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

#[cfg(test)]
mod tests {
    use snapbox::{assert_data_eq, file};

    use super::*;
    use crate::report::{Report, text};

    /// The text of a report that has only the lens' section.
    fn rendered(json: &str, top: usize) -> String {
        let lens: LensReport = serde_json::from_str(json).expect("the lens' fields");
        let report = Report::with_sections(json, vec![Box::new(lens)]);
        text(&report, &TextOptions { top, columns: None })
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
    fn requests_have_a_table_of_their_own() {
        let shown = rendered(include_str!("fixtures/io_uring.json"), 2);
        for line in [
            "io_uring was used: 400,001 requests took 8.00 s from submission to completion, \
            2 failed, 4 more had not completed, 4 more wanted no completion\n",
            "\nrequest ",
            "\nio_uring: READ ",
            "\n    errors EAGAIN 2\n    3 more had not completed\n",
            "\nio_uring: NOP ",
            "\n    4 more wanted no completion\n",
            "… 1 of 3 requests are not shown (--top 3 shows all)\n",
        ] {
            assert!(shown.contains(line), "{line:?} is not in\n{shown}");
        }
        assert!(shown.contains("\n110,745 system calls took 3.70 s of thread time"), "{shown}");
    }

    #[test]
    fn names_do_not_control_the_terminal() {
        let evil = "a\u{1b}[2J\nforged: line\u{202e}";
        let mut json: Value =
            serde_json::from_str(include_str!("fixtures/report.json")).expect("JSON");
        json["command"] = [evil].into();
        json["notes"] = [evil].into();
        json["groups"] = serde_json::json!([{
            "pid": 1, "command": evil, "elapsed_ns": 1, "calls": json["calls"],
        }]);
        for (list, names) in [
            ("slow", &["command", "call", "result", "kernel_stack", "user_stack"][..]),
            ("in_progress", &["name"]),
        ] {
            for name in names {
                let value = &mut json[list][0][name];
                *value = if value.is_array() { [evil].into() } else { evil.into() };
            }
        }
        let call = &mut json["calls"][0];
        (call["name"], call["blocked_in"][0]["function"]) = (evil.into(), evil.into());
        let shown = rendered(&json.to_string(), 4);
        let is_raw = |c: char| crate::format::is_terminal_control(c) && c != '\n';
        assert!(!shown.contains(is_raw), "{shown:?}");
        assert!(!shown.lines().any(|line| line.starts_with("forged")), "{shown}");
    }

    #[test]
    fn the_common_row_is_explained() {
        let mut json: Value =
            serde_json::from_str(include_str!("fixtures/groups.json")).expect("JSON");
        let row = &mut json["groups"][0];
        (row["pid"], row["tid"], row["command"]) = (0.into(), Value::Null, COMMON.into());
        let shown = rendered(&json.to_string(), 20);
        assert!(shown.contains("\n(common): calls that have no table of their own\n"), "{shown}");
    }

    #[test]
    fn rows_have_tables_of_their_own() {
        assert_data_eq!(
            rendered(include_str!("fixtures/groups.json"), 20),
            file!["fixtures/groups.txt"].raw()
        );
    }
}
