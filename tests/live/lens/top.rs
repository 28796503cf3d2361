//! `tollgate lens top` on a terminal, and without one.

use super::subject::Subject;
use crate::harness::pty::Terminal;
use crate::harness::{Job, Running, workload};

/// The end of the alternate screen: the terminal is as it was before.
const RESTORED: &str = "\x1b[?1049l";

fn top_of(subject: &Subject, terminal: &Terminal) -> Running {
    let mut job = Job::from_command_line(&format!("lens top -p {}", subject.pid())).on(terminal);
    job.command.env("TERM", "xterm");
    job.start()
}

/// Whether the row of this name has a cell with this text.
fn has_cell(screen: &str, name: &str, cell: &str) -> bool {
    let row = screen.lines().find(|line| line.starts_with(name));
    row.is_some_and(|row| row.split_whitespace().any(|text| text == cell))
}

#[test]
fn shows_where_a_process_sleeps() {
    let mut subject = Subject::new();
    let mut terminal = Terminal::of_columns(80);
    let top = top_of(&subject, &terminal);
    terminal.shows("its head", |screen| screen.contains("1 thread"));
    // From then on, the process is in a read of which the beginning is known.
    subject.make_calls();
    let process = format!("({})", subject.pid());
    let is_asleep =
        |screen: &str| has_cell(screen, "workloads", &process) && screen.contains("100.0");
    terminal.shows("its sleep", is_asleep);
    terminal.press(b"\r");
    terminal.shows("its threads", |screen| screen.contains(&format!("{process} > threads")));
    terminal.press(b"\r");
    let is_only_call =
        |screen: &str| has_cell(screen, "read", "100.0") && !screen.contains("getppid");
    terminal.shows("its calls", is_only_call);
    terminal.press(b"b");
    terminal.shows("the order", |screen| screen.contains("calls  by blocked %"));
    terminal.press(b"\r");
    let seen = terminal.shows("the site", |screen| has_cell(screen, "(still asleep)", "100.0"));
    assert!(seen.lines().all(|line| line.chars().count() <= 80), "{seen}");
    // Backspace
    terminal.press(b"\x7f");
    terminal.shows("its calls", |screen| has_cell(screen, "read", "100.0"));
    terminal.resize(200);
    terminal.shows("all columns", |screen| screen.contains("mostly blocked in"));
    terminal.press(b"q");
    assert!(terminal.read_until(RESTORED).contains(RESTORED));
    top.finish().success();
    subject.end();
}

#[test]
fn signals_restore_the_terminal() {
    let subject = Subject::new();
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut terminal = Terminal::of_columns(80);
        let top = top_of(&subject, &terminal);
        terminal.shows("its head", |screen| screen.contains("tollgate lens  process"));
        top.signal(signal);
        assert!(terminal.read_until(RESTORED).contains(RESTORED));
        top.finish().success();
    }
    subject.end();
}

#[test]
fn prints_tables_without_a_terminal() {
    let subject = Subject::new();
    let options = format!("lens top -p {} --by call --interval 100ms -n 3", subject.pid());
    let text = Job::from_command_line(&options).finish().success().text();
    assert_eq!(text.matches("1 thread\ncalls  by on CPU %\n").count(), 3, "{text}");
    subject.end();
}

#[test]
fn files_are_shown_on_request() {
    let busy = Job::of(workload("busy-writer 3000000")).start();
    let options = format!("lens top -p {} --by file --interval 300ms --once", busy.pid());
    let text = Job::from_command_line(&options).finish().success().text();
    assert!(text.contains("\nfiles  by wall %\n"), "{text}");
    let pipe = text.lines().find(|line| line.starts_with("pipe:["));
    // Calls, the time in them, and the bytes in both directions.
    let cells = pipe.map(|line| line.split_whitespace().count());
    assert!(cells.is_some_and(|cells| cells >= 5), "{text}");
    assert!(!busy.is_over(), "it ended with the watching");
}
