//! Compares the policies on recorded tasks, for each set of levels.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use ::pace::{
    DistributionModel, Estimator, Level, LevelFile, SampleSelection, ScheduleRule, SpeedPolicy,
    TraceTask, TypeKnowledge, WorkCurve, candidate_estimators, choose_estimator, replay,
};
use indicatif::{ProgressBar, ProgressStyle};
use stats::bootstrap::quotient_of_sums;

use super::level_set::{self, LevelRow};
use super::policy::{PolicyName, PolicyRow};
use super::report_format::{CONFIDENCE, ReportedInterval, SEED, quantile};
use super::simulate_report::{LevelSetReport, SCHEMA, SimulateReport, TypeReport, Work};
use super::trace_file::{Trace, TraceType};
use super::verdict::PaceVerdict;
use crate::format::count;
use crate::output::log_message;

/// An estimator is chosen by at most this many tasks of a type, which takes some seconds.
const MAX_CHOICE_TASKS: usize = 5000;
/// A comparison on this many tasks takes a second or more, and is announced.
const MIN_ANNOUNCED_TASKS: usize = 1_000;
/// How often to check whether the comparison is cancelled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(50);

/// The report of the simulated sets.
pub fn report(simulated: &[SimulatedSet], trace: &Trace) -> SimulateReport {
    SimulateReport { schema: SCHEMA, sets: simulated.iter().map(|set| set.report(trace)).collect() }
}

/// Logs that the policies are about to be compared, if this takes a while. `addition` ends the
/// sentence.
pub fn announce(trace: &Trace, addition: &str) {
    if trace.tasks.len() >= MIN_ANNOUNCED_TASKS {
        let tasks = count(trace.tasks.len() as u64);
        log_message(&format!("comparing policies on {tasks} tasks{addition}"));
    }
}

/// All policies on each set of levels. The sets are simulated at the same time. Returns `None` as
/// soon as `is_cancelled` is true. The simulations then continue until the process ends, which is
/// about to print its report.
pub fn simulated(
    sets: Vec<LevelFile>,
    trace: &Arc<Trace>,
    is_cancelled: &AtomicBool,
) -> Option<Vec<SimulatedSet>> {
    let progress = progress_bar(sets.len() as u64 * replayed_tasks(trace));
    let (sender, receiver) = mpsc::channel();
    let mut simulated: Vec<_> = sets.iter().map(|_| None).collect();
    for (index, set) in sets.into_iter().enumerate() {
        let (trace, progress, sender) = (Arc::clone(trace), progress.clone(), sender.clone());
        thread::spawn(move || {
            // Nobody receives it if the comparison was cancelled.
            let _ = sender.send((index, SimulatedSet::new(set, &trace, &progress)));
        });
    }
    drop(sender);
    while simulated.iter().any(Option::is_none) {
        match receiver.recv_timeout(CANCEL_INTERVAL) {
            Ok((index, set)) => simulated[index] = Some(set),
            Err(RecvTimeoutError::Disconnected) => panic!("a simulation has panicked"),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if is_cancelled.load(Ordering::Relaxed) {
            progress.finish_and_clear();
            return None;
        }
    }
    progress.finish_and_clear();
    simulated.into_iter().collect()
}

/// How many tasks are replayed on a set of levels: with each estimator, and with each policy.
fn replayed_tasks(trace: &Trace) -> u64 {
    let (train, judged) = trace.tasks.split_at(trace.tasks.len() / 2);
    let mut of_types = vec![0; trace.types.len()];
    train.iter().for_each(|task| of_types[task.kind] += 1);
    let to_choose: usize = of_types.into_iter().map(|own| MAX_CHOICE_TASKS.min(own)).sum();
    let all = to_choose * candidate_estimators().len() + judged.len() * PolicyName::ALL.len();
    all as u64
}

/// A progress bar on stderr, if that is a terminal.
fn progress_bar(steps: u64) -> ProgressBar {
    let style =
        ProgressStyle::with_template("[{bar:30}] {percent} %, {elapsed} of some {duration}")
            .expect("a valid template");
    let bar = ProgressBar::new(steps).with_style(style.progress_chars("=> "));
    bar.tick();
    bar
}

/// All policies on one set of levels.
pub struct SimulatedSet {
    pub set: LevelFile,
    /// What is known of each type after the training.
    pub known: Vec<TypeKnowledge>,
    /// The indices of the judged tasks of each type.
    judged: Vec<Vec<usize>>,
    /// The work of all tasks of each type, as a distribution.
    work: Vec<Option<WorkCurve>>,
    /// The median time between the beginnings of two tasks of each type, in seconds.
    periods: Vec<Option<f64>>,
    policies: Vec<JudgedPolicy>,
}

/// What a policy has met and used, for each judged task.
struct JudgedPolicy {
    name: PolicyName,
    energies: Vec<f64>,
    met: Vec<bool>,
    overlapped: Vec<bool>,
}

/// A policy whose tasks are counted as progress.
struct Counted<'a> {
    running: Box<dyn SpeedPolicy + 'a>,
    progress: &'a ProgressBar,
}

