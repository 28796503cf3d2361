//! The types of tasks that are paced: what is learned of each, and where it is stored.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ::pace::{Levels, TaskRules};
use anyhow::Result;
use kernel::pace::{GateSchedule, MAX_TYPES, TypeKey};
use kernel::wire;

use super::estimator_chooser::EstimatorChooser;
use super::learned_type::LearnedType;
use super::margin::Margin;
use super::pacing_report::{PacedType, ReplacedTypes, ReportedStep};
use super::sample_store::SampleStore;
use super::type_table::TypeTable;
use crate::output::log_message;

/// The maximum number of types whose samples are stored at a time. Each waits for the disk.
const SAVED_AT_ONCE: usize = 16;
/// The maximum number of replaced types whose samples wait for the disk.
const MAX_WAITING: usize = 1000;
/// How often changed samples are stored.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);

/// The types, at most [`MAX_TYPES`]. Then the type whose latest task ended first makes room for the
/// next one.
pub struct PacedTypes {
    table: TypeTable,
    store: SampleStore,
    /// In the order of the types in `table`.
    paced: Vec<Paced>,
    chooser: EstimatorChooser,
    replaced: ReplacedTypes,
    /// The processor time of the schedules of replaced types.
    replaced_planning: Duration,
    /// Samples were stored since the size of the store was limited.
    has_stored: bool,
    /// Samples of replaced types that are not stored yet.
    to_store: VecDeque<(String, Vec<f64>)>,
    latest_limit: Instant,
}

/// A type, with what is learned of it.
struct Paced {
    learned: LearnedType,
    report: PacedType,
    /// When its latest task ended.
    latest_end_ns: u64,
    /// Tasks have ended since the samples were stored.
    is_unsaved: bool,
    latest_save: Instant,
    /// Its key in the gate, if it has a schedule there.
    gate_key: Option<TypeKey>,
}

/// A change of the schedules in the gate.
#[derive(Debug, PartialEq)]
pub enum ScheduleChange {
    Set(TypeKey, GateSchedule),
    Remove(TypeKey),
}

impl PacedTypes {
    pub fn new(rules: TaskRules, store: SampleStore) -> Self {
        Self {
            table: TypeTable::new(rules),
            store,
            paced: Vec::new(),
            chooser: EstimatorChooser::default(),
            replaced: ReplacedTypes::default(),
            replaced_planning: Duration::ZERO,
            has_stored: false,
            to_store: VecDeque::new(),
            latest_limit: Instant::now(),
        }
    }

    pub fn store(&self) -> &SampleStore {
        &self.store
    }

    /// Adds a task that has ended, and that began at `begin`, in seconds.
    pub fn add(
        &mut self,
        record: &wire::pace_record,
        levels: &Levels,
        begin: f64,
        margin: Margin,
    ) -> Vec<ScheduleChange> {
        let mut changes = Vec::new();
        let kind = self.table.find(record);
        let kind = kind.unwrap_or_else(|| self.add_type(record, &mut changes));
        let paced = &mut self.paced[kind];
        paced.report.add(record);
        paced.is_unsaved = true;
        paced.latest_end_ns = record.end_ns;
        let schedule = paced.learned.add(levels, begin, record.cycles as f64, margin);
        if let Some(schedule) = schedule.cloned() {
            let key = TypeKey::of_task(record);
            paced.gate_key = Some(key.clone());
            changes.push(ScheduleChange::Set(key, schedule));
        }
        changes
    }

    /// Adds the type of a task. Returns its index.
    fn add_type(&mut self, record: &wire::pace_record, changes: &mut Vec<ScheduleChange>) -> usize {
        if self.paced.len() < MAX_TYPES {
            let kind = self.table.add(record);
            self.paced.push(Paced::new(&self.table, &self.store, kind));
            return kind;
        }
        let kind = self.make_room(changes);
        self.table.replace(kind, record);
        self.paced[kind] = Paced::new(&self.table, &self.store, kind);
        kind
    }

