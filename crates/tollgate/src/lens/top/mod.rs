//! `tollgate lens top`: where the time of calls goes, live.

mod columns;
pub mod level;
mod live_lens;
mod live_watch;
mod rows;
#[cfg(test)]
mod samples;
mod screen;
mod table;
mod view;

use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

use anyhow::Result;
use kernel::process::wait_readable;
use kernel::wire;

use super::arguments::TopArguments;
use crate::output::{self, Output};
use crate::process_selection::{self, Select};
use crate::process_watch::{RunningWatch, is_interrupted};
use crate::session_runner::TEND_INTERVAL;
use crate::tui::run_screen;
use level::TopLevel;
use live_lens::{LiveLensSetup, Sample};
use live_watch::LiveWatch;
use screen::LensScreen;
use table::text;
use view::TopView;

/// A thread that makes more different calls than this is rare.
const CALLS_OF_THREAD: usize = 16;

pub fn top(arguments: &TopArguments) -> Result<ExitCode> {
    let all = Select { all: true, ..Select::default() };
    let select = if arguments.select.is_empty() { &all } else { &arguments.select };
    let sample = Rc::new(RefCell::new(Sample::default()));
    let mut mask = wire::LENS;
    if !arguments.no_sites {
        mask |= wire::LENS_SITES;
    }
    if arguments.sample {
        mask |= wire::LENS_SAMPLE;
    }
    if arguments.by == TopLevel::File {
        mask |= wire::LENS_FILES;
    }
    let has_threads = has_room_for_threads(select);
    let per = if has_threads { wire::PER_THREAD } else { wire::PER_PROCESS };
    let setup = LiveLensSetup { mask, per, sample: Rc::clone(&sample) };
    let watch = RunningWatch::start(select, vec![Box::new(setup)])?;
    let mut live = LiveWatch::new(watch, select, sample);
    let mut view = TopView::new(arguments.by, has_threads);
    let tables = if arguments.once { Some(1) } else { arguments.count };
    if tables.is_none() && Output::Stdout.columns().is_some() {
        run_screen(&mut LensScreen::new(&mut live, view, arguments.interval))?;
    } else {
        print_tables(&mut live, &mut view, arguments, tables)?;
    }
    live.watch.runner.cancel()?;
    Ok(ExitCode::SUCCESS)
}

/// Whether the gate has enough counters for rows of their own for all threads of these processes.
fn has_room_for_threads(select: &Select) -> bool {
    let named = select.pid.iter().copied();
    let pids = named.chain(process_selection::by_properties(select));
    let threads: usize = pids.map(kernel::process::thread_count).sum();
    threads * CALLS_OF_THREAD <= kernel::gate::unreserved_cells() as usize
}

/// Prints this many tables, or tables until an interrupt or until the last process has ended.
fn print_tables(
    live: &mut LiveWatch<'_>,
    view: &mut TopView,
    arguments: &TopArguments,
    tables: Option<u64>,
) -> Result<()> {
    for at in 0..tables.unwrap_or(u64::MAX) {
        let end = Instant::now() + arguments.interval;
        while !end.saturating_duration_since(Instant::now()).is_zero() {
            if is_interrupted() {
                return Ok(());
            }
            let left = end.saturating_duration_since(Instant::now());
            wait_readable(live.watch.runner.descriptor(), left.min(TEND_INTERVAL));
            live.watch.tend()?;
        }
        live.refresh()?;
        view.update(&live.sample.borrow());
        let losses = crate::report::losses(&live.sample.borrow().losses);
        let table = text(view, &live.head(), arguments.top, Output::Stdout.columns());
        let gap = if at == 0 { "" } else { "\n" };
        if !output::line(&format!("{gap}{losses}{}", table.trim_end()))? || live.watch.is_over() {
            break;
        }
    }
    Ok(())
}
