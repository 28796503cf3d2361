//! The guard as an extension of a session.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use control::Response;
use kernel::gate::Lock;
use kernel::guard::hold_table::PinnedHolds;
use kernel::guard::holds::Holds;
use kernel::session::{LiveThread, SessionOptions};

use super::events::Events;
use super::extension::Guard;
use super::metrics::guard_metrics;
use super::persist::SaveScope;
use super::policy::Policy;
use super::replies::reply;
use super::report::GuardReport;
use super::requests::REQUEST_KEY;
use super::unguarded_programs::UnguardedPrograms;
use crate::extension::{
    Extension, ExtensionSetup, Joining, Losses, PROGRAMS_NOT_IDENTIFIED, Request, SessionContext,
};
use crate::format::{number_of, printable};
use crate::output::{log_message, print_message};
use crate::report::Section;

/// How often changed baselines are stored.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);

/// For how long a session waits at its end for files of programs from which nothing is read: they
/// may be on a file system that does not answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// For how long it waits for files that are being hashed: for the longest file
/// (`MAX_HASHED_BYTES`), if 100 MB a second are hashed.
const LONGEST_SETTLING: Duration = Duration::from_secs(10);

/// A guard with a policy.
pub struct GuardSetup {
    pub policy: Policy,
    /// Where a daemon's events go. `None` for a command, which has its events in its report.
    pub events: Option<Events>,
    /// The only executables that are guarded. If empty, all are guarded.
    pub executables: Vec<PathBuf>,
}

impl ExtensionSetup for GuardSetup {
    fn configure(&self, options: &mut SessionOptions) {
        options.guard = self.policy.wire;
        options.mask |= self.policy.mask();
    }

    fn start(self: Box<Self>, context: &mut SessionContext<'_>) -> Result<Box<dyn Extension>> {
        let may_hold = self.policy.holds();
        let lock = Lock::take()?;
        let guard = Guard::start(context.gate, &lock, context.session, self.policy)?;
        let unpinned = |error| {
            print_message(&format!(
                "tollgate: {error}; `guard off` cannot reach this guard, and cannot release its \
                processes if the guard and its watchdog are killed together"
            ))
        };
        let pin = may_hold
            .then(|| PinnedHolds::new(context.gate, &lock).map_err(unpinned).ok())
            .flatten();
        Ok(Box::new(GuardInSession {
            guard,
            events: self.events,
            executables: self.executables,
            _pin: pin,
            report: None,
            noted_other_guard: false,
            unguarded: UnguardedPrograms::default(),
            since: SystemTime::now(),
            saved: Instant::now(),
        }))
    }
}

struct GuardInSession {
    guard: Guard,
    /// As in [`GuardSetup`].
    events: Option<Events>,
    executables: Vec<PathBuf>,
    /// Lets `guard off` find the held processes, even if the watchdog is killed together with the
    /// guard.
    _pin: Option<PinnedHolds>,
    /// Made before the tasks are detached.
    report: Option<GuardReport>,
    noted_other_guard: bool,
    unguarded: UnguardedPrograms,
    since: SystemTime,
    saved: Instant,
}

impl GuardInSession {
    /// Prints once that processes stay with another guard. This one learns nothing from them.
    /// `joining`: processes that are about to join the session.
    fn note_guarded_by_another(&mut self, context: &SessionContext<'_>, joining: &[u32]) {
        let holds = Holds::new(context.gate, context.session.index);
        if !self.noted_other_guard
            && let Some((process, other)) =
                holds.guarded_by_another(joining, |process| self.selects(process))
        {
            self.noted_other_guard = true;
            log_message(&format!(
                "Tollgate process {other} already guards process {process} and maybe others: they \
                stay with it, and this guard neither tests them nor learns from them"
            ));
        }
    }

    /// Whether a process runs a program that this guard selects.
    fn selects(&self, process: u32) -> bool {
        let file = |path: &Path| fs::metadata(path).ok().map(|of| (of.dev(), of.ino()));
        let program = file(Path::new(&format!("/proc/{process}/exe")));
        self.executables.is_empty()
            || program.is_some() && self.executables.iter().any(|path| file(path) == program)
    }

    /// Publishes new events, if this is the guard of a daemon.
    fn publish_events(&mut self) {
        if let Some(events) = &mut self.events {
            self.guard.events.take().iter().for_each(|event| events.publish(event));
        }
    }
}