    /// Counts the type whose latest task ended first as replaced, and returns its index.
    fn make_room(&mut self, changes: &mut Vec<ScheduleChange>) -> usize {
        let types = self.paced.iter_mut().enumerate();
        let (kind, oldest) =
            types.min_by_key(|(_, paced)| paced.latest_end_ns).expect("there are types");
        changes.extend(oldest.gate_key.take().map(ScheduleChange::Remove));
        // The samples that have come since the last time are lost if they are too few for a
        // schedule, or if too many wait for the disk.
        let is_worth_it = oldest.is_unsaved && oldest.learned.active().is_some();
        if is_worth_it && self.to_store.len() < MAX_WAITING {
            let samples = oldest.learned.samples().to_vec();
            self.to_store.push_back((oldest.report.name.clone(), samples));
        }
        self.replaced.types += 1;
        self.replaced.tasks += oldest.report.tasks;
        self.replaced_planning += oldest.learned.planning_time();
        self.chooser.discard(kind);
        kind
    }

    /// A program names a type. Its counts stay, and its work is added to what is stored under that
    /// name.
    pub fn name_type(&mut self, record: &wire::pace_type_record) -> Option<ScheduleChange> {
        let kind = self.table.name_type(record)?;
        let mut new = Paced::new(&self.table, &self.store, kind);
        let old = &mut self.paced[kind];
        new.learned.add_samples(old.learned.samples());
        new.report = PacedType {
            name: new.report.name,
            deadline_ms: new.report.deadline_ms,
            target: new.report.target,
            ..old.report.clone()
        };
        (new.is_unsaved, new.latest_end_ns) = (old.is_unsaved, old.latest_end_ns);
        let removed = old.gate_key.take().map(ScheduleChange::Remove);
        self.paced[kind] = new;
        self.chooser.discard(kind);
        removed
    }

    /// Uses the estimator that was chosen, and lets the next one be chosen.
    pub fn choose(&mut self, levels: &Levels) {
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
            self.chooser.start(kind, levels.clone(), input);
        }
    }

    /// Stores all samples that have changed.
    pub fn save(&mut self) -> Result<()> {
        self.save_replaced(usize::MAX)?;
        self.has_stored = true;
        let saved = self.paced.iter_mut().map(|paced| paced.save(&self.store));
        let saved = saved.fold(Ok(()), Result::and);
        saved.and(self.limit_store())
    }

    /// Stores samples that have changed and were not stored for a while. A failure is logged, and
    /// the next attempt follows after the same interval.
    pub fn save_some(&mut self) {
        let due = self
            .paced
            .iter_mut()
            .filter(|paced| paced.is_unsaved && paced.latest_save.elapsed() >= SAVE_INTERVAL);
        let saved = due.take(SAVED_AT_ONCE).map(|paced| paced.save(&self.store));
        let mut stored = 0;
        log_failure(saved.inspect(|_| stored += 1).fold(Ok(()), Result::and));
        self.has_stored |= stored > 0;
        log_failure(self.save_replaced(SAVED_AT_ONCE));
        if self.latest_limit.elapsed() >= SAVE_INTERVAL {
            log_failure(self.limit_store());
        }
    }

    /// Stores samples of replaced types, of at most `most` ones.
    fn save_replaced(&mut self, most: usize) -> Result<()> {
        let some = self.to_store.drain(..most.min(self.to_store.len()));
        let mut saved = Ok(());
        for (name, samples) in some {
            self.has_stored = true;
            saved = saved.and(self.store.save(&name, &samples));
        }
        saved
    }

    fn limit_store(&mut self) -> Result<()> {
        self.latest_limit = Instant::now();
        match std::mem::take(&mut self.has_stored) {
            true => self.store.remove_oldest(),
            false => Ok(()),
        }
    }

    /// Discards what is known of types, with their schedules. Returns the names of those that are
    /// not known.
    pub fn reset(&mut self, names: &[String]) -> Result<(Vec<String>, Vec<ScheduleChange>)> {
        let mut unknown = self.store.remove_all(names)?;
        let mut changes = Vec::new();
        for (kind, paced) in self.paced.iter_mut().enumerate() {
            if !names.contains(&paced.report.name) {
                continue;
            }
            unknown.retain(|name| *name != paced.report.name);
            changes.extend(paced.gate_key.take().map(ScheduleChange::Remove));
            *paced = Paced::new(&self.table, &self.store, kind);
            self.chooser.discard(kind);
        }
        Ok((unknown, changes))
    }

    /// The longest deadline of a type, in milliseconds.
    pub fn longest_deadline_ms(&self) -> f64 {
        self.table.types().iter().map(|one| one.deadline_ms).fold(0.0, f64::max)
    }

    /// The processor time of schedules and choices.
    pub fn planning_time(&self) -> Duration {
        let schedules: Duration = self.paced.iter().map(|one| one.learned.planning_time()).sum();
        schedules + self.replaced_planning + self.chooser.used()
    }

    /// The types for the report.
    pub fn reported(&self) -> Vec<PacedType> {
        let reported = |paced: &Paced| PacedType {
            schedule: paced.learned.active().map(ReportedStep::of_schedule),
            ..paced.report.clone()
        };
        self.paced.iter().map(reported).collect()
    }

    pub fn replaced(&self) -> ReplacedTypes {
        self.replaced
    }
}

