//! Pacing as an extension of a session: learns the work of each type of tasks, and gives the gate
//! the schedules by which their speeds are set.

use std::path::Path;
use std::time::{Duration, Instant};

use ::pace::{Levels, TaskRules, TraceTask};
use anyhow::{Context as _, Result, anyhow, bail};
use control::Response;
use kernel::pace::actuator::Actuator;
use kernel::pace::cpufreq::{self, FrequencyDomain};
use kernel::pace::energy_sensor::EnergySensors;
use kernel::pace::speed_journal::{JOURNAL, SpeedJournal};
use kernel::pace::{Pacing, TrackingRules, TypeKey};
use kernel::session::{LiveThread, SessionOptions};
use kernel::{ring, wire};

use super::arguments::PacingOptions;
use super::learned_type::{LearnedType, Margin};
use super::metrics::pacing_metrics;
use super::pacing_report::{
    MeasuredEnergy, PacedDomain, PacedSession, PacedType, PacingReport, ReportedStep,
};
use super::requests::{PaceRequest, REQUEST_KEY};
use super::sample_store::SampleStore;
use super::speed_thread::{GOVERNOR_SPELL, SpeedThread};
use super::speed_watchdog::SpeedWatchdog;
use super::tracked_tasks::TrackedTasks;
use super::types::TypeTable;
use super::types_command::remove;
use super::{level_set, machine_levels, rules};
use crate::extension::{Extension, ExtensionSetup, Losses, Request, SessionContext};
use crate::format::number_of;
use crate::report::Section;

/// How often the gate searches for other work on a processor that is slowed. Work that is ready for
/// a shorter time would end before the speed has changed.
const GRACE: Duration = Duration::from_millis(1);
/// The median and the 99th percentile of the latency before it is measured.
const FIRST_LATENCY: (Duration, Duration) =
    (Duration::from_micros(100), Duration::from_micros(300));
/// The latency by which schedules are planned changes if the measured one differs by this factor,
/// so that schedules are not made anew for each measurement.
const LATENCY_STEP: f64 = 1.5;
/// How often changed samples are stored.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);
/// Another process that ends may have the journal for a short time.
const JOURNAL_PATIENCE: Duration = Duration::from_secs(1);

/// Paces the tasks of a session.
pub struct PacingSetup {
    rules: TaskRules,
    tracking_rules: TrackingRules,
    levels: Levels,
    store: SampleStore,
}

impl PacingSetup {
    /// The setup of a command's options. `None` without a file of rules.
    pub fn of_options(options: &PacingOptions) -> Result<Option<Self>> {
        let store = SampleStore::new(&options.store.folder);
        options.file.as_deref().map(|file| Self::read(file, store)).transpose()
    }

    /// The same for the daemon, which gates all programs: if the file names no users, only programs
    /// of root may begin tasks themselves.
    pub fn of_daemon(options: &PacingOptions) -> Result<Option<Self>> {
        let mut setup = Self::of_options(options)?;
        if let Some(setup) = &mut setup {
            setup.tracking_rules.users.get_or_insert_default();
        }
        Ok(setup)
    }

    /// Reads a file of task rules, and the levels of this machine.
    fn read(path: &Path, store: SampleStore) -> Result<Self> {
        let rules = rules::read(Some(path))?;
        let tracking_rules = rules::tracking_rules(&rules)?;
        let domains =
            cpufreq::domains(Path::new("/")).context("cannot read the frequency domains")?;
        if domains.is_empty() {
            bail!(
                "this machine has no cpufreq driver, so its speeds cannot be set; `tollgate pace \
                watch` shows what lower speeds would save"
            );
        }
        if let Some(levels) = &rules.levels {
            let levels = level_set::find(levels)?.levels;
            return Ok(Self { rules, tracking_rules, levels, store });
        }
        let mut kinds = machine_levels::find().map_err(|error| {
            anyhow!("{error:#}; the file of rules names it by levels = \"FILE\"")
        })?;
        if kinds.len() > 1 {
            bail!(
                "this machine has {} kinds of processors, and pacing supports one kind only; \
                `tollgate pace watch` shows what pacing would save",
                kinds.len()
            );
        }
        let levels = kinds.remove(0).levels;
        Ok(Self { rules, tracking_rules, levels, store })
    }
}

impl ExtensionSetup for PacingSetup {
    fn configure(&self, options: &mut SessionOptions) {
        options.mask |= wire::PACE;
    }

