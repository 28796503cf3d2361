//! `tollgate guard top`: programs, held processes and the latest events, live.

use std::collections::{BTreeMap, VecDeque};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph, Row, Table};

use super::report::{GuardEvent, held_for, with_scope};
use super::requests::{GuardRequest, Status};
use crate::daemon_client::{connect_required, request_one, send_request};
use crate::format::{count, printable};
use crate::options::SocketOption;
use crate::output::needs_terminal;
use crate::tui::{LiveScreen, run_screen};

const MAX_EVENTS: usize = 200;
/// If the terminal has fewer columns, programs are shown by their file names only, without numbers
/// of calls.
const WIDE: u16 = 110;

/// What is drawn.
struct GuardView {
    status: Status,
    rates: BTreeMap<String, f64>,
    events: VecDeque<GuardEvent>,
    has_colours: bool,
}

/// Shows the state of the daemon's guard until the user quits.
pub fn top(socket: &SocketOption) -> Result<ExitCode> {
    needs_terminal("guard top", "guard status")?;
    let view = GuardView {
        status: request_one(socket, &GuardRequest::Status)?,
        rates: BTreeMap::new(),
        events: VecDeque::new(),
        has_colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    };
    let (events, last_read) = (follow(socket)?, Instant::now());
    run_screen(&mut GuardScreen { socket, view, events, last_read })?;
    Ok(ExitCode::SUCCESS)
}

struct GuardScreen<'a> {
    socket: &'a SocketOption,
    view: GuardView,
    events: Receiver<GuardEvent>,
    last_read: Instant,
}

impl LiveScreen for GuardScreen<'_> {
    fn refresh(&mut self) -> Result<()> {
        let status: Status = request_one(self.socket, &GuardRequest::Status)?;
        self.view.rates = rates(&self.view.status, &status, self.last_read.elapsed());
        self.view.status = status;
        self.last_read = Instant::now();
        Ok(())
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        self.view.events.extend(self.events.try_iter());
        let surplus = self.view.events.len().saturating_sub(MAX_EVENTS);
        self.view.events.drain(..surplus);
        draw(frame, &self.view);
    }
}

fn follow(socket: &SocketOption) -> Result<Receiver<GuardEvent>> {
    let stream = connect_required(&socket.path)?;
    let (_, lines) = send_request(stream, &GuardRequest::Events { follow: true })?;
    let (to, events) = channel();
    thread::spawn(move || {
        for line in lines {
            if serde_json::from_str(&line).is_ok_and(|event| to.send(event).is_err()) {
                break;
            }
        }
    });
    Ok(events)
}

/// Calls per second of each program.
fn rates(before: &Status, now: &Status, time: Duration) -> BTreeMap<String, f64> {
    let calls: BTreeMap<_, _> = before
        .programs
        .iter()
        .map(|program| ((&program.digest, &program.scope), program.calls))
        .collect();
    now.programs
        .iter()
        .map(|program| {
            let before =
                calls.get(&(&program.digest, &program.scope)).copied().unwrap_or(program.calls);
            (program.title(), program.calls.saturating_sub(before) as f64 / time.as_secs_f64())
        })
        .collect()
}