impl Paced {
    fn new(table: &TypeTable, store: &SampleStore, kind: usize) -> Self {
        let one = &table.types()[kind];
        Self {
            learned: LearnedType::new(one.deadline_ms, one.target, store.load(&one.name)),
            report: PacedType::new(one),
            latest_end_ns: 0,
            is_unsaved: false,
            latest_save: Instant::now(),
            gate_key: None,
        }
    }

    /// Stores the samples, if tasks have ended since they were stored.
    fn save(&mut self, store: &SampleStore) -> Result<()> {
        self.latest_save = Instant::now();
        if self.is_unsaved {
            store.save(&self.report.name, self.learned.samples())?;
            self.is_unsaved = false;
        }
        Ok(())
    }
}

fn log_failure(saved: Result<()>) {
    if let Err(error) = saved {
        log_message(&format!("{error:#}"));
    }
}

#[cfg(test)]
mod tests {
    use ::pace::{Estimator, Level, TraceTask, candidate_estimators, choose_estimator};
    use zerocopy::FromZeros as _;

    use super::*;

    const MARGIN: Margin =
        Margin { latency: (Duration::from_micros(50), Duration::from_micros(250)) };

    fn levels() -> Levels {
        let level = |ghz: f64| Level { hz: ghz * 1e9, watts: ghz.powi(3) };
        Levels::new([0.5, 0.6, 0.7, 0.8].map(level).into(), 0.0).unwrap()
    }

    /// Adds a task of a type that a program has begun itself.
    fn add(types: &mut PacedTypes, type_id: u64, end_ns: u64) -> Vec<ScheduleChange> {
        let mut record = wire::pace_record::new_zeroed();
        (record.type_id, record.end_ns, record.cycles) = (type_id, end_ns, 8_000_000);
        types.add(&record, &levels(), end_ns as f64 / 1e9, MARGIN)
    }

    /// Ten thousand types, of which one is used again and again, and another one has a schedule.
    #[test]
    fn oldest_types_are_replaced() {
        const TYPES: u64 = 10_000;
        let folder = tempfile::tempdir().unwrap();
        let store = SampleStore::new(folder.path());
        let mut types = PacedTypes::new(TaskRules::default(), store.clone());
        let planned: Vec<_> = (1..=10).flat_map(|n| add(&mut types, 1, n)).collect();
        let [ScheduleChange::Set(key, _)] = &planned[..] else { panic!("{planned:?}") };
        let mut removed = Vec::new();
        for id in 3..=TYPES {
            removed.extend(add(&mut types, id, 100 * id));
            removed.extend(add(&mut types, 2, 100 * id + 1));
        }
        let is_removal = |change: &&ScheduleChange| matches!(change, ScheduleChange::Remove(_));
        let removals: Vec<_> = removed.iter().filter(is_removal).collect();
        assert_eq!(removals, [&ScheduleChange::Remove(key.clone())]);
        let reported = types.reported();
        assert_eq!(reported.len(), MAX_TYPES);
        let replaced = types.replaced();
        assert_eq!(replaced.types, TYPES - MAX_TYPES as u64);
        // The first one had ten tasks, the others one each.
        assert_eq!(replaced.tasks, replaced.types - 1 + 10);
        let tasks: u64 = reported.iter().map(|one| one.tasks).sum();
        assert_eq!(tasks + replaced.tasks, 10 + 2 * (TYPES - 2));
        let latest = reported.iter().find(|one| one.name == ": type 0x2").unwrap();
        assert_eq!(latest.tasks, TYPES - 2);
        // What had a schedule is stored, and is known again.
        types.save_some();
        assert_eq!(store.load(": type 0x1").len(), 10);
        assert!(store.load(": type 0x3").is_empty());
        let again = add(&mut types, 1, 100 * TYPES + 2);
        assert!(matches!(&again[..], [ScheduleChange::Set(known, _)] if known == key), "{again:?}");
    }

