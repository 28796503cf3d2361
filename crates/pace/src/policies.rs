//! Policies that plan for tasks: those of pace, and those that it is compared with.

use crate::curve::WorkCurve;
use crate::estimator::Estimator;
use crate::four_steps::four_steps;
use crate::levels::{Level, Levels};
use crate::replay::{SpeedPolicy, Task};
use crate::schedule::{Goal, Schedule, flat, lambda_rule};

/// How a schedule follows from what is known of the work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScheduleRule {
    /// One speed.
    Flat,
    /// The optimum (`lambda_rule`).
    Lambda,
    /// The paper's four steps, with a tick of this many seconds.
    FourSteps(f64),
}

/// With fewer samples of a type, its tasks run at the fastest level.
pub const MIN_SAMPLES: usize = 10;

/// Learns the work of the tasks, and gives each a schedule. If several tasks wait, the processor
/// runs at the fastest level until none is left, as RightSpeed has it.
pub struct Learner<'levels> {
    levels: &'levels Levels,
    rule: ScheduleRule,
    estimator: Estimator,
    target: f64,
    samples: Vec<f64>,
    schedule: Option<Schedule>,
}

impl<'levels> Learner<'levels> {
    /// `target` is the share of the tasks that should meet their deadlines. `samples` is the work
    /// of earlier tasks, the latest one last.
    pub fn new(
        levels: &'levels Levels,
        rule: ScheduleRule,
        estimator: Estimator,
        target: f64,
        samples: Vec<f64>,
    ) -> Self {
        Self { levels, rule, estimator, target, samples, schedule: None }
    }

    fn plan(&self, deadline: f64) -> Option<Schedule> {
        if self.samples.len() < MIN_SAMPLES {
            return None;
        }
        let curve = self.estimator.curve(&self.samples)?;
        let goal = Goal { deadline, cycles: curve.quantile(self.target) };
        Some(match self.rule {
            ScheduleRule::Flat => flat(self.levels, goal),
            ScheduleRule::Lambda => lambda_rule(self.levels, &curve, goal),
            ScheduleRule::FourSteps(tick) => four_steps(self.levels, &curve, goal, tick),
        })
    }
}

impl SpeedPolicy for Learner<'_> {
    fn begin(&mut self, task: &Task, waiting: usize) {
        self.schedule = if waiting == 1 { self.plan(task.deadline) } else { None };
    }

    fn end(&mut self, task: &Task, _waiting: usize) {
        self.samples.push(task.cycles);
        self.schedule = None;
    }

    fn level(&self, done: f64) -> (Level, f64) {
        scheduled(self.levels, self.schedule.as_ref(), done)
    }
}

/// The level of a schedule at `done` cycles, and where it changes; the fastest level without one.
fn scheduled(levels: &Levels, schedule: Option<&Schedule>, done: f64) -> (Level, f64) {
    let all = levels.worthwhile();
    let Some(schedule) = schedule else { return (all[all.len() - 1], f64::INFINITY) };
    let steps = schedule.steps();
    let next = steps.partition_point(|step| step.from <= done);
    (all[steps[next - 1].level], steps.get(next).map_or(f64::INFINITY, |step| step.from))
}

/// Always the fastest level.
pub struct Fastest<'levels>(pub &'levels Levels);

impl SpeedPolicy for Fastest<'_> {
    fn begin(&mut self, _task: &Task, _waiting: usize) {}

    fn end(&mut self, _task: &Task, _waiting: usize) {}

    fn level(&self, done: f64) -> (Level, f64) {
        scheduled(self.0, None, done)
    }
}

/// Knows the work of each task in advance: the least energy that any policy can need for tasks that
/// do not wait for each other.
pub struct Clairvoyant<'levels> {
    levels: &'levels Levels,
    schedule: Option<Schedule>,
}

impl<'levels> Clairvoyant<'levels> {
    /// For these levels.
    pub fn new(levels: &'levels Levels) -> Self {
        Self { levels, schedule: None }
    }
}

impl SpeedPolicy for Clairvoyant<'_> {
    fn begin(&mut self, task: &Task, waiting: usize) {
        let goal = Goal { deadline: task.deadline, cycles: task.cycles };
        let curve = WorkCurve::of_samples([(task.cycles, 1.0)]);
        self.schedule =
            curve.filter(|_| waiting == 1).map(|curve| lambda_rule(self.levels, &curve, goal));
    }

    fn end(&mut self, _task: &Task, _waiting: usize) {
        self.schedule = None;
    }

    fn level(&self, done: f64) -> (Level, f64) {
        scheduled(self.levels, self.schedule.as_ref(), done)
    }
}
