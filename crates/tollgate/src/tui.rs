//! Draws the whole screen repeatedly until the user quits.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use kernel::process;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};

/// How often the values are read again.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// How long to wait for another key. A delay of this length is not visible.
const KEY_POLL: Duration = Duration::from_millis(50);

/// Set by a signal. The terminal is restored before the process ends.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Calls `draw` at least once a second until q, Esc or Ctrl-C. The second argument of `draw` is
/// true if a second has passed.
pub fn run_screen(draw: impl FnMut(&mut DefaultTerminal, bool) -> Result<()>) -> Result<()> {
    kernel::signals::on_interrupt(&INTERRUPTED)?;
    // Crossterm's `event` reads from the same file.
    let other = if io::stdin().is_terminal() { None } else { Some(File::open("/dev/tty")?) };
    let keys = other.as_ref().map_or_else(|| io::stdin().as_raw_fd(), |file| file.as_raw_fd());
    let mut terminal = ratatui::init();
    let result = run(&mut terminal, keys, draw);
    if process::has_hung_up(keys) {
        // There is no terminal to restore. Dropping this value would print an error on stderr,
        // which is gone with the terminal, and would therefore panic.
        std::mem::forget(terminal);
        return Ok(());
    }
    ratatui::restore();
    result
}

fn run(
    terminal: &mut DefaultTerminal,
    keys: RawFd,
    mut draw: impl FnMut(&mut DefaultTerminal, bool) -> Result<()>,
) -> Result<()> {
    let mut last_due = Instant::now();
    while !INTERRUPTED.load(Ordering::SeqCst) {
        let is_due = last_due.elapsed() >= REFRESH_INTERVAL;
        if is_due {
            last_due = Instant::now();
        }
        draw(terminal, is_due)?;
        // If the terminal is gone, `event::poll` reads nothing repeatedly and does not return.
        let is_readable =
            process::wait_readable(keys, REFRESH_INTERVAL.saturating_sub(last_due.elapsed()));
        if process::has_hung_up(keys) {
            return Ok(());
        }
        // If very many keys come at once, `event::poll` has read only some of them and waits for
        // more. Its wait is therefore limited.
        let mut wait = if is_readable { KEY_POLL } else { Duration::ZERO };
        while event::poll(std::mem::take(&mut wait))? {
            if is_end(&event::read()?) {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn is_end(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let is_interrupt =
        key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    is_interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}