    /// The work of a task that is one of many different ones.
    fn spread(n: u64) -> u64 {
        8_000_000 + n * 7919 % 501 * 40_000
    }

    /// Adds tasks that begin at each millisecond, and lets an estimator be chosen. Returns the
    /// schedule after the next task.
    fn chosen_schedule(types: &mut PacedTypes, tasks: u64) -> GateSchedule {
        let add = |types: &mut PacedTypes, n: u64| {
            let mut record = wire::pace_record::new_zeroed();
            (record.type_id, record.end_ns, record.cycles) = (1, n, spread(n));
            types.add(&record, &levels(), n as f64 / 1e3, MARGIN)
        };
        (0..tasks).for_each(|n| drop(add(types, n)));
        while types.chooser.used() == Duration::ZERO {
            types.choose(&levels());
            std::thread::yield_now();
        }
        // After the interval between two schedules.
        let changes = add(types, tasks + 1000);
        let [ScheduleChange::Set(_, schedule)] = &changes[..] else { panic!("{changes:?}") };
        schedule.clone()
    }

    #[test]
    fn next_schedule_has_the_chosen_estimator() {
        const TASKS: u64 = 500;
        let folder = tempfile::tempdir().unwrap();
        let new = || PacedTypes::new(TaskRules::default(), SampleStore::new(folder.path()));
        let schedule = chosen_schedule(&mut new(), TASKS);
        // The same without the choice, and with its estimator from the beginning.
        let of_task = |n: u64| TraceTask {
            kind: 0,
            begin: n as f64 / 1e3,
            cycles: spread(n) as f64,
            deadline: 0.05,
        };
        let tasks: Vec<_> = (0..TASKS).map(of_task).collect();
        let candidates = candidate_estimators();
        let chosen = choose_estimator(&levels(), &tasks, 0.95, &candidates, || ()).unwrap();
        let by = |estimator: Option<Estimator>| {
            let mut learned = LearnedType::new(50.0, 0.95, Vec::new());
            for task in tasks.iter().chain([&of_task(TASKS + 1000)]) {
                if task.begin > 1.0 {
                    estimator.into_iter().for_each(|one| learned.set_estimator(one));
                }
                learned.add(&levels(), task.begin, task.cycles, MARGIN);
            }
            learned.active().unwrap().clone()
        };
        assert_eq!(schedule, by(Some(candidates[chosen])));
        assert_ne!(schedule, by(None));
    }

    #[test]
    fn discarded_types_have_no_schedule() {
        let folder = tempfile::tempdir().unwrap();
        let mut types =
            PacedTypes::new(TaskRules::default(), SampleStore::new(&folder.path().join("store")));
        (1..=10).for_each(|n| drop(add(&mut types, 1, n)));
        let names = [": type 0x1".to_owned(), "other".to_owned()];
        let (unknown, changes) = types.reset(&names).unwrap();
        assert_eq!(unknown, ["other"]);
        assert!(matches!(&changes[..], [ScheduleChange::Remove(_)]), "{changes:?}");
        assert_eq!(add(&mut types, 1, 11), []);
        assert_eq!(types.reported()[0].tasks, 1);
    }
}
