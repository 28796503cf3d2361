//! The whole screen, drawn again and again until somebody quits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};

const REFRESH: Duration = Duration::from_secs(1);

/// The terminal is left as it was, also then.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Calls `look`, which draws, at least once a second, and says whether a second has passed, until q, Esc or Ctrl-C.
pub fn show(look: impl FnMut(&mut DefaultTerminal, bool) -> Result<()>) -> Result<()> {
    kernel::signals::on_interrupt(&INTERRUPTED)?;
    let mut terminal = ratatui::init();
    let result = run(&mut terminal, look);
    ratatui::restore();
    result
}

fn run(
    terminal: &mut DefaultTerminal,
    mut look: impl FnMut(&mut DefaultTerminal, bool) -> Result<()>,
) -> Result<()> {
    let mut read = Instant::now();
    while !INTERRUPTED.load(Ordering::SeqCst) {
        let is_due = read.elapsed() >= REFRESH;
        if is_due {
            read = Instant::now();
        }
        look(terminal, is_due)?;
        if event::poll(REFRESH.saturating_sub(read.elapsed()))?
            && let Event::Key(key) = event::read()?
        {
            let is_interrupt =
                key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            if is_interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                return Ok(());
            }
        }
    }
    Ok(())
}
