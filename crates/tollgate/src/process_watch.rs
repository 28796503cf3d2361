//! Watches running processes in a session.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Error, Result, anyhow, bail};
use kernel::losses::LOSS_REASONS;
use kernel::process::wait_readable;
use kernel::wire;

use crate::extension::ExtensionSetup;
use crate::format::{count, given_time, number_of};
use crate::output::print_message;
use crate::process_selection::{self, Select};
use crate::report::Report;
use crate::session_runner::{SessionEnd, SessionRunner};

/// How often to search for new processes (`--comm`, `--cgroup`, `--unit`).
const REFRESH_INTERVAL: Duration = Duration::from_millis(500);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Which processes to watch, and for how long.
pub struct ProcessWatch<'a> {
    pub select: &'a Select,
    /// `None`: until an interrupt.
    pub duration: Option<Duration>,
    pub measures_toll: bool,
}

/// Gates the selected processes in a session with these extensions. Returns the report at the end.
pub fn watch(
    watched: &ProcessWatch<'_>,
    extensions: Vec<Box<dyn ExtensionSetup>>,
) -> Result<Report> {
    let select = watched.select;
    let mut watch = RunningWatch::start(select, extensions)?;
    let end = watched.duration.map(|duration| Instant::now() + duration);
    let time = watched.duration.map_or(String::new(), |time| format!(" for {}", given_time(time)));
    let _ = print_message(&match watch.attached.len() {
        0 => format!(
            "tollgate: no process matches yet; watching for later ones{time}; Ctrl-C ends the watch"
        ),
        n => format!("tollgate: watching {}{time}; Ctrl-C ends the watch", number_of(n, "process")),
    });
    let mut notes = Vec::new();
    if let Err(error) = run_until_done(&mut watch, end) {
        notes.push(format!("the watch ended early: {error:#}"));
    }
    let RunningWatch { runner, attached, missed, .. } = watch;
    if missed > 0 {
        notes.push(format!(
            "{missed} processors could not be visited: threads that were running \
            there are recorded from their next context switch on"
        ));
    }
    let ending = SessionEnd {
        command: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        exit: None,
        ended_ns: None,
        user_ns: None,
        system_ns: None,
        notes,
        measures_toll: watched.measures_toll,
    };
    let mut report = runner.finish(ending);
    // A process that has entered a control group and ended soon is not among the attached ones.
    if attached.is_empty() && report.calls_seen() == 0 {
        let compared = match select.comm.is_empty() {
            true => "",
            false => ", and compared --comm with /proc/PID/comm",
        };
        report.notes.push(format!("no process matched; Tollgate polled twice a second{compared}"));
    }
    Ok(report)
}

/// A session of running processes that has begun.
pub struct RunningWatch<'a> {
    pub runner: SessionRunner,
    select: &'a Select,
    attached: BTreeSet<u32>,
    /// How many processors could not be visited.
    missed: u32,
    last_refresh: Instant,
}

impl<'a> RunningWatch<'a> {
    /// Gates the selected processes in a session with these extensions. From then on, an interrupt
    /// is only noted: see [`is_interrupted`].
    pub fn start(select: &'a Select, extensions: Vec<Box<dyn ExtensionSetup>>) -> Result<Self> {
        if select.is_empty() {
            bail!(
                "select the processes to watch: -p PID, --comm NAME, --cgroup PATH, --unit UNIT or \
                --all"
            );
        }
        let named = process_selection::by_pid(select)?;
        process_selection::check_cgroups(select)?;
        let mut runner = SessionRunner::start_watch(select, extensions)?;
        kernel::signals::on_interrupt(&INTERRUPTED)?;
        if select.all {
            runner.gate_new_processes();
        }
        runner.follow_cgroups(select)?;
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
        let pids: Vec<_> = attached.iter().copied().collect();
        missed = missed.max(runner.begin(&pids)?);
        let watch = Self { runner, select, attached, missed, last_refresh: Instant::now() };
        if watch.is_over() {
            return Err(watch.refuse());
        }
        Ok(watch)
    }

    /// Says why no thread was gated.
    fn refuse(self) -> Error {
        let losses = self.runner.losses();
        if let Err(error) = self.runner.cancel() {
            return error;
        }
        match losses {
            Err(error) => error,
            Ok(losses)
                if losses.contains_key(LOSS_REASONS[wire::LOSS_THREADS_FULL as usize].text) =>
            {
                anyhow!(
                    "the gate has no room for the threads of these processes: it holds {} threads, \
                    in all Tollgate sessions together",
                    count(u64::from(wire::THREADS) - 1)
                )
            }
            Ok(_) => anyhow!(
                "no thread of these processes could be gated: they have ended, are kernel threads \
                (which make no calls), or this kernel hides them from BPF"
            ),
        }
    }

    /// Tends the session, and attaches what matches since. Must be called at least once in each
    /// [`SessionRunner::deadline`].
    pub fn tend(&mut self) -> Result<()> {
        self.runner.tend()?;
        if self.select.is_dynamic() && self.last_refresh.elapsed() >= REFRESH_INTERVAL {
            let found = process_selection::by_properties(self.select);
            attach(found, &mut self.runner, &mut self.attached)?;
            self.last_refresh = Instant::now();
        }
        Ok(())
    }

    /// Whether the last of the processes has ended, and no other one can match later.
    pub fn is_over(&self) -> bool {
        !self.select.all && !self.select.is_dynamic() && !self.runner.has_threads()
    }
}

/// Whether Ctrl-C, SIGTERM or SIGHUP has come.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
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
fn run_until_done(watch: &mut RunningWatch<'_>, end: Option<Instant>) -> Result<()> {
    while !is_interrupted() {
        let wait = watch.runner.deadline();
        let left = end.map_or(wait, |end| end.saturating_duration_since(Instant::now()).min(wait));
        if left.is_zero() {
            break;
        }
        wait_readable(watch.runner.descriptor(), left);
        watch.tend()?;
        if watch.is_over() {
            let _ = print_message("tollgate: the last of the processes has ended");
            break;
        }
    }
    Ok(())
}