fn draw(frame: &mut Frame<'_>, view: &GuardView) {
    let status = &view.status;
    let held = status.held.len() as u16;
    let [head, programs, holds, events] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(6),
        Constraint::Length(held.clamp(1, 6) + 2),
        Constraint::Length((view.events.len() as u16).clamp(1, 10) + 2),
    ])
    .areas(frame.area());
    let strong = Style::new().add_modifier(Modifier::BOLD);
    let alarm = if view.has_colours { strong.fg(Color::Red) } else { strong };
    let off = if status.is_off { "  OFF" } else { "" };
    let losses: u64 = status.losses.values().sum();
    let lost = if losses > 0 { format!("  LOSSES: {}", count(losses)) } else { String::new() };
    let rate: f64 = view.rates.values().sum();
    frame.render_widget(
        Paragraph::new(vec![
            Line::styled(
                format!("tollgate guard ({}){off}  since {}{lost}", status.mode, status.since),
                if losses > 0 || status.is_off { alarm } else { strong },
            ),
            Line::raw(format!(
                "{} programs  {} calls/s  {} of {} held        q: quit",
                status.programs.len(),
                count(rate as u64),
                status.held.len(),
                status.held_most
            )),
        ]),
        head,
    );
    let is_wide = frame.area().width >= WIDE;
    let rows = status.programs.iter().map(|program| {
        let title = program.title();
        let file = program.path.rsplit('/').next().unwrap_or_default();
        let name = if is_wide { title.clone() } else { with_scope(file, program.scope.as_deref()) };
        let mut cells = vec![
            name,
            program.state.clone(),
            count(view.rates.get(&title).copied().unwrap_or_default() as u64),
            count(program.anomalies),
            program.max_lfc.to_string(),
            count(program.holds),
            held_for(program.holds, program.held_ns),
        ];
        cells.extend(is_wide.then(|| count(program.calls)));
        let row = Row::new(cells);
        if program.anomalies > 0 { row.style(alarm) } else { row }
    });
    let widths = [
        Constraint::Min(20),
        Constraint::Length(8),
        Constraint::Length(10),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(7),
        Constraint::Length(10),
        Constraint::Length(14),
    ];
    let names = ["program", "state", "calls/s", "anomalies", "most/128", "holds", "held", "calls"];
    let columns = if is_wide { names.len() } else { names.len() - 1 };
    frame.render_widget(
        Table::new(rows, &widths[..columns])
            .header(Row::new(names[..columns].to_vec()).style(strong))
            .block(Block::new().borders(Borders::TOP)),
        programs,
    );
    let list = |lines: Vec<String>, title: &'static str| {
        let lines: Vec<_> = lines.into_iter().map(Line::raw).collect();
        Paragraph::new(lines).block(Block::new().borders(Borders::TOP).title(title))
    };
    let held = status.held.iter().map(|held| {
        let program = with_scope(&held.program, held.scope.as_deref());
        printable(&format!("{:>7}  {}  {program}  {}", held.pid, held.command, held.left()))
    });
    frame.render_widget(list(held.collect(), " held "), holds);
    let latest = view.events.iter().rev().take(events.height.saturating_sub(1).into());
    let latest = latest.map(|event| {
        let time = event.time.get(11..19).unwrap_or_default();
        format!("{time}  {}", event.short_line())
    });
    frame.render_widget(
        list(latest.collect(), " anomalies and responses, the latest first "),
        events,
    );
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::report::GuardedProgram;
    use super::super::requests::HeldProcessReport;
    use super::*;

    #[test]
    fn shows_held_processes_and_anomalies() {
        let program = GuardedProgram {
            path: "/usr/sbin/nginx".into(),
            scope: Some("unit:a/b".into()),
            state: "normal".into(),
            anomalies: 3,
            calls: 1_234_567,
            ..GuardedProgram::default()
        };
        let held = HeldProcessReport {
            pid: 4711,
            program: program.path.clone(),
            scope: None,
            command: "nginx".into(),
            unit: None,
            container: None,
            left_ns: None,
        };
        let status = Status {
            mode: "enforce".into(),
            held: vec![held],
            programs: vec![program],
            ..Status::default()
        };
        let view = GuardView {
            status,
            rates: BTreeMap::new(),
            events: VecDeque::new(),
            has_colours: false,
        };
        let mut terminal = Terminal::new(TestBackend::new(110, 20)).expect("a screen");
        terminal.draw(|frame| draw(frame, &view)).expect("drawn");
        let screen = terminal.backend().to_string();
        for part in [
            "tollgate guard (enforce)",
            "1,234,567",
            "4711  nginx  /usr/sbin/nginx  until released",
        ] {
            assert!(screen.contains(part), "{part} is not in\n{screen}");
        }
        // The default width of a terminal.
        let mut terminal = Terminal::new(TestBackend::new(80, 20)).expect("a screen");
        terminal.draw(|frame| draw(frame, &view)).expect("drawn");
        let screen = terminal.backend().to_string();
        for part in ["nginx [unit:a/b]       normal", "most/128 holds   held "] {
            assert!(screen.contains(part), "{part} is not in\n{screen}");
        }
    }
}
