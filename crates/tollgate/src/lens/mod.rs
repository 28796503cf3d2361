//! `tollgate lens`: watch what already runs, and compare reports.

mod diff;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use kernel::process::wait_readable;

pub use diff::diff;

use crate::cli::LensArguments;
use crate::format::number_of;
use crate::output::{Output, say};
use crate::run::options;
use crate::select;
use crate::watch::{Ending, THREADS_FULL, TICK, Watch};

/// How often later processes are looked for (--comm, --cgroup, --unit).
const LOOK_AGAIN: Duration = Duration::from_millis(500);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

pub fn watch(arguments: &LensArguments) -> Result<ExitCode> {
    let select = &arguments.select;
    if select.is_empty() {
        bail!("say which processes to watch: -p PID, --comm NAME, --cgroup PATH, --unit UNIT or --all");
    }
    let mut output = Output::open(arguments.result.output.as_deref(), Output::Stdout)?;
    let named = select::named(select)?;
    select::tell_of_absent(select);
    let mut watch = Watch::start(options(&arguments.lens_options))?;
    kernel::signals::on_interrupt(&INTERRUPTED)?;
    if select.all {
        watch.gate.gate_everything_new(&watch.session);
    }
    let mut known = BTreeSet::new();
    let mut missed = take_in(named, &mut watch, &mut known)?;
    // Those that were forked by others while the first were taken in.
    for _ in 0..2 {
        watch.tend()?;
        missed = missed.max(take_in(select::matching(select), &mut watch, &mut known)?);
    }
    if !select.all && !select.finds_later_ones() && !watch.gate.has_threads(watch.session.index) {
        let is_full = watch.losses()?.contains_key(THREADS_FULL);
        watch.give_up()?;
        ensure!(
            !is_full,
            "the gate has no room for them: other Tollgate processes watch too many processes or threads \
             one by one (`--per process`, `--per thread`)"
        );
        bail!(
            "no thread of these could be gated: they have ended, or are kernel threads, which make no calls, or \
             this kernel keeps them from BPF"
        );
    }
    watch.begin()?;
    let time = arguments.duration.map_or(String::new(), |time| format!(" for {time:?}"));
    let _ = say(&match known.len() {
        0 => format!("tollgate: no process matches so far; watching for later ones{time}; Ctrl-C ends it"),
        n => format!("tollgate: watching {}{time}; Ctrl-C ends it", number_of(n, "process")),
    });
    until_done(arguments, &mut watch, &mut known)?;
    let mut notes = Vec::new();
    if known.is_empty() {
        notes.push("no process matched when they were looked for, twice a second".into());
    }
    if missed > 0 {
        notes.push(format!("{missed} processors could not be visited: threads that ran there are seen from their next context switch on"));
    }
    let ending = Ending {
        command: std::env::args().collect(),
        exit: None,
        user_ns: None,
        system_ns: None,
        notes,
        measures_toll: !arguments.lens_options.no_toll,
    };
    let document = watch.finish(ending)?;
    arguments.result.print(&document, &mut output)?;
    Ok(ExitCode::SUCCESS)
}

/// Takes in processes that are not known yet; returns how many processors could not be visited.
fn take_in(mut found: Vec<u32>, watch: &mut Watch, known: &mut BTreeSet<u32>) -> Result<u32> {
    found.retain(|pid| !known.contains(pid));
    found.sort_unstable();
    found.dedup();
    if found.is_empty() {
        return Ok(0);
    }
    let missed = watch.gate.adopt(&mut watch.session, &found, &BTreeMap::new())?;
    known.extend(found);
    Ok(missed)
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
            take_in(select::matching(select), watch, known)?;
            looked = Instant::now();
        }
        if !waits_for_more && !watch.gate.has_threads(watch.session.index) {
            let _ = say("tollgate: the last of the processes has ended");
            break;
        }
    }
    Ok(())
}