impl Extension for GuardInSession {
    fn prepare(
        &mut self,
        context: &mut SessionContext<'_>,
        joining: &mut Joining<'_>,
    ) -> Result<()> {
        match joining {
            Joining::Later => {
                self.guard.programs.prepare_selected(context.gate)?;
                self.guard.programs.preload_stored(context.gate)
            }
            Joining::Command { program, words } => {
                self.guard.programs.preload_command(context.gate, &Lock::take()?, program, words)
            }
            Joining::Processes { pids, scopes } => {
                self.note_guarded_by_another(context, pids);
                scopes.extend(self.guard.programs.preload_processes(context.gate, pids)?);
                Ok(())
            }
        }
    }

    fn begin(&mut self, began_ns: u64) {
        self.guard.events.begin(began_ns);
    }

    fn summary(&self, processes: Option<usize>) -> Option<String> {
        let executables: Vec<_> =
            self.executables.iter().map(|path| printable(&path.to_string_lossy())).collect();
        let what = match (processes, executables.join(", ").as_str()) {
            (None, "") => "every process".into(),
            (None, all) => format!("every process of {all}"),
            (Some(processes), "") => number_of(processes, "process"),
            (Some(processes), all) => format!("{all} in {}", number_of(processes, "process")),
        };
        Some(format!(
            "guarding {what} ({}); `tollgate guard status` shows the state",
            self.guard.mode().name()
        ))
    }

    fn on_record(&mut self, context: &mut SessionContext<'_>, record: &[u8]) -> Result<bool> {
        if let Some(program) = kernel::ring::guard_program(record) {
            self.guard.programs.on_program_start(context.gate, &program)?;
        } else if let Some(event) = kernel::ring::guard_event(record) {
            self.guard.on_event(&event);
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn tend(&mut self, context: &mut SessionContext<'_>) -> Result<()> {
        self.guard.tend(context.gate)?;
        self.publish_events();
        Ok(())
    }

    fn settle(&mut self, context: &mut SessionContext<'_>) -> Result<()> {
        self.guard.programs.settle(context.gate, PATIENCE, LONGEST_SETTLING)
    }

    fn deadline(&self, longest: Duration) -> Duration {
        self.guard.deadline(longest)
    }

    fn refresh(&mut self, context: &mut SessionContext<'_>) -> Result<()> {
        if let Some(events) = &mut self.events {
            events.tend();
        }
        // A control group may have got a process that is guarded already.
        self.note_guarded_by_another(context, &[]);
        // None of these must prevent the others.
        let logged = self.unguarded.tend(context);
        let selected = self.guard.programs.refresh_selected(context.gate);
        let evicted = self.guard.programs.evict_unused(context.gate);
        let evicted = logged.and(selected).and(evicted);
        if self.saved.elapsed() <= SAVE_INTERVAL {
            return evicted;
        }
        self.saved = Instant::now();
        // A failure is only logged: saving may succeed the next time, for example after a full
        // disk.
        evicted.and(self.guard.programs.save(context.gate, SaveScope::Changed))
    }

    fn request_key(&self) -> Option<&'static str> {
        Some(REQUEST_KEY)
    }

    fn note_client(&mut self, context: &mut SessionContext<'_>, process: u32) {
        self.guard.holds.note_operator(context.gate, process);
    }

    fn reply(&mut self, context: &mut SessionContext<'_>, request: Request) -> Result<Response> {
        let (request, losses) = request.parse()?;
        let events = self.events.as_mut().context("this guard takes no requests")?;
        reply(&mut self.guard, events, context.gate, request, self.since, losses)
    }

    fn losses(&self) -> Losses {
        let mut losses = self.events.as_ref().map(Events::losses).unwrap_or_default();
        let unidentified = self.guard.programs.unidentified();
        if unidentified > 0 {
            losses.insert(PROGRAMS_NOT_IDENTIFIED.into(), unidentified);
        }
        losses
    }

    fn metrics(
        &mut self,
        context: &mut SessionContext<'_>,
        losses: &Losses,
        page: &mut String,
    ) -> Result<()> {
        guard_metrics(page, &self.guard.status(context.gate, self.since, losses.clone()));
        Ok(())
    }

    fn before_detach(&mut self, _live: &[LiveThread]) {
        self.report = Some(self.guard.report());
    }

    fn save(&mut self) -> Result<()> {
        self.publish_events();
        self.guard.programs.save_at_end().context("the baselines could not be stored")
    }

    fn section(
        &mut self,
        context: &mut SessionContext<'_>,
        _notes: &mut Vec<String>,
    ) -> Result<Option<Box<dyn Section>>> {
        let foreign_continues = self.guard.holds.foreign_continues(context.gate);
        Ok(self.report.take().map(|report| {
            Box::new(GuardReport { foreign_continues, ..report }) as Box<dyn Section>
        }))
    }

    fn end(&mut self) {
        self.guard.holds.dismiss_watchdog();
    }
}
