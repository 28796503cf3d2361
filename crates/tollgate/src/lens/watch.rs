//! `tollgate lens` without a subcommand: watches running processes.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use kernel::losses::LOSS_REASONS;
use kernel::process::wait_readable;
use kernel::wire;

use super::arguments::LensArguments;
use crate::format::number_of;
use crate::output::{Output, print_message};
use crate::process_selection;
use crate::report::print;
use crate::session_runner::{SessionEnd, SessionRunner, TEND_INTERVAL};

/// How often to search for new processes (`--comm`, `--cgroup`, `--unit`).
const REFRESH_INTERVAL: Duration = Duration::from_millis(500);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Gates the selected processes and reports at the end.
pub fn watch(arguments: &LensArguments) -> Result<ExitCode> {
    let select = &arguments.select;
    if select.is_empty() {
        bail!(
            "select the processes to watch: -p PID, --comm NAME, --cgroup PATH, --unit UNIT or \
            --all"
        );
    }
    let mut output = Output::open(arguments.result.output.as_deref(), Output::Stdout)?;
    let named = process_selection::by_pid(select)?;
    process_selection::warn_missing_cgroups(select);
    let mut runner = SessionRunner::start(vec![Box::new(arguments.lens_options.setup())])?;
    kernel::signals::on_interrupt(&INTERRUPTED)?;
    if select.all {
        runner.gate_new_processes();
    }
    let mut attached = BTreeSet::new();
    let mut missed = attach(named, &mut runner, &mut attached)?;
    // Further rounds find processes that others forked while the first ones were attached.
    for _ in 0..2 {
        runner.tend()?;
        missed = missed.max(attach(
            process_selection::by_properties(select),
            &mut runner,
            &mut attached,
        )?);
    }
    if !select.all && !select.is_dynamic() && !runner.has_threads() {
        let is_full =
            runner.losses()?.contains_key(LOSS_REASONS[wire::LOSS_THREADS_FULL as usize].text);
        runner.cancel()?;
        ensure!(
            !is_full,
            "the gate has no room for these processes: other Tollgate sessions keep a row for too \
            many processes or threads (`--per process`, `--per thread`)"
        );
        bail!(
            "no thread of these processes could be gated: they have ended, are kernel threads \
            (which make no calls), or this kernel hides them from BPF"
        );
    }
    runner.begin()?;
    let time = arguments.duration.map_or(String::new(), |time| format!(" for {time:?}"));
    let _ = print_message(&match attached.len() {
        0 => format!(
            "tollgate: no process matches yet; watching for later ones{time}; Ctrl-C ends the watch"
        ),
        n => format!("tollgate: watching {}{time}; Ctrl-C ends the watch", number_of(n, "process")),
    });
    run_until_done(arguments, &mut runner, &mut attached)?;
    let mut notes = Vec::new();
    if attached.is_empty() {
        notes.push("no process matched; Tollgate polled twice a second".into());
    }
    if missed > 0 {
        notes.push(format!(
            "{missed} processors could not be visited: threads that were running \
            there are recorded from their next context switch on"
        ));
    }
    let ending = SessionEnd {
        command: std::env::args().collect(),
        exit: None,
        user_ns: None,
        system_ns: None,
        notes,
        measures_toll: !arguments.lens_options.no_toll,
    };
    let report = runner.finish(ending)?;
    print(&report, &arguments.result, &mut output)?;
    Ok(ExitCode::SUCCESS)
}

/// Attaches those of the found processes that are not attached yet. Returns how many processors
/// could not be visited.
fn attach(
    mut found: Vec<u32>,
    runner: &mut SessionRunner,
    attached: &mut BTreeSet<u32>,
) -> Result<u32> {
    found.retain(|pid| !attached.contains(pid));
    found.sort_unstable();
    found.dedup();
    if found.is_empty() {
        return Ok(0);
    }
    let missed = runner.attach(&found)?;
    attached.extend(found);
    Ok(missed)
}

/// Tends the session until the time of `--for` has passed, an interrupt comes, or no task is left.
fn run_until_done(
    arguments: &LensArguments,
    runner: &mut SessionRunner,
    attached: &mut BTreeSet<u32>,
) -> Result<()> {
    let select = &arguments.select;
    let waits_for_more = select.all || select.is_dynamic();
    let end = arguments.duration.map(|duration| Instant::now() + duration);
    let mut last_refresh = Instant::now();
    while !INTERRUPTED.load(Ordering::Relaxed) {
        let left = end.map_or(TEND_INTERVAL, |end| {
            end.saturating_duration_since(Instant::now()).min(TEND_INTERVAL)
        });
        if left.is_zero() {
            break;
        }
        wait_readable(runner.descriptor(), left);
        runner.tend()?;
        if select.is_dynamic() && last_refresh.elapsed() >= REFRESH_INTERVAL {
            attach(process_selection::by_properties(select), runner, attached)?;
            last_refresh = Instant::now();
        }
        if !waits_for_more && !runner.has_threads() {
            let _ = print_message("tollgate: the last of the processes has ended");
            break;
        }
    }
    Ok(())
}
