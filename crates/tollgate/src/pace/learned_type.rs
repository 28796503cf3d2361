//! What is learned of a type of tasks while it is paced, and its schedule.

use std::collections::VecDeque;
use std::time::Duration;

use ::pace::{
    DistributionModel, Estimator, Levels, SampleSelection, ScheduleRule, TraceTask, TypeKnowledge,
    TypePlanner,
};
use kernel::clock::thread_time;
use kernel::pace::{GateSchedule, GateStep};
use kernel::wire;

use super::estimator_chooser::ChoiceInput;
use super::margin::Margin;

/// The number of tasks after which an estimator is chosen, and after which it is chosen again. The
/// choice replays these tasks.
const CHOICE_TASKS: usize = 500;
/// The minimum time between two schedules of a type, in seconds: with some estimators, a schedule
/// takes milliseconds of processor time.
const PLAN_INTERVAL: f64 = 0.1;
/// The estimator until one is chosen: it does not depend on the form of the distribution, and uses
/// only the latest samples.
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
    /// When the task began after which the latest schedule was made, in seconds.
    planned_at: f64,
    planning_time: Duration,
    /// The schedule that the gate has.
    active: Option<GateSchedule>,
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
            planned_at: 0.0,
            planning_time: Duration::ZERO,
            active: None,
        }
    }

    /// Adds a task that has ended: when it began, in seconds, and its work. Returns a schedule if
    /// it differs from the one that the gate has.
    pub fn add(
        &mut self,
        levels: &Levels,
        begin: f64,
        cycles: f64,
        margin: Margin,
    ) -> Option<&GateSchedule> {
        self.planner.add(cycles);
        if self.latest.len() == CHOICE_TASKS {
            self.latest.pop_front();
        }
        self.latest.push_back(TraceTask { kind: 0, begin, cycles, deadline: self.deadline });
        self.since_choice += 1;
        if self.active.is_some() && begin - self.planned_at < PLAN_INTERVAL {
            return None;
        }
        self.planned_at = begin;
        let before = thread_time();
        let planned = self.deadline - margin.seconds(self.deadline, levels);
        let schedule = self.planner.plan(levels, ScheduleRule::Lambda, planned);
        self.planning_time += thread_time() - before;
        let schedule = schedule?;
        let schedule = for_gate(levels, &schedule, self.deadline, planned);
        if self.active.as_ref() == Some(&schedule) {
            return None;
        }
        Some(self.active.insert(schedule))
    }

    /// The number of tasks since an estimator was chosen. `None` if they are too few for a choice.
    pub fn choice_due(&self) -> Option<usize> {
        Some(self.since_choice).filter(|tasks| *tasks >= CHOICE_TASKS)
    }

    /// The tasks for a choice that starts now.
    pub fn begin_choice(&mut self) -> ChoiceInput {
        self.since_choice = 0;
        let tasks = self.latest.iter().copied().collect();
        ChoiceInput { tasks, target: self.planner.knowledge().target }
    }

    /// Adds the work of tasks, in cycles, that did not end just now.
    pub fn add_samples(&mut self, samples: &[f64]) {
        samples.iter().for_each(|cycles| self.planner.add(*cycles));
    }

    /// Uses another estimator from the next schedule on.
    pub fn set_estimator(&mut self, estimator: Estimator) {
        self.planner.set_estimator(estimator);
    }

    /// The processor time of all schedules.
    pub fn planning_time(&self) -> Duration {
        self.planning_time
    }

    /// The work of the latest tasks, in cycles.
    pub fn samples(&self) -> &[f64] {
        &self.planner.knowledge().samples
    }

    /// The schedule that the gate has. `None` with too few tasks.
    pub fn active(&self) -> Option<&GateSchedule> {
        self.active.as_ref()
    }
}

/// A schedule as the gate needs it.
fn for_gate(
    levels: &Levels,
    schedule: &::pace::Schedule,
    deadline: f64,
    planned: f64,
) -> GateSchedule {
    let khz = |level: usize| (levels.worthwhile()[level].hz / 1e3).round() as u64;
    let mut steps: Vec<_> = schedule
        .steps()
        .iter()
        .map(|step| GateStep {
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
    GateSchedule {
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

    const MARGIN: Margin =
        Margin { latency: (Duration::from_micros(50), Duration::from_micros(250)) };

    #[test]
    fn schedule_follows_after_enough_tasks() {
        let levels = levels(4);
        let mut learned = LearnedType::new(20.0, 0.9, Vec::new());
        for n in 1..MIN_SAMPLES {
            assert!(learned.add(&levels, 0.0, 8e6 + n as f64, MARGIN).is_none());
        }
        let schedule = learned.add(&levels, 0.0, 8e6, MARGIN).unwrap().clone();
        assert_eq!(schedule.deadline, Duration::from_millis(20));
        assert_eq!(schedule.planned, Duration::from_micros(19_600));
        assert_eq!(schedule.steps[0].cycles, 0);
        assert_eq!(schedule.steps.last().unwrap().khz, 800_000);
        // The pre-deadline cycles take the planned time, and the steps are in order.
        assert!(schedule.steps.is_sorted_by(|a, b| a.cycles < b.cycles && a.after < b.after));
        // The same work again changes nothing.
        assert!(learned.add(&levels, 0.0, 8e6, MARGIN).is_none());
        assert_eq!(learned.active(), Some(&schedule));
    }

    #[test]
    fn steps_that_the_gate_has_no_room_for_are_left_out() {
        let levels = levels(40);
        let mut learned = LearnedType::new(20.0, 0.95, Vec::new());
        let spread = |n: usize| 5e6 + n as f64 * 2e4;
        let mut latest = None;
        for n in 0..400 {
            latest = learned.add(&levels, n as f64, spread(n), MARGIN).cloned().or(latest);
        }
        let schedule = latest.unwrap();
        assert!(schedule.steps.len() <= wire::PACE_STEPS as usize);
        assert_eq!(schedule.steps[0].cycles, 0);
        assert!(schedule.steps.is_sorted_by_key(|step| (step.cycles, step.khz)));
        // The steps that are left reach the work no later than planned.
        for two in schedule.steps.windows(2) {
            let ns = (two[1].cycles - two[0].cycles) as f64 * 1e6 / two[0].khz as f64;
            let planned = (two[1].after - two[0].after).as_nanos() as f64;
            assert!(ns <= planned + 100.0, "{ns} ns, but planned are {planned}");
        }
    }

    #[test]
    fn choice_is_due_after_enough_tasks() {
        let levels = levels(4);
        let mut learned = LearnedType::new(20.0, 0.9, Vec::new());
        for _ in 0..CHOICE_TASKS {
            assert_eq!(learned.choice_due(), None);
            learned.add(&levels, 0.0, 6e6, MARGIN);
        }
        assert_eq!(learned.choice_due(), Some(CHOICE_TASKS));
        assert_eq!(learned.begin_choice().tasks.len(), CHOICE_TASKS);
        assert_eq!(learned.choice_due(), None);
    }

    #[test]
    fn schedules_are_not_made_more_often_than_the_interval() {
        let levels = levels(4);
        let mut learned = LearnedType::new(20.0, 0.9, vec![6e6; MIN_SAMPLES]);
        assert!(learned.add(&levels, 1.0, 6e6, MARGIN).is_some());
        for n in 0..100 {
            assert!(learned.add(&levels, 1.0 + PLAN_INTERVAL / 2.0, 9e6, MARGIN).is_none(), "{n}");
        }
        assert!(learned.add(&levels, 1.0 + PLAN_INTERVAL, 9e6, MARGIN).is_some());
    }
}