impl SpeedPolicy for Counted<'_> {
    fn begin(&mut self, task: &TraceTask, waiting: usize) {
        self.running.begin(task, waiting);
    }

    fn end(&mut self, task: &TraceTask, waiting: usize) {
        self.progress.inc(1);
        self.running.end(task, waiting);
    }

    fn level(&self, done: f64) -> (Level, f64) {
        self.running.level(done)
    }

    fn next_tick(&self, is_busy: bool) -> f64 {
        self.running.next_tick(is_busy)
    }

    fn pass(&mut self, now: f64, is_busy: bool) {
        self.running.pass(now, is_busy);
    }
}

impl SimulatedSet {
    fn new(set: LevelFile, trace: &Trace, progress: &ProgressBar) -> Self {
        let (train, judged) = trace.tasks.split_at(trace.tasks.len() / 2);
        let estimators = candidate_estimators();
        let mut training = vec![Vec::new(); trace.types.len()];
        train.iter().for_each(|task| training[task.kind].push(*task));
        let known = trace.types.iter().zip(training).map(|(one, own)| {
            let latest = &own[own.len().saturating_sub(MAX_CHOICE_TASKS)..];
            let replayed = || progress.inc(latest.len() as u64);
            let chosen = choose_estimator(&set.levels, latest, one.target, &estimators, replayed);
            TypeKnowledge {
                target: one.target,
                estimator: estimators[chosen.unwrap_or(0)],
                samples: own.iter().map(|task| task.cycles).collect(),
            }
        });
        let known: Vec<_> = known.collect();
        let policies = PolicyName::ALL.map(|name| {
            let running = name.start(&set.levels, &known);
            let result = replay(&set.levels, judged, &mut Counted { running, progress });
            JudgedPolicy {
                name,
                met: result.met(judged),
                energies: result.energies,
                overlapped: result.overlapped,
            }
        });
        let mut of_types = vec![Vec::new(); trace.types.len()];
        let mut work = vec![Vec::new(); trace.types.len()];
        judged.iter().enumerate().for_each(|(index, task)| of_types[task.kind].push(index));
        trace.tasks.iter().for_each(|task| work[task.kind].push((task.cycles, 1.0)));
        Self {
            set,
            known,
            judged: of_types,
            work: work.into_iter().map(WorkCurve::of_samples).collect(),
            periods: median_periods(trace),
            policies: policies.into(),
        }
    }

    fn report(&self, trace: &Trace) -> LevelSetReport {
        let levels = &self.set.levels;
        LevelSetReport {
            name: self.set.name.clone(),
            source: self.set.source.clone(),
            idle_watts: levels.idle_watts(),
            summary: level_set::summary(&self.set),
            levels: LevelRow::of(levels),
            types: trace
                .types
                .iter()
                .enumerate()
                .map(|(kind, one)| self.type_report(kind, one))
                .collect(),
        }
    }

    /// The values of the judged tasks of a type.
    fn of_kind<'all, T: Copy>(
        &'all self,
        kind: usize,
        values: &'all [T],
    ) -> impl Iterator<Item = T> + 'all {
        self.judged[kind].iter().map(|index| values[*index])
    }

    fn energies(&self, kind: usize, policy: PolicyName) -> Vec<f64> {
        let found = self.policies.iter().find(|other| other.name == policy);
        found.map_or_else(Vec::new, |found| self.of_kind(kind, &found.energies).collect())
    }

    fn type_report(&self, kind: usize, one: &TraceType) -> TypeReport {
        let fastest = self.energies(kind, PolicyName::Fastest);
        let rows = self.policies.iter().map(|policy| {
            let energies: Vec<_> = self.of_kind(kind, &policy.energies).collect();
            let met: Vec<_> = self.of_kind(kind, &policy.met).collect();
            let missed = met.iter().filter(|is_met| !**is_met).count() as u64;
            let ratio = quotient_of_sums(&energies, &fastest, CONFIDENCE, SEED);
            PolicyRow {
                policy: policy.name,
                modelled_energy_j: energies.iter().sum(),
                modelled_of_fastest: ratio.map(ReportedInterval::from),
                missed,
                missed_share: ReportedInterval::of_share(missed, met.len() as u64),
                overlapped: self.of_kind(kind, &policy.overlapped).filter(|is_so| *is_so).count(),
            }
        });
        let rows: Vec<_> = rows.collect();
        TypeReport {
            name: one.name.clone(),
            deadline_ms: one.deadline_ms,
            target: one.target,
            trained: self.known[kind].samples.len(),
            judged: self.judged[kind].len(),
            work: self.work[kind].as_ref().map(Work::of),
            median_period_ms: self.periods[kind].map(|period| period * 1e3),
            estimator: name(self.known[kind].estimator),
            verdict: PaceVerdict::of(one.target, self.known[kind].samples.len(), &rows, |policy| {
                self.energies(kind, policy)
            }),
            policies: rows,
        }
    }

    /// The schedule of a type's next task under a rule.
    pub fn schedule(
        &self,
        kind: usize,
        rule: ScheduleRule,
        deadline: f64,
    ) -> Option<::pace::Schedule> {
        self.known[kind].schedule(&self.set.levels, rule, deadline)
    }
}

