//! The whole screen, drawn again and again until somebody quits.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use kernel::process;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};

const REFRESH: Duration = Duration::from_secs(1);
/// Nobody sees that it lags so far behind.
const A_MOMENT: Duration = Duration::from_millis(50);

/// The terminal is left as it was, also then.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Calls `look`, which draws, at least once a second, and says whether a second has passed, until q, Esc or Ctrl-C.
pub fn show(look: impl FnMut(&mut DefaultTerminal, bool) -> Result<()>) -> Result<()> {
    kernel::signals::on_interrupt(&INTERRUPTED)?;
    // As crossterm has it: `event` reads from there.
    let other = if io::stdin().is_terminal() { None } else { Some(File::open("/dev/tty")?) };
    let keys = other.as_ref().map_or_else(|| io::stdin().as_raw_fd(), |file| file.as_raw_fd());
    let mut terminal = ratatui::init();
    let result = run(&mut terminal, keys, look);
    if process::has_hung_up(keys) {
        // Nothing is to be left as it was. Who drops it would say so on stderr, which has gone with the terminal: a panic.
        std::mem::forget(terminal);
        return Ok(());
    }
    ratatui::restore();
    result
}

fn run(
    terminal: &mut DefaultTerminal,
    keys: RawFd,
    mut look: impl FnMut(&mut DefaultTerminal, bool) -> Result<()>,
) -> Result<()> {
    let mut read = Instant::now();
    while !INTERRUPTED.load(Ordering::SeqCst) {
        let is_due = read.elapsed() >= REFRESH;
        if is_due {
            read = Instant::now();
        }
        look(terminal, is_due)?;
        // From a terminal that has gone, `event::poll` reads nothing again and again, and does not return.
        let is_readable = process::wait_readable(keys, REFRESH.saturating_sub(read.elapsed()));
        if process::has_hung_up(keys) {
            return Ok(());
        }
        // Of very many keys at once it has read a part, and waits for the next one.
        let mut wait = if is_readable { A_MOMENT } else { Duration::ZERO };
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
    let is_interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    is_interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}
