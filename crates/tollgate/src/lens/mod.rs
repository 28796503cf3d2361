//! `tollgate lens`: watch what already runs, and compare reports.

mod diff;
mod select;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use kernel::process::wait_readable;

pub use diff::diff;

use crate::cli::{LensArguments, Select};
use crate::output::{Output, say};
use crate::run::options;
use crate::watch::{Ending, TICK, Watch};

/// How often later processes are looked for (--comm, --cgroup, --unit).
const LOOK_AGAIN: Duration = Duration::from_millis(500);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

pub fn watch(arguments: &LensArguments) -> Result<ExitCode> {
    let select = &arguments.select;
    if select.is_empty() {
        bail!("say which processes to watch: -p PID, --comm NAME, --cgroup PATH, --unit UNIT or --all");
    }
    let mut output = Output::open(arguments.result.output.as_deref(), Output::Stdout)?;
    let found = select::processes(select)?;
    let mut watch = Watch::start(options(&arguments.lens_options))?;
    kernel::process::on_interrupt(&INTERRUPTED)?;
    let missed = watch.gate.adopt(&mut watch.session, &found)?;
    let mut known = BTreeSet::from_iter(found);
    if select.all {
        watch.gate.gate_everything_new(&watch.session);
    }
    watch.begin();
    if arguments.duration.is_none() {
        let _ = say(&format!("tollgate: watching {} processes; Ctrl-C ends it", known.len()));
    }
    until_done(arguments, &mut watch, &mut known)?;
    let mut notes = Vec::new();
    if missed > 0 {
        notes.push(format!("{missed} processors could not be visited: threads that ran there are seen from their next context switch on"));
    }
    let ending =
        Ending { command: std::env::args().collect(), exit: None, user_ns: None, system_ns: None, notes };
    let document = watch.finish(ending)?;
    arguments.result.print(&document, &mut output)?;
    Ok(ExitCode::SUCCESS)
}

/// Takes in processes that match and were not there before.
fn take_in_later_ones(select: &Select, watch: &mut Watch, known: &mut BTreeSet<u32>) -> Result<()> {
    let mut found = select::processes(select)?;
    found.retain(|pid| !known.contains(pid));
    if !found.is_empty() {
        watch.gate.adopt(&mut watch.session, &found)?;
        known.extend(found);
    }
    Ok(())
}

fn until_done(arguments: &LensArguments, watch: &mut Watch, known: &mut BTreeSet<u32>) -> Result<()> {
    let select = &arguments.select;
    let waits_for_more = select.all || select.finds_later_ones();
    let end = arguments.duration.map(|duration| Instant::now() + duration);
    let mut looked = Instant::now();
    while !INTERRUPTED.load(Ordering::Relaxed) {
        let left = end.map_or(TICK, |end| end.saturating_duration_since(Instant::now()).min(TICK));
        if left.is_zero() {
            break;
        }
        wait_readable(watch.descriptor(), left);
        watch.tend()?;
        if select.finds_later_ones() && looked.elapsed() >= LOOK_AGAIN {
            take_in_later_ones(select, watch, known)?;
            looked = Instant::now();
        }
        if !waits_for_more && watch.gate.live_threads(watch.session.index).is_empty() {
            let _ = say("tollgate: the last of the processes has ended");
            break;
        }
    }
    Ok(())
}
