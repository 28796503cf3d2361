//! Live views: what they have in common, and the loop that shows them until the user quits.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use kernel::process;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph};
use ratatui::{DefaultTerminal, Frame};

use crate::format::number_of;

/// How often the values are read again.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// How long to wait for another key. A delay of this length is not visible.
const KEY_POLL: Duration = Duration::from_millis(50);

/// Set by a signal. The terminal is restored before the process ends.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// What a live view shows.
pub trait LiveScreen {
    /// Reads the values again. Called once in [`Self::interval`].
    fn refresh(&mut self) -> Result<()>;

    /// The time between two readings.
    fn interval(&self) -> Duration {
        REFRESH_INTERVAL
    }

    /// Does what is due in between, at least once in [`Self::longest_wait`].
    fn tend(&mut self) -> Result<()> {
        Ok(())
    }

    fn longest_wait(&self) -> Duration {
        REFRESH_INTERVAL
    }

    fn draw(&mut self, frame: &mut Frame<'_>);

    /// Takes a key, and returns whether it has a meaning. Of the others, q and Esc end the view.
    fn press(&mut self, _key: KeyCode) -> bool {
        false
    }
}

/// Shows a live view until q, Esc, Ctrl-C or a signal.
pub fn run_screen(screen: &mut impl LiveScreen) -> Result<()> {
    kernel::signals::on_interrupt(&INTERRUPTED)?;
    // Crossterm's `event` reads from the same file.
    let other = if io::stdin().is_terminal() { None } else { Some(File::open("/dev/tty")?) };
    let keys = other.as_ref().map_or_else(|| io::stdin().as_raw_fd(), |file| file.as_raw_fd());
    let mut terminal = ratatui::init();
    let result = run(&mut terminal, keys, screen);
    if process::has_hung_up(keys) {
        // There is no terminal to restore. Dropping this value would print an error on stderr,
        // which is gone with the terminal, and would therefore panic.
        std::mem::forget(terminal);
        return Ok(());
    }
    ratatui::restore();
    result
}

fn run(terminal: &mut DefaultTerminal, keys: RawFd, screen: &mut impl LiveScreen) -> Result<()> {
    let mut last_due = Instant::now();
    let mut is_changed = true;
    while !INTERRUPTED.load(Ordering::SeqCst) {
        if last_due.elapsed() >= screen.interval() {
            last_due = Instant::now();
            screen.refresh()?;
            is_changed = true;
        }
        if std::mem::take(&mut is_changed) {
            terminal.draw(|frame| screen.draw(frame))?;
        }
        // If the terminal is gone, `event::poll` reads nothing repeatedly and does not return.
        let until_due = screen.interval().saturating_sub(last_due.elapsed());
        let is_readable = process::wait_readable(keys, until_due.min(screen.longest_wait()));
        if process::has_hung_up(keys) {
            return Ok(());
        }
        screen.tend()?;
        // If very many keys come at once, `event::poll` has read only some of them and waits for
        // more. Its wait is therefore limited.
        let mut wait = if is_readable { KEY_POLL } else { Duration::ZERO };
        while event::poll(std::mem::take(&mut wait))? {
            is_changed = true;
            if is_end(&event::read()?, screen) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Whether the view ends. Otherwise, the screen has the key, if it is one.
fn is_end(event: &Event, screen: &mut impl LiveScreen) -> bool {
    let Event::Key(key) = event else { return false };
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return key.code == KeyCode::Char('c');
    }
    !screen.press(key.code) && matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}

/// Draws a table: the line of titles, and the rows for which there is room, so that the selected
/// one is among them. If there are others, the last line says how many. `one`: what a row is.
pub fn draw_table(
    frame: &mut Frame<'_>,
    area: Rect,
    titles: Line<'_>,
    rows: &[String],
    selected: Option<usize>,
    one: &str,
) {
    let block = Block::new().borders(Borders::TOP);
    let room = usize::from(block.inner(area).height).saturating_sub(1);
    let shown = if rows.len() > room { room.saturating_sub(1) } else { rows.len() };
    let first = selected.map_or(0, |selected| (selected + 1).saturating_sub(shown));
    let mut lines = vec![titles];
    for (at, row) in rows.iter().enumerate().skip(first).take(shown) {
        let style = if Some(at) == selected { Modifier::REVERSED } else { Modifier::empty() };
        lines.push(Line::styled(row.as_str(), style));
    }
    if rows.len() > shown {
        let more = number_of(rows.len() - shown, &format!("more {one}"));
        lines.push(Line::raw(format!("and {more}")));
    }
    frame.render_widget(Paragraph::new(lines).block(block), area);
}