    fn start(self: Box<Self>, context: &mut SessionContext<'_>) -> Result<Box<dyn Extension>> {
        let root = Path::new("/");
        let mut journal = SpeedJournal::open(Path::new(JOURNAL), JOURNAL_PATIENCE)?;
        journal.restore(root)?;
        let tasks = TrackedTasks::start(context, &self.tracking_rules)?;
        let domains = with_actuators(root, tasks.domains(), self.rules.actuator.as_deref())?;
        let watchdog = SpeedWatchdog::start()?;
        let session = context.session.index;
        let pacing = Pacing::start(context.gate, session, tasks.domains(), GRACE, GOVERNOR_SPELL)?;
        tasks.set_powers(&self.levels);
        let thread = SpeedThread::start(context.gate, journal, &domains)?;
        Ok(Box::new(PacingInSession {
            began_ns: 0,
            levels: self.levels,
            tasks,
            types: TypeTable::new(self.rules),
            store: self.store,
            latest_save: Instant::now(),
            paced: Vec::new(),
            pacing,
            margin: Margin { latency: FIRST_LATENCY },
            domains: domains
                .iter()
                .map(|(domain, actuator)| PacedDomain::new(domain, *actuator))
                .collect(),
            energy: EnergySensors::find(root),
            abandoned: 0,
            unfinished: 0,
            thread: Some(thread),
            watchdog: Some(watchdog),
        }))
    }
}

/// The domains, each with the actuator of this name or, without one, the best actuator.
fn with_actuators(
    root: &Path,
    domains: &[FrequencyDomain],
    name: Option<&str>,
) -> Result<Vec<(FrequencyDomain, Actuator)>> {
    let named = name.and_then(Actuator::of_name);
    if named == Some(Actuator::Clamp) && domains.len() > 1 {
        bail!(
            "the actuator \"clamp\" limits the whole machine, so it needs a single frequency \
            domain; this machine has {}; name another actuator",
            number_of(domains.len(), "frequency domain")
        );
    }
    let with_actuator = |domain: &FrequencyDomain| {
        let actuator = named.unwrap_or_else(|| Actuator::best(root, domain));
        if !actuator.is_available(root, domain) {
            bail!(
                "policy{} does not support the actuator {:?} (driver {}, governor {})",
                domain.number,
                actuator.name(),
                domain.driver,
                domain.governor
            );
        }
        Ok((domain.clone(), actuator))
    };
    domains.iter().map(with_actuator).collect()
}

/// A type, with what is learned of it.
struct Paced {
    learned: LearnedType,
    report: PacedType,
    /// Tasks have ended since the samples were stored.
    is_unsaved: bool,
    /// The gate has no room for its schedule.
    is_unplanned: bool,
    /// Its key in the gate, if it has had a schedule.
    planned_as: Option<TypeKey>,
}

struct PacingInSession {
    began_ns: u64,
    levels: Levels,
    tasks: TrackedTasks,
    types: TypeTable,
    store: SampleStore,
    latest_save: Instant,
    /// In the order of the types in `types`.
    paced: Vec<Paced>,
    pacing: Pacing,
    margin: Margin,
    domains: Vec<PacedDomain>,
    /// `None` if the machine does not measure energy.
    energy: Option<EnergySensors>,
    abandoned: usize,
    unfinished: usize,
    /// Both are taken at the end of the session.
    thread: Option<SpeedThread>,
    watchdog: Option<SpeedWatchdog>,
}

impl Extension for PacingInSession {
    fn begin(&mut self, began_ns: u64) {
        self.began_ns = began_ns;
        if let Some(energy) = &mut self.energy {
            energy.restart();
        }
    }

    fn summary(&self, _processes: Option<usize>) -> Option<String> {
        Some(format!("pacing tasks in {}", number_of(self.domains.len(), "frequency domain")))
    }

    fn on_record(&mut self, _context: &mut SessionContext<'_>, record: &[u8]) -> Result<bool> {
        if let Some(task) = ring::pace_task(record) {
            self.add(&task)?;
            return Ok(true);
        }
        let Some(named) = ring::pace_type(record) else { return Ok(false) };
        if let Some(kind) = self.types.name_type(&named) {
            // Its deadline and target may be others now.
            self.paced[kind] = Paced::new(&self.types, &self.store, kind);
        }
        Ok(true)
    }

