//! `tollgate service top`: the usage of services, live.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use kernel::service::ServiceUsage;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph, Row, Table};

use super::format::{bytes, indented};
use super::requests::{ServiceReport, ServiceRequest, ServiceRow};
use crate::daemon_client::request_one;
use crate::format::{count, number_of};
use crate::options::SocketOption;
use crate::output::needs_terminal;
use crate::tui;

/// What the screen shows: the latest report, and rates from the usage since the previous report.
struct ServiceView {
    report: ServiceReport,
    /// The previous usage by service.
    before: HashMap<String, ServiceUsage>,
    time: Duration,
}

pub fn top(socket: &SocketOption) -> Result<ExitCode> {
    needs_terminal("service top", "service report")?;
    let mut view = ServiceView {
        report: request_one(socket, &ServiceRequest::Report)?,
        before: HashMap::new(),
        time: Duration::ZERO,
    };
    tui::run_screen(|terminal, is_due| {
        if is_due {
            let report: ServiceReport = request_one(socket, &ServiceRequest::Report)?;
            view.time =
                Duration::from_nanos(report.elapsed_ns.saturating_sub(view.report.elapsed_ns));
            let rows = std::mem::replace(&mut view.report, report).services;
            view.before = rows.into_iter().map(|row| (row.name, row.used)).collect();
        }
        terminal.draw(|frame| draw(frame, &view))?;
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn draw(frame: &mut Frame<'_>, view: &ServiceView) {
    let report = &view.report;
    let [head, mut table] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(4)]).areas(frame.area());
    let strong = Style::new().add_modifier(Modifier::BOLD);
    let losses: u64 = report.losses.values().sum();
    let lost = if losses > 0 { format!("  LOSSES: {}", count(losses)) } else { String::new() };
    frame.render_widget(
        Paragraph::new(vec![
            Line::styled(
                format!("tollgate service  {}  since {}{lost}", report.file, report.since),
                strong,
            ),
            Line::raw(format!(
                "{}, {}        rates per second since the last update; q: quit",
                number_of(report.services.len(), "service"),
                number_of(report.rules, "rule")
            )),
        ]),
        head,
    );
    let room = usize::from(table.height).saturating_sub(HEAD_LINES);
    let is_cut = report.services.len() > room;
    let shown = if is_cut { room.saturating_sub(1) } else { room };
    if is_cut {
        let [above, last] =
            Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(table);
        table = above;
        let note = format!("and {}", number_of(report.services.len() - shown, "more service"));
        frame.render_widget(Line::raw(note), last);
    }
    let columns = column_count(frame.area().width);
    let row = |row| Row::new(row_cells(row, view).into_iter().take(columns));
    let rows = report.services.iter().take(shown).map(row);
    let lengths = COLUMNS[1..columns].iter().map(|(_, width)| Constraint::Length(*width));
    let widths = [Constraint::Min(COLUMNS[0].1)].into_iter().chain(lengths);
    let names = COLUMNS[..columns].iter().map(|(name, _)| *name);
    frame.render_widget(
        Table::new(rows, widths)
            .header(Row::new(names).style(strong))
            .block(Block::new().borders(Borders::TOP)),
        table,
    );
}

/// With the spaces between them, the columns are as wide as a terminal of 80 columns.
const COLUMNS: [(&str, u16); 8] = [
    ("service", 16),
    ("cpu %", 7),
    ("wait %", 7),
    ("block %", 8),
    ("calls", 10),
    ("received", 9),
    ("sent", 9),
    ("threads", 7),
];

/// The number of columns that fit completely. A figure that is cut off would be misread.
fn column_count(room: u16) -> usize {
    let ends = COLUMNS.iter().scan(0, |end, (_, width)| {
        *end += width + 1;
        Some(*end - 1)
    });
    ends.take_while(|end| *end <= room).count().max(1)
}

/// The lines above the table's rows: a separating line and the names of the columns.
const HEAD_LINES: usize = 2;

/// The cells of a row: rates per second, where 100 % is one processor or one thread.
fn row_cells(row: &ServiceRow, view: &ServiceView) -> Vec<String> {
    let before = view.before.get(&row.name).copied().unwrap_or(row.used);
    let seconds = view.time.as_secs_f64().max(1e-9);
    let rate = |value: fn(&ServiceUsage) -> u64| {
        value(&row.used).saturating_sub(value(&before)) as f64 / seconds
    };
    let percent = |ns: f64| format!("{:.1}", ns / 1e7);
    vec![
        indented(row.depth, &row.name),
        percent(rate(|used| used.cpu_ns)),
        percent(rate(|used| used.wait_ns)),
        percent(rate(|used| used.blocked_ns)),
        count(rate(|used| used.calls) as u64),
        bytes(rate(|used| used.received_bytes) as u64),
        bytes(rate(|used| used.sent_bytes) as u64),
        count(row.threads as u64),
    ]
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    #[test]
    fn shows_usage_per_second() {
        let used = |cpu_ns, calls| ServiceUsage { cpu_ns, calls, ..ServiceUsage::default() };
        let row = |name: &str, depth, used| ServiceRow {
            name: name.into(),
            depth,
            threads: 3,
            used,
            ..ServiceRow::default()
        };
        let report = ServiceReport {
            file: "/etc/services.toml".into(),
            services: vec![row("root", 0, used(0, 0)), row("shop", 1, used(1_500_000_000, 5_000))],
            ..ServiceReport::default()
        };
        let before = HashMap::from([("shop".to_owned(), used(1_000_000_000, 1_000))]);
        let view = ServiceView { report, before, time: Duration::from_secs(2) };
        assert!(!screen(&view).contains("more"));
        let screen = screen(&view);
        let line = screen.lines().find(|line| line.contains("  shop")).expect("a row");
        for part in ["25.0", "2,000", "3"] {
            assert!(line.contains(part), "{part} is not in {line}");
        }
    }

    #[test]
    fn no_figure_is_cut_off() {
        assert_eq!([10, 40, 41, 79, 80, 200].map(column_count), [1, 3, 4, 7, 8, 8]);
    }

    #[test]
    fn hidden_rows_are_counted() {
        let row =
            |number: usize| ServiceRow { name: format!("shop {number}"), ..ServiceRow::default() };
        let report =
            ServiceReport { services: (0..20).map(row).collect(), ..ServiceReport::default() };
        let screen =
            screen(&ServiceView { report, before: HashMap::new(), time: Duration::from_secs(1) });
        let shown = screen.lines().filter(|line| line.contains("shop ")).count();
        assert!(screen.contains(&format!("and {} more services", 20 - shown)), "{screen}");
    }

    fn screen(view: &ServiceView) -> String {
        let mut terminal = Terminal::new(TestBackend::new(80, 8)).expect("a screen");
        terminal.draw(|frame| draw(frame, view)).expect("drawn");
        terminal.backend().to_string()
    }
}
