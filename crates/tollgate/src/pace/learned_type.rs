//! What is learned of a type of tasks while it is paced, and its schedule.

use std::collections::VecDeque;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ::pace::{
    DistributionModel, Estimator, Levels, SampleSelection, ScheduleRule, TraceTask, TypeKnowledge,
    TypePlanner, choose_estimator,
};
use kernel::pace::{PlannedSchedule, PlannedStep};
use kernel::wire;

use super::comparison::candidate_estimators;

/// An estimator is chosen when there are this many tasks, and again after each as many. They are
/// the tasks that it is chosen by.
const CHOICE_TASKS: usize = 500;
/// The estimator until one is chosen: it does not depend on the form of the distribution, and
/// forgets what is long ago.
const FIRST_ESTIMATOR: Estimator =
    Estimator { selection: SampleSelection::Recent(100), model: DistributionModel::Samples };

/// A type of tasks.
pub struct LearnedType {
    /// Seconds.
    deadline: f64,
    planner: TypePlanner,
    latest: VecDeque<TraceTask>,
    /// The number of tasks since an estimator was chosen.
    since_choice: usize,
    choice: Option<JoinHandle<Option<Estimator>>>,
    /// The schedule that the gate has.
    active: Option<PlannedSchedule>,
}

impl LearnedType {
    /// `samples` is the work of earlier tasks, in cycles.
    pub fn new(deadline_ms: f64, target: f64, samples: Vec<f64>) -> Self {
        let knowledge = TypeKnowledge { target, estimator: FIRST_ESTIMATOR, samples };
        Self {
            deadline: deadline_ms / 1e3,
            planner: TypePlanner::new(knowledge),
            latest: VecDeque::new(),
            since_choice: 0,
            choice: None,
            active: None,
        }
    }

    /// Adds a task that has ended. Returns a schedule if it differs from the one that the gate has.
    /// `margin` is how much earlier than the deadline the schedule should do its work.
    pub fn add(
        &mut self,
        levels: &Levels,
        task: TraceTask,
        margin: Margin,
    ) -> Option<&PlannedSchedule> {
        self.planner.add(task.cycles);
        if self.latest.len() == CHOICE_TASKS {
            self.latest.pop_front();
        }
        self.latest.push_back(TraceTask { kind: 0, deadline: self.deadline, ..task });
        self.since_choice += 1;
        if self.since_choice >= CHOICE_TASKS && self.choice.is_none() {
            self.start_choice(levels.clone());
        }
        let planned = self.deadline - margin.seconds(self.deadline, levels);
        let schedule = self.planner.plan(levels, ScheduleRule::Lambda, planned)?;
        let schedule = for_gate(levels, &schedule, self.deadline, planned);
        if self.active.as_ref() == Some(&schedule) {
            return None;
        }
        Some(self.active.insert(schedule))
    }

    /// Uses the chosen estimator, if the choice has ended.
    pub fn tend(&mut self) {
        if self.choice.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(Ok(Some(estimator))) = self.choice.take().map(JoinHandle::join)
        {
            self.planner.set_estimator(estimator);
        }
    }

    /// The work of the latest tasks, in cycles.
    pub fn samples(&self) -> &[f64] {
        &self.planner.knowledge().samples
    }

    /// The schedule that the gate has. `None` with too few tasks.
    pub fn active(&self) -> Option<&PlannedSchedule> {
        self.active.as_ref()
    }

    /// Chooses in another thread, because a replay of the tasks takes some hundred milliseconds.
    fn start_choice(&mut self, levels: Levels) {
        self.since_choice = 0;
        let tasks: Vec<_> = self.latest.iter().copied().collect();
        let target = self.planner.knowledge().target;
        self.choice = Some(thread::spawn(move || {
            let candidates = candidate_estimators();
            let chosen = choose_estimator(&levels, &tasks, target, &candidates)?;
            Some(candidates[chosen])
        }));
    }
}

/// Why a schedule ends before the deadline: speeds change late.
#[derive(Debug, Clone, Copy)]
pub struct Margin {
    /// The times from the moment at which a task needs another speed until it has it: the median
    /// and the 99th percentile.
    pub latency: (Duration, Duration),
}

impl Margin {
    /// A schedule needs at most half of its deadline for this, however late speeds change.
    const MOST: f64 = 0.5;
    /// The least part of a deadline, for what else delays a task.
    const LEAST: f64 = 0.01;

    /// The time for one change to each level, of which one is as late as the 99th percentile.
    fn seconds(self, deadline: f64, levels: &Levels) -> f64 {
        let (usual, slow) = (self.latency.0.as_secs_f64(), self.latency.1.as_secs_f64());
        let others = levels.worthwhile().len() - 1;
        (slow + usual * others as f64).clamp(Self::LEAST * deadline, Self::MOST * deadline)
    }
}