    fn tend(&mut self, context: &mut SessionContext<'_>) -> Result<()> {
        let Some(abandoned) = self.tasks.sweep(context.gate)? else { return Ok(()) };
        self.abandoned += abandoned;
        self.measure();
        self.paced.iter_mut().for_each(|paced| paced.learned.tend());
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.tend()?;
        }
        let latency = self.thread.as_ref().and_then(|thread| thread.stats().latency());
        if let Some((usual, slow)) = latency {
            let quotient = slow.as_secs_f64() / self.margin.latency.1.as_secs_f64();
            if !(1.0 / LATENCY_STEP..LATENCY_STEP).contains(&quotient) {
                self.margin.latency = (usual, slow);
            }
        }
        Ok(())
    }

    fn refresh(&mut self, _context: &mut SessionContext<'_>) -> Result<()> {
        if self.latest_save.elapsed() < SAVE_INTERVAL {
            return Ok(());
        }
        self.save()
    }

    fn save(&mut self) -> Result<()> {
        self.latest_save = Instant::now();
        for paced in self.paced.iter_mut().filter(|paced| paced.is_unsaved) {
            self.store.save(&paced.report.name, paced.learned.samples())?;
            paced.is_unsaved = false;
        }
        Ok(())
    }

    fn before_detach(&mut self, _live: &[LiveThread]) {
        self.unfinished = self.tasks.unfinished();
        self.measure();
    }

    fn section(
        &mut self,
        _context: &mut SessionContext<'_>,
        notes: &mut Vec<String>,
    ) -> Result<Option<Box<dyn Section>>> {
        let unplanned = self.paced.iter().filter(|paced| paced.is_unplanned).count();
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
                self.unfinished = self.tasks.unfinished();
                self.measure();
                serde_json::to_value(self.report())?
            }
            PaceRequest::Reset { types } => serde_json::to_value(self.reset(&types)?)?,
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
    fn new(types: &TypeTable, store: &SampleStore, kind: usize) -> Self {
        let one = &types.types()[kind];
        Self {
            learned: LearnedType::new(one.deadline_ms, one.target, store.load(&one.name)),
            report: PacedType::new(one),
            is_unsaved: false,
            is_unplanned: false,
            planned_as: None,
        }
    }
}

impl PacingInSession {
    fn measure(&mut self) {
        if let Some(energy) = &mut self.energy {
            energy.update();
        }
    }

    fn report(&self) -> PacingReport {
        let stats = self.thread.as_ref().map(SpeedThread::stats).unwrap_or_default();
        let types = self.paced.iter().map(|paced| PacedType {
            schedule: paced.learned.active().map(ReportedStep::of_schedule),
            ..paced.report.clone()
        });
        PacingReport::new(PacedSession {
            domains: self.domains.clone(),
            stats: &stats,
            types: types.collect(),
            fastest: *self.levels.all().last().expect("there is a level"),
            idle_watts: self.levels.idle_watts(),
            measured: self.energy.as_ref().map(MeasuredEnergy::of_sensors),
            unfinished: self.unfinished,
            abandoned: self.abandoned,
        })
    }

    /// Forgets what is known of types. Returns the names of those that are not known.
    fn reset(&mut self, names: &[String]) -> Result<Vec<String>> {
        let mut unknown = remove(&self.store, names)?;
        for (kind, paced) in self.paced.iter_mut().enumerate() {
            if !names.contains(&paced.report.name) {
                continue;
            }
            unknown.retain(|name| *name != paced.report.name);
            if let Some(key) = &paced.planned_as {
                self.pacing.remove_schedule(key);
            }
            *paced = Paced::new(&self.types, &self.store, kind);
        }
        Ok(unknown)
    }

    fn add(&mut self, record: &wire::pace_record) -> Result<()> {
        if record.begin_ns < self.began_ns {
            return Ok(());
        }
        let kind = self.types.kind(record);
        if kind == self.paced.len() {
            self.paced.push(Paced::new(&self.types, &self.store, kind));
        }
        let paced = &mut self.paced[kind];
        paced.report.add(record);
        paced.is_unsaved = true;
        let task = TraceTask {
            kind,
            begin: (record.begin_ns - self.began_ns) as f64 / 1e9,
            cycles: record.cycles as f64,
            deadline: 0.0,
        };
        if let Some(schedule) = paced.learned.add(&self.levels, task, self.margin) {
            let key = TypeKey::of_task(record);
            paced.is_unplanned = !self.pacing.set_schedule(&key, schedule)?;
            paced.planned_as = Some(key);
        }
        Ok(())
    }
}