/// The median time between the beginnings of two tasks of each type, in seconds.
fn median_periods(trace: &Trace) -> Vec<Option<f64>> {
    let mut begins = vec![Vec::new(); trace.types.len()];
    trace.tasks.iter().for_each(|task| begins[task.kind].push(task.begin));
    let median = |begins: Vec<f64>| {
        let mut periods: Vec<_> = begins.windows(2).map(|two| two[1] - two[0]).collect();
        periods.sort_by(f64::total_cmp);
        quantile(&periods, 0.5)
    };
    begins.into_iter().map(median).collect()
}

/// "a gamma distribution of all samples"
fn name(estimator: Estimator) -> String {
    let samples = match estimator.selection {
        SampleSelection::All => "all samples".to_owned(),
        SampleSelection::Recent(n) => format!("the latest {n} samples"),
        SampleSelection::LongShort => {
            "the latest 12 samples, 3 of them with more weight".to_owned()
        }
        SampleSelection::Aged(factor) => format!("aged samples (factor {factor})"),
    };
    let model = match estimator.model {
        DistributionModel::Samples => return samples,
        DistributionModel::Histogram => "a histogram",
        DistributionModel::Gamma => "a gamma distribution",
        DistributionModel::Normal => "a normal distribution",
        DistributionModel::Kernel => "a kernel density",
    };
    format!("{model} of {samples}")
}

#[cfg(test)]
mod tests {
    use super::super::simulate_report::simulation_text;
    use super::super::verdict::VerdictKind;
    use super::*;

    /// 40 tasks of the first type, one every `period` seconds, and one of the second type, which
    /// needs a second of the fastest speed (700 MHz), at the beginning of the second half.
    fn trace(period: f64) -> Trace {
        let kind = |name: &str| TraceType { name: name.into(), deadline_ms: 50.0, target: 0.9 };
        let task = |index: u32| TraceTask {
            kind: 0,
            begin: f64::from(index) * period,
            cycles: 1e6,
            deadline: 0.05,
        };
        let mut tasks: Vec<_> = (0..40).map(task).collect();
        tasks.insert(21, TraceTask { kind: 1, cycles: 700e6, ..tasks[20] });
        Trace { types: ["short", "long", "no task"].map(kind).into(), tasks }
    }

    fn simulate(trace: Trace) -> SimulateReport {
        let (sets, trace) = (vec![level_set::find("rightspeed").unwrap()], Arc::new(trace));
        report(&simulated(sets, &trace, &AtomicBool::new(false)).unwrap(), &trace)
    }

    #[test]
    fn tasks_that_overlap_are_counted() {
        let of = |period| {
            let report = simulate(trace(period));
            let fastest = report.sets[0].types[0].policies[0].overlapped;
            (fastest, simulation_text(&report, usize::MAX))
        };
        // The long task takes a second, in which it delays 10 further ones.
        let (overlapped, text) = of(0.1);
        assert!((10..=13).contains(&overlapped), "{overlapped}");
        assert!(text.contains("While another task was unfinished: "), "{text}");
        assert!(!text.contains("The tasks begin every"), "{text}");
        let (overlapped, text) = of(0.01);
        assert_eq!(overlapped, 20, "{text}");
        assert!(text.contains("The tasks begin every 10.0 ms (median)"), "{text}");
    }

    #[test]
    fn only_the_types_with_the_most_tasks_are_shown() {
        let mut trace = trace(0.1);
        trace.tasks.insert(0, TraceTask { kind: 1, ..trace.tasks[0] });
        trace.types.swap(0, 2);
        trace.tasks.iter_mut().for_each(|task| task.kind = 2 - task.kind);
        let report = simulate(trace);
        let headings = |top| -> Vec<_> {
            let text = simulation_text(&report, top);
            text.lines().filter(|line| line.contains("(deadline ")).map(str::to_owned).collect()
        };
        let of = |name: &str, trained: &str, judged| {
            let goal = "deadline 50 ms for 90 % of the tasks";
            format!("{name} ({goal}; {trained} to train, {judged} to judge)")
        };
        assert_eq!(headings(1), [of("short", "20 tasks", 20)]);
        let others = [of("long", "1 task", 1), of("no task", "0 tasks", 0)];
        assert_eq!(headings(3)[1..], others);
        let text = simulation_text(&report, 1);
        assert!(text.contains("\n… 2 of 3 types are not shown (--top 3 shows all)\n"), "{text}");
        assert!(!simulation_text(&report, 3).contains("not shown"));
    }

    #[test]
    fn types_without_enough_tasks_have_no_verdict() {
        let verdicts = simulate(trace(0.1)).sets.remove(0).types.into_iter();
        let kinds: Vec<_> = verdicts.map(|one| one.verdict.kind).collect();
        assert_eq!(kinds[1..], [VerdictKind::NotTrained, VerdictKind::NotJudged]);
    }

    #[test]
    fn comparison_can_be_cancelled() {
        let sets = vec![level_set::find("rightspeed").unwrap()];
        assert!(simulated(sets, &Arc::new(trace(0.1)), &AtomicBool::new(true)).is_none());
    }
}
