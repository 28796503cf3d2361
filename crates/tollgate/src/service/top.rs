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
use ratatui::widgets::Paragraph;

use super::format::indented;
use super::requests::{ServiceReport, ServiceRequest, ServiceRow};
use crate::daemon_client::request_one;
use crate::fitted_table::{FittedTable, TableColumn};
use crate::format::{bytes, count, number_of, percent_of_time};
use crate::options::SocketOption;
use crate::output::needs_terminal;
use crate::tui::{LiveScreen, draw_table, run_screen};

/// What the screen shows: the latest report, and rates from the usage since the previous report.
struct ServiceView {
    report: ServiceReport,
    /// The previous usage by service.
    before: HashMap<String, ServiceUsage>,
    time: Duration,
}

pub fn top(socket: &SocketOption) -> Result<ExitCode> {
    needs_terminal("service top", "service report")?;
    let view = ServiceView {
        report: request_one(socket, &ServiceRequest::Report)?,
        before: HashMap::new(),
        time: Duration::ZERO,
    };
    run_screen(&mut ServiceScreen { socket, view })?;
    Ok(ExitCode::SUCCESS)
}

struct ServiceScreen<'a> {
    socket: &'a SocketOption,
    view: ServiceView,
}

impl LiveScreen for ServiceScreen<'_> {
    fn refresh(&mut self) -> Result<()> {
        let report: ServiceReport = request_one(self.socket, &ServiceRequest::Report)?;
        let view = &mut self.view;
        view.time = Duration::from_nanos(report.elapsed_ns.saturating_sub(view.report.elapsed_ns));
        let rows = std::mem::replace(&mut view.report, report).services;
        view.before = rows.into_iter().map(|row| (row.name, row.used)).collect();
        Ok(())
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        draw(frame, &self.view);
    }
}

fn draw(frame: &mut Frame<'_>, view: &ServiceView) {
    let report = &view.report;
    let [head, body] =
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
    let rates: Vec<_> = report.services.iter().map(|row| rates(row, view)).collect();
    let (titles, rows) = lines(&rates, frame.area().width);
    draw_table(frame, body, Line::styled(titles, strong), &rows, None, "service");
}

/// The line of titles and those of the services.
fn lines(services: &[ServiceRates], columns: u16) -> (String, Vec<String>) {
    let name = |service: &ServiceRates| service.name.clone();
    let titles = ["service"].into_iter();
    let columns = Some(usize::from(columns));
    let table = FittedTable::new(&COLUMNS, name, titles, services.iter(), columns);
    let line = |write: &dyn Fn(&mut String)| {
        let mut line = String::new();
        write(&mut line);
        line.trim_end().to_owned()
    };
    let rows = services.iter().map(|service| line(&|out| table.row(out, service)));
    (line(&|out| table.titles(out, "service")), rows.collect())
}

/// Usage per second, where 10^9 ns are one processor or one thread.
struct ServiceRates {
    name: String,
    cpu_ns: f64,
    wait_ns: f64,
    blocked_ns: f64,
    calls: f64,
    received_bytes: f64,
    sent_bytes: f64,
    threads: u64,
}

const COLUMNS: [TableColumn<ServiceRates>; 7] = [
    TableColumn { title: "cpu %", rank: 0, gap: 1, cell: |row| percent_of_time(row.cpu_ns) },
    TableColumn { title: "wait %", rank: 1, gap: 1, cell: |row| percent_of_time(row.wait_ns) },
    TableColumn { title: "block %", rank: 2, gap: 1, cell: |row| percent_of_time(row.blocked_ns) },
    TableColumn { title: "calls", rank: 3, gap: 1, cell: |row| count(row.calls as u64) },
    TableColumn {
        title: "received",
        rank: 4,
        gap: 1,
        cell: |row| bytes(row.received_bytes as u64),
    },
    TableColumn { title: "sent", rank: 5, gap: 1, cell: |row| bytes(row.sent_bytes as u64) },
    TableColumn { title: "threads", rank: 6, gap: 1, cell: |row| count(row.threads) },
];

fn rates(row: &ServiceRow, view: &ServiceView) -> ServiceRates {
    let before = view.before.get(&row.name).copied().unwrap_or(row.used);
    let seconds = view.time.as_secs_f64().max(1e-9);
    let rate = |value: fn(&ServiceUsage) -> u64| {
        value(&row.used).saturating_sub(value(&before)) as f64 / seconds
    };
    ServiceRates {
        name: indented(row.depth, &row.name),
        cpu_ns: rate(|used| used.cpu_ns),
        wait_ns: rate(|used| used.wait_ns),
        blocked_ns: rate(|used| used.blocked_ns),
        calls: rate(|used| used.calls),
        received_bytes: rate(|used| used.received_bytes),
        sent_bytes: rate(|used| used.sent_bytes),
        threads: row.threads as u64,
    }
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
        let service = |name: &str| ServiceRates {
            name: name.into(),
            cpu_ns: 1e9,
            wait_ns: 0.0,
            blocked_ns: 1e9,
            calls: 1e6,
            received_bytes: 1e6,
            sent_bytes: 1e6,
            threads: 3,
        };
        let services = [service("all"), service("  a shop of 16 b")];
        let shown = [10, 40, 41, 79, 80, 200].map(|columns| {
            let (titles, rows) = lines(&services, columns);
            let ends = rows.iter().map(|row| row.len());
            // The first figure is shown in any case.
            assert!(ends.max() <= Some(usize::from(columns).max(24)), "{rows:?}");
            assert!(rows.iter().all(|row| row.len() == titles.len()), "{titles}\n{rows:?}");
            titles.replace(" %", "").split_whitespace().count()
        });
        assert_eq!(shown, [2, 4, 4, 8, 8, 8]);
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