/// A schedule as the gate needs it.
fn for_gate(
    levels: &Levels,
    schedule: &::pace::Schedule,
    deadline: f64,
    planned: f64,
) -> PlannedSchedule {
    let khz = |level: usize| (levels.worthwhile()[level].hz / 1e3).round() as u64;
    let mut steps: Vec<_> = schedule
        .steps()
        .iter()
        .map(|step| PlannedStep {
            cycles: step.from as u64,
            after: Duration::from_secs_f64(schedule.time(levels, step.from)),
            khz: khz(step.level),
        })
        .collect();
    // With more levels than the gate has steps, some are left out. The next faster one then begins
    // in their place, so that the deadline holds.
    while steps.len() > wire::PACE_STEPS as usize {
        let shortest = (0..steps.len() - 1)
            .min_by_key(|index| steps[index + 1].cycles - steps[*index].cycles)
            .expect("more than one step");
        let removed = steps.remove(shortest);
        (steps[shortest].cycles, steps[shortest].after) = (removed.cycles, removed.after);
    }
    PlannedSchedule {
        deadline: Duration::from_secs_f64(deadline),
        planned: Duration::from_secs_f64(planned),
        steps,
    }
}

#[cfg(test)]
mod tests {
    use ::pace::{Level, MIN_SAMPLES};

    use super::*;

    fn levels(n: u32) -> Levels {
        let level = |i: u32| {
            let ghz = 0.5 + f64::from(i) * 0.1;
            Level { hz: ghz * 1e9, watts: ghz.powi(3) }
        };
        Levels::new((0..n).map(level).collect(), 0.0).unwrap()
    }

    fn task(cycles: f64) -> TraceTask {
        TraceTask { kind: 3, begin: 0.0, cycles, deadline: 9.0 }
    }

    const MARGIN: Margin =
        Margin { latency: (Duration::from_micros(50), Duration::from_micros(250)) };

    #[test]
    fn schedule_follows_after_enough_tasks() {
        let levels = levels(4);
        let mut learned = LearnedType::new(20.0, 0.9, Vec::new());
        for n in 1..MIN_SAMPLES {
            assert!(learned.add(&levels, task(8e6 + n as f64), MARGIN).is_none());
        }
        let schedule = learned.add(&levels, task(8e6), MARGIN).unwrap().clone();
        assert_eq!(schedule.deadline, Duration::from_millis(20));
        assert_eq!(schedule.planned, Duration::from_micros(19_600));
        assert_eq!(schedule.steps[0].cycles, 0);
        assert_eq!(schedule.steps.last().unwrap().khz, 800_000);
        // The pre-deadline cycles take the planned time, and the steps are in order.
        assert!(schedule.steps.is_sorted_by(|a, b| a.cycles < b.cycles && a.after < b.after));
        // The same work again changes nothing.
        assert!(learned.add(&levels, task(8e6), MARGIN).is_none());
        assert_eq!(learned.active(), Some(&schedule));
    }

    #[test]
    fn steps_that_the_gate_has_no_room_for_are_left_out() {
        let levels = levels(40);
        let mut learned = LearnedType::new(20.0, 0.95, Vec::new());
        let spread = |n: usize| task(5e6 + n as f64 * 2e4);
        let mut latest = None;
        for n in 0..400 {
            latest = learned.add(&levels, spread(n % 400), MARGIN).cloned().or(latest);
        }
        let schedule = latest.unwrap();
        assert!(schedule.steps.len() <= wire::PACE_STEPS as usize);
        assert_eq!(schedule.steps[0].cycles, 0);
        assert!(schedule.steps.is_sorted_by_key(|step| (step.cycles, step.khz)));
    }

    #[test]
    fn estimator_is_chosen_from_the_tasks() {
        let levels = levels(4);
        let mut learned = LearnedType::new(20.0, 0.9, Vec::new());
        for n in 0..CHOICE_TASKS {
            learned.add(&levels, task(6e6 + (n % 7) as f64 * 3e5), MARGIN);
        }
        let choice = learned.choice.take().expect("it is being chosen");
        let chosen = choice.join().unwrap().expect("there are candidates");
        assert!(candidate_estimators().contains(&chosen));
        assert_eq!(learned.since_choice, 0);
    }

    #[test]
    fn margin_is_bounded() {
        let levels = levels(4);
        let of = |median, p99| {
            let latency = (Duration::from_micros(median), Duration::from_micros(p99));
            Margin { latency }.seconds(0.1, &levels)
        };
        assert_eq!(of(0, 0), 0.001);
        assert!((of(200, 1400) - 0.002).abs() < 1e-12);
        assert_eq!(of(0, 1_000_000), 0.05);
    }
}
