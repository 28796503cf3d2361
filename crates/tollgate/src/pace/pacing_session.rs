//! Pacing as an extension of a session: learns the work of each type of tasks, and gives the gate
//! the schedules by which their speeds are set.

use std::path::Path;
use std::time::{Duration, Instant};

use ::pace::{Levels, TaskRules};
use anyhow::Result;
use control::Response;
use kernel::pace::actuator::Actuator;
use kernel::pace::speed_journal::{JOURNAL, SpeedJournal};
use kernel::pace::{GateSchedule, Pacing, TrackingRules, TypeKey};
use kernel::session::LiveThread;
use kernel::{ring, wire};

use super::actuators::with_actuators;
use super::estimator_chooser::EstimatorChooser;
use super::learned_type::{LearnedType, Margin};
use super::metrics::pacing_metrics;
use super::pacing_report::{PacedDomain, PacedSession, PacedType, PacingReport, ReportedStep};
use super::requests::{PaceRequest, REQUEST_KEY, ResetReply};
use super::sample_store::SampleStore;
use super::speed_thread::{GOVERNOR_RELEASE_DELAY, SpeedThread};
use super::speed_watchdog::SpeedWatchdog;
use super::tracked_tasks::TrackedTasks;
use super::type_table::{TypeTable, is_abandoned};
use crate::extension::{Extension, Losses, Request, SessionContext};
use crate::format::number_of;
use crate::output::log_message;
use crate::report::Section;

/// How often the gate searches for other work on a processor below the fastest speed. Work that is
/// ready for a shorter time would end before the speed has changed.
const SEARCH_INTERVAL: Duration = Duration::from_millis(1);
/// The median and the 99th percentile of the latency before it is measured.
const FIRST_LATENCY: (Duration, Duration) =
    (Duration::from_micros(100), Duration::from_micros(300));
/// The latency by which schedules are planned changes if the measured one differs by this factor,
/// so that schedules are not made anew for each measurement.
const LATENCY_STEP: f64 = 1.5;
/// A tick of the scheduler, at which a governor applies new bounds: that of CONFIG_HZ=250, which
/// most distributions use.
const TICK: Duration = Duration::from_millis(4);
/// A task without a running thread does not decide speeds any more when it is older than this, and
/// older than a multiple of the longest deadline. Its program may have forgotten to end it.
const MIN_UNENDED_LIMIT: Duration = Duration::from_secs(10);
const UNENDED_DEADLINES: f64 = 10.0;
/// The maximum number of types whose samples are stored at a time. Each waits for the disk.
const SAVED_AT_ONCE: usize = 16;
/// How often changed samples are stored.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);

/// A type, with what is learned of it.
struct Paced {
    learned: LearnedType,
    report: PacedType,
    /// Tasks have ended since the samples were stored.
    is_unsaved: bool,
    latest_save: Instant,
    /// The gate has no room for its schedule.
    has_no_room: bool,
    /// Its key in the gate, if it has had a schedule.
    gate_key: Option<TypeKey>,
}

/// What pacing needs.
pub struct PacingInput {
    pub rules: TaskRules,
    /// The same rules, as the gate needs them.
    pub tracking_rules: TrackingRules,
    pub levels: Levels,
    pub store: SampleStore,
}

pub struct PacingInSession {
    began_ns: u64,
    levels: Levels,
    tasks: TrackedTasks,
    types: TypeTable,
    store: SampleStore,
    chooser: EstimatorChooser,
    /// In the order of the types in `types`.
    paced: Vec<Paced>,
    pacing: Pacing,
    margin: Margin,
    /// How long the governors take to apply what is written.
    governor_delay: Duration,
    domains: Vec<PacedDomain>,
    abandoned: usize,
    unfinished: usize,
    /// Both are taken at the end of the session.
    thread: Option<SpeedThread>,
    watchdog: Option<SpeedWatchdog>,
}

impl Extension for PacingInSession {
    fn begin(&mut self, began_ns: u64) {
        self.began_ns = began_ns;
        self.tasks.begin();
    }

    fn summary(&self, _processes: Option<usize>) -> Option<String> {
        Some(format!("pacing tasks in {}", number_of(self.domains.len(), "frequency domain")))
    }

    fn on_record(&mut self, _context: &mut SessionContext<'_>, record: &[u8]) -> Result<bool> {
        let Some(named) = ring::pace_type(record) else { return Ok(false) };
        if let Some(kind) = self.types.name_type(&named) {
            self.rename(kind);
        }
        Ok(true)
    }

