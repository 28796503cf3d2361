//! Pacing as an extension of a session: learns the work of each type of tasks, and gives the gate
//! the schedules by which their speeds are set.

use std::path::Path;
use std::time::Duration;

use ::pace::Levels;
use anyhow::Result;
use control::Response;
use kernel::pace::Pacing;
use kernel::pace::actuator::Actuator;
use kernel::pace::speed_journal::{JOURNAL, SpeedJournal};
use kernel::session::LiveThread;
use kernel::{ring, wire};

use super::actuators::{self, with_actuators};
use super::margin::Margin;
use super::metrics::pacing_metrics;
use super::paced_types::{PacedTypes, ScheduleChange};
use super::pacing_report::{PacedDomain, PacedSession, PacingReport};
use super::requests::{PaceRequest, REQUEST_KEY, ResetReply};
use super::rules::ResolvedRules;
use super::sample_store::SampleStore;
use super::speed_thread::{GOVERNOR_RELEASE_DELAY, SpeedThread};
use super::speed_watchdog::SpeedWatchdog;
use super::tracked_tasks::TrackedTasks;
use super::type_table::is_abandoned;
use crate::extension::{Extension, Losses, Request, SessionContext};
use crate::format::number_of;
use crate::report::Section;

/// How often the gate searches for other work on a processor below the fastest speed. Work that is
/// ready for a shorter time would end before the speed has changed.
const SEARCH_INTERVAL: Duration = Duration::from_millis(1);
/// The median and the 99th percentile of the latency before it is measured: several times those of
/// an idle machine (docs/decisions/0009-pace.md, "Measured").
const FIRST_LATENCY: (Duration, Duration) =
    (Duration::from_micros(100), Duration::from_micros(300));
/// A tick of the scheduler, at which a governor applies new bounds: that of CONFIG_HZ=250, which
/// most distributions use.
const TICK: Duration = Duration::from_millis(4);
/// A task on which no thread works does not decide speeds any more when it is older than this, and
/// older than a multiple of the longest deadline. Its program may have forgotten to end it.
const MIN_FORGOTTEN_AGE: Duration = Duration::from_secs(10);
const FORGOTTEN_AGE_IN_DEADLINES: f64 = 10.0;

/// What pacing needs.
pub struct PacingInput {
    pub rules: ResolvedRules,
    pub levels: Levels,
    pub store: SampleStore,
}

pub struct PacingInSession {
    began_ns: u64,
    levels: Levels,
    tasks: TrackedTasks,
    types: PacedTypes,
    pacing: Pacing,
    margin: Margin,
    /// How long the governors take to apply what is written.
    governor_delay: Duration,
    /// What to say of an actuator that no machine at hand has.
    caveat: Option<String>,
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
        let domains = number_of(self.domains.len(), "frequency domain");
        Some(match &self.caveat {
            Some(caveat) => format!("pacing tasks in {domains}; {caveat}"),
            None => format!("pacing tasks in {domains}"),
        })
    }

    fn on_record(&mut self, _context: &mut SessionContext<'_>, record: &[u8]) -> Result<bool> {
        let Some(named) = ring::pace_type(record) else { return Ok(false) };
        let change = self.types.name_type(&named);
        self.apply(change)?;
        Ok(true)
    }

    fn tend(&mut self, context: &mut SessionContext<'_>) -> Result<()> {
        self.tasks.ended().iter().try_for_each(|task| self.add(task))?;
        let Some(abandoned) = self.tasks.check(context.gate)? else { return Ok(()) };
        self.abandoned += abandoned;
        self.tasks.stop_pacing_old(self.forgotten_age());
        self.types.choose(&self.levels);
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.tend()?;
        }
        let latency = self.thread.as_ref().and_then(|thread| thread.stats().latency());
        if let Some((median, p99)) = latency {
            self.margin.follow((median + self.governor_delay, p99 + self.governor_delay));
        }
        self.types.save_some();
        Ok(())
    }

    fn save(&mut self) -> Result<()> {
        self.types.save()
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
        notes.extend(self.caveat.clone());
        self.unfinished = unended.unfinished;
        self.abandoned += unended.abandoned;
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
                let own = self.types.store().path_of_folder();
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

impl PacingInSession {
    pub fn start(input: PacingInput, context: &mut SessionContext<'_>) -> Result<Self> {
        let root = Path::new("/");
        let mut journal = SpeedJournal::open(Path::new(JOURNAL))?;
        journal.restore(root)?;
        let tasks = TrackedTasks::start(context, &input.rules)?;
        let named = input.rules.file.actuator.as_ref();
        let name = named.map(|named| named.value.as_str());
        let domains = with_actuators(root, tasks.domains(), name)
            .map_err(|error| input.rules.locate(named, error, actuators::HELP))?;
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
        tasks.set_levels(&input.levels);
        let thread = SpeedThread::start(context.gate, journal, &domains)?;
        Ok(Self {
            began_ns: 0,
            levels: input.levels,
            tasks,
            types: PacedTypes::new(input.rules.file, input.store),
            pacing,
            margin: Margin {
                latency: (FIRST_LATENCY.0 + governor_delay, FIRST_LATENCY.1 + governor_delay),
            },
            governor_delay,
            caveat: domains.iter().find_map(|(_, actuator)| {
                let caveat = actuator.caveat()?;
                Some(format!("the actuator {:?} was {caveat}", actuator.name()))
            }),
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

    /// The age from which a task on which no thread works does not decide speeds.
    fn forgotten_age(&self) -> Duration {
        let longest = self.types.longest_deadline_ms();
        MIN_FORGOTTEN_AGE.max(Duration::from_secs_f64(longest / 1e3 * FORGOTTEN_AGE_IN_DEADLINES))
    }

    fn report(&self) -> PacingReport {
        let stats = self.thread.as_ref().map(SpeedThread::stats).unwrap_or_default();
        PacingReport::new(PacedSession {
            domains: self.domains.clone(),
            stats: &stats,
            types: self.types.reported(),
            replaced: self.types.replaced(),
            fastest: *self.levels.all().last().expect("there is a level"),
            idle_watts: self.levels.idle_watts(),
            hardware: self.tasks.hardware_counts(),
            planning: self.types.planning_time(),
            unfinished: self.unfinished,
            abandoned: self.abandoned,
        })
    }

    /// Discards what is known of types. Returns the names of those that are not known.
    fn reset(&mut self, names: &[String]) -> Result<Vec<String>> {
        let (unknown, changes) = self.types.reset(names)?;
        self.apply(changes)?;
        Ok(unknown)
    }

    fn add(&mut self, record: &wire::pace_record) -> Result<()> {
        let changes = self.learn(record);
        self.apply(changes)
    }

    /// Changes schedules in the gate.
    fn apply(&mut self, changes: impl IntoIterator<Item = ScheduleChange>) -> Result<()> {
        changes.into_iter().try_for_each(|change| {
            Ok(match change {
                ScheduleChange::Set(key, schedule) => self.pacing.set_schedule(&key, &schedule),
                ScheduleChange::Remove(key) => self.pacing.remove_schedule(&key),
            }?)
        })
    }

    /// Adds a task that has ended to its type. Returns the schedules that change.
    fn learn(&mut self, record: &wire::pace_record) -> Vec<ScheduleChange> {
        if record.begin_ns < self.began_ns {
            return Vec::new();
        }
        if is_abandoned(record) {
            self.abandoned += 1;
            return Vec::new();
        }
        let begin = (record.begin_ns - self.began_ns) as f64 / 1e9;
        self.types.add(record, &self.levels, begin, self.margin)
    }
}