    fn tend(&mut self, context: &mut SessionContext<'_>) -> Result<()> {
        self.tasks.ended().iter().try_for_each(|task| self.add(task))?;
        let Some(abandoned) = self.tasks.check(context.gate)? else { return Ok(()) };
        self.abandoned += abandoned;
        self.tasks.stop_pacing_old(self.unended_limit());
        self.choose();
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.tend()?;
        }
        let latency = self.thread.as_ref().and_then(|thread| thread.stats().latency());
        if let Some((usual, slow)) = latency {
            let (usual, slow) = (usual + self.governor_delay, slow + self.governor_delay);
            let quotient = slow.as_secs_f64() / self.margin.latency.1.as_secs_f64();
            if !(1.0 / LATENCY_STEP..LATENCY_STEP).contains(&quotient) {
                self.margin.latency = (usual, slow);
            }
        }
        self.save_some();
        Ok(())
    }

    fn save(&mut self) -> Result<()> {
        let saved = self.paced.iter_mut().map(|paced| paced.save(&self.store));
        saved.fold(Ok(()), Result::and)
    }

    fn before_detach(&mut self, _live: &[LiveThread]) {
        self.tasks.before_detach();
    }

    fn section(
        &mut self,
        _context: &mut SessionContext<'_>,
        notes: &mut Vec<String>,
    ) -> Result<Option<Box<dyn Section>>> {
        let (ended, unended) = self.tasks.at_end();
        // No task needs a schedule any more.
        ended.iter().for_each(|task| drop(self.learn(task)));
        let failure = self.save().err().map(|error| format!("{error:#}"));
        // The session has noted a failure to save before.
        notes.extend(failure.filter(|failure| !notes.contains(failure)));
        self.unfinished = unended.unfinished;
        self.abandoned += unended.abandoned;
        let unplanned = self.paced.iter().filter(|paced| paced.has_no_room).count();
        if unplanned > 0 {
            notes.push(format!(
                "{} of tasks ran at the fastest speed, because there is room for {} schedules",
                number_of(unplanned, "further type"),
                wire::PACE_SCHEDULES - 1
            ));
        }
        Ok(Some(Box::new(self.report())))
    }

    fn request_key(&self) -> Option<&'static str> {
        Some(REQUEST_KEY)
    }

    fn reply(&mut self, _context: &mut SessionContext<'_>, request: Request) -> Result<Response> {
        Ok(Response::Value(match request.parse()?.0 {
            PaceRequest::Report => {
                self.unfinished = self.tasks.unended().unfinished;
                self.tasks.measure();
                serde_json::to_value(self.report())?
            }
            PaceRequest::Reset { types, store } => {
                let own = self.store.path_of_folder();
                serde_json::to_value(match store == own {
                    true => ResetReply::Unknown(self.reset(&types)?),
                    false => ResetReply::OtherStore(own),
                })?
            }
        }))
    }

    fn metrics(
        &mut self,
        _context: &mut SessionContext<'_>,
        _losses: &Losses,
        page: &mut String,
    ) -> Result<()> {
        pacing_metrics(page, &self.report());
        Ok(())
    }

    fn leave(&mut self) {
        self.tasks.stop_pacing();
        // The thread restores the speeds, and the watchdog is needed until then.
        self.thread = None;
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.stop();
        }
    }
}

impl Paced {
    /// Stores the samples, if tasks have ended since they were stored.
    fn save(&mut self, store: &SampleStore) -> Result<()> {
        self.latest_save = Instant::now();
        if self.is_unsaved {
            store.save(&self.report.name, self.learned.samples())?;
            self.is_unsaved = false;
        }
        Ok(())
    }

    fn new(types: &TypeTable, store: &SampleStore, kind: usize) -> Self {
        let one = &types.types()[kind];
        Self {
            learned: LearnedType::new(one.deadline_ms, one.target, store.load(&one.name)),
            report: PacedType::new(one),
            is_unsaved: false,
            latest_save: Instant::now(),
            has_no_room: false,
            gate_key: None,
        }
    }
}

impl PacingInSession {
    pub fn start(input: PacingInput, context: &mut SessionContext<'_>) -> Result<Self> {
        let root = Path::new("/");
        let mut journal = SpeedJournal::open(Path::new(JOURNAL))?;
        journal.restore(root)?;
        let tasks = TrackedTasks::start(context, &input.tracking_rules)?;
        let domains = with_actuators(root, tasks.domains(), input.rules.actuator.as_deref())?;
        let waits_for_governor = domains.iter().any(|(_, actuator)| {
            matches!(actuator, Actuator::Bounds | Actuator::Preference | Actuator::Clamp)
        });
        let governor_delay = if waits_for_governor { TICK } else { Duration::ZERO };
        let watchdog = SpeedWatchdog::start()?;
        let session = context.session.index;
        let pacing = Pacing::start(
            context.gate,
            session,
            tasks.domains(),
            SEARCH_INTERVAL,
            GOVERNOR_RELEASE_DELAY,
        )?;
        tasks.set_powers(&input.levels);
        let thread = SpeedThread::start(context.gate, journal, &domains)?;
        Ok(Self {
            began_ns: 0,
            levels: input.levels,
            tasks,
            types: TypeTable::new(input.rules),
            store: input.store,
            chooser: EstimatorChooser::default(),
            paced: Vec::new(),
            pacing,
            margin: Margin {
                latency: (FIRST_LATENCY.0 + governor_delay, FIRST_LATENCY.1 + governor_delay),
            },
            governor_delay,
            domains: domains
                .iter()
                .map(|(domain, actuator)| PacedDomain::new(domain, *actuator))
                .collect(),
            abandoned: 0,
            unfinished: 0,
            thread: Some(thread),
            watchdog: Some(watchdog),
        })
    }

    /// Uses the estimator that was chosen, and lets the next one be chosen.
    fn choose(&mut self) {
        if let Some((kind, estimator)) = self.chooser.finished() {
            self.paced[kind].learned.set_estimator(estimator);
        }
        if !self.chooser.is_free() {
            return;
        }
        let due = self.paced.iter().enumerate();
        let due = due.filter_map(|(kind, paced)| Some((paced.learned.choice_due()?, kind)));
        if let Some((_, kind)) = due.max() {
            let input = self.paced[kind].learned.begin_choice();
            self.chooser.start(kind, self.levels.clone(), input);
        }
    }

    /// The age from which a task without a running thread does not decide speeds.
    fn unended_limit(&self) -> Duration {
        let longest = self.types.types().iter().map(|one| one.deadline_ms).fold(0.0, f64::max);
        MIN_UNENDED_LIMIT.max(Duration::from_secs_f64(longest / 1e3 * UNENDED_DEADLINES))
    }

    /// Stores samples that have changed and were not stored for a while. A failure is logged, and
    /// the next attempt follows after the same interval.
    fn save_some(&mut self) {
        let due = self
            .paced
            .iter_mut()
            .filter(|paced| paced.is_unsaved && paced.latest_save.elapsed() >= SAVE_INTERVAL);
        let saved = due.take(SAVED_AT_ONCE).map(|paced| paced.save(&self.store));
        if let Err(error) = saved.fold(Ok(()), Result::and) {
            log_message(&format!("{error:#}"));
        }
    }

    /// A type has another name, deadline or target. Its counts stay, and its work is added to what
    /// is stored under that name.
    fn rename(&mut self, kind: usize) {
        let old = &self.paced[kind];
        if let Some(key) = &old.gate_key {
            self.pacing.remove_schedule(key);
        }
        let mut new = Paced::new(&self.types, &self.store, kind);
        new.learned.add_samples(old.learned.samples());
        new.report = PacedType {
            name: new.report.name,
            deadline_ms: new.report.deadline_ms,
            target: new.report.target,
            ..old.report.clone()
        };
        new.is_unsaved = old.is_unsaved;
        self.paced[kind] = new;
    }

    /// The processor time of schedules and choices.
    fn planning_time(&self) -> Duration {
        let schedules: Duration = self.paced.iter().map(|one| one.learned.planning_time()).sum();
        schedules + self.chooser.used()
    }

    fn report(&self) -> PacingReport {
        let stats = self.thread.as_ref().map(SpeedThread::stats).unwrap_or_default();
        let types = self.paced.iter().map(|paced| PacedType {
            schedule: paced
                .learned
                .active()
                .filter(|_| !paced.has_no_room)
                .map(ReportedStep::of_schedule),
            ..paced.report.clone()
        });
        PacingReport::new(PacedSession {
            domains: self.domains.clone(),
            stats: &stats,
            types: types.collect(),
            fastest: *self.levels.all().last().expect("there is a level"),
            idle_watts: self.levels.idle_watts(),
            measured: self.tasks.measured_energy(),
            planning: self.planning_time(),
            unfinished: self.unfinished,
            abandoned: self.abandoned,
        })
    }

    /// Discards what is known of types. Returns the names of those that are not known.
    fn reset(&mut self, names: &[String]) -> Result<Vec<String>> {
        let mut unknown = self.store.remove_all(names)?;
        for (kind, paced) in self.paced.iter_mut().enumerate() {
            if !names.contains(&paced.report.name) {
                continue;
            }
            unknown.retain(|name| *name != paced.report.name);
            if let Some(key) = &paced.gate_key {
                self.pacing.remove_schedule(key);
            }
            *paced = Paced::new(&self.types, &self.store, kind);
        }
        Ok(unknown)
    }

    fn add(&mut self, record: &wire::pace_record) -> Result<()> {
        let Some((kind, schedule)) = self.learn(record) else { return Ok(()) };
        let key = TypeKey::of_task(record);
        let paced = &mut self.paced[kind];
        paced.has_no_room = !self.pacing.set_schedule(&key, &schedule)?;
        paced.gate_key = Some(key);
        Ok(())
    }

    /// Adds a task that has ended to its type. Returns the type and its next schedule, if it gets
    /// one.
    fn learn(&mut self, record: &wire::pace_record) -> Option<(usize, GateSchedule)> {
        if record.begin_ns < self.began_ns {
            return None;
        }
        if is_abandoned(record) {
            self.abandoned += 1;
            return None;
        }
        let kind = self.types.kind(record);
        if kind == self.paced.len() {
            self.paced.push(Paced::new(&self.types, &self.store, kind));
        }
        let paced = &mut self.paced[kind];
        paced.report.add(record);
        paced.is_unsaved = true;
        let begin = (record.begin_ns - self.began_ns) as f64 / 1e9;
        let cycles = record.cycles as f64;
        let schedule = paced.learned.add(&self.levels, begin, cycles, self.margin)?;
        Some((kind, schedule.clone()))
    }
}
