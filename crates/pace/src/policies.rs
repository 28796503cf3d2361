//! Policies that plan for tasks: those of pace, and those that it is compared with.

use crate::curve::WorkCurve;
use crate::estimator::Estimator;
use crate::four_steps::four_steps;
use crate::levels::{Level, Levels};
use crate::replay::{SpeedPolicy, TraceTask};
use crate::schedule::{Goal, Schedule, flat, lambda_rule};

/// The rule that makes a schedule from the distribution of work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScheduleRule {
    /// One constant speed (`flat`).
    Flat,
    /// The optimum (`lambda_rule`).
    Lambda,
    /// The paper's four steps, with a tick of this many seconds.
    FourSteps(f64),
}

/// A type with fewer samples than this runs at the fastest level: fewer say nothing about its 95 %
/// quantile.
pub const MIN_SAMPLES: usize = 10;
/// The number of the latest samples that are kept of a type. RightSpeed keeps a sample of recent
/// tasks, too, but the text at hand does not say how many.
pub const MAX_SAMPLES: usize = 1000;
/// A schedule is made anew when more than one in this many of the samples that its estimator
/// selects is new: fewer hardly change the distribution.
const REPLAN_PART: usize = 50;

/// What a policy knows of a type of tasks.
#[derive(Debug, Clone, PartialEq)]
pub struct TypeKnowledge {
    /// The share of the tasks that should meet their deadlines.
    pub target: f64,
    /// The estimator of the type's work.
    pub estimator: Estimator,
    /// The work of earlier tasks, the latest one last.
    pub samples: Vec<f64>,
}

impl TypeKnowledge {
    /// The schedule of a task with this deadline. Returns `None` with too few samples, or if the
    /// deadline is not possible.
    pub fn schedule(&self, levels: &Levels, rule: ScheduleRule, deadline: f64) -> Option<Schedule> {
        if self.samples.len() < MIN_SAMPLES {
            return None;
        }
        let curve = self.estimator.curve(&self.samples)?;
        let goal = Goal::new(deadline, curve.quantile(self.target))?;
        Some(match rule {
            ScheduleRule::Flat => flat(levels, goal),
            ScheduleRule::Lambda => lambda_rule(levels, &curve, goal),
            ScheduleRule::FourSteps(tick) => four_steps(levels, &curve, goal, tick),
        })
    }
}

/// A type's knowledge and its latest schedule, which is made anew when enough samples are new.
pub struct TypePlanner {
    knowledge: TypeKnowledge,
    /// The number of samples since the schedule was made.
    new_samples: usize,
    /// The schedule and its deadline.
    planned: Option<(f64, Option<Schedule>)>,
}

impl TypePlanner {
    /// Starts with what is known of a type.
    pub fn new(knowledge: TypeKnowledge) -> Self {
        Self { knowledge, new_samples: 0, planned: None }
    }

    /// What is known of the type now.
    pub fn knowledge(&self) -> &TypeKnowledge {
        &self.knowledge
    }

    /// Changes the estimator. The next schedule is made with it.
    pub fn set_estimator(&mut self, estimator: Estimator) {
        self.knowledge.estimator = estimator;
        self.planned = None;
    }

    /// Adds the work of a task that has ended.
    pub fn add(&mut self, cycles: f64) {
        let samples = &mut self.knowledge.samples;
        // Removes half of the samples at a time, so that they are not moved for each task.
        if samples.len() >= 2 * MAX_SAMPLES {
            samples.drain(..samples.len() - MAX_SAMPLES);
        }
        samples.push(cycles);
        self.new_samples += 1;
    }

    /// The schedule of the next task. Returns `None` with too few samples.
    pub fn plan(&mut self, levels: &Levels, rule: ScheduleRule, deadline: f64) -> Option<Schedule> {
        let selected = self.knowledge.estimator.selected(self.knowledge.samples.len());
        let is_new = match &self.planned {
            Some((planned_for, schedule)) => {
                *planned_for == deadline
                    && (schedule.is_some() || self.new_samples == 0)
                    && self.new_samples * REPLAN_PART <= selected
            }
            None => false,
        };
        if !is_new {
            let schedule = self.knowledge.schedule(levels, rule, deadline);
            (self.planned, self.new_samples) = (Some((deadline, schedule)), 0);
        }
        self.planned.as_ref().and_then(|(_, schedule)| schedule.clone())
    }
}

/// Learns the work of each type, and gives each task a schedule. If several tasks are unfinished,
/// the processor runs at the fastest level until none is left, as in RightSpeed.
pub struct Learner<'levels> {
    levels: &'levels Levels,
    rule: ScheduleRule,
    types: Vec<TypePlanner>,
    schedule: Option<Schedule>,
}

impl<'levels> Learner<'levels> {
    /// `types` is what is known of each type before the first task. [`TraceTask::kind`] is an index
    /// in it.
    pub fn new(levels: &'levels Levels, rule: ScheduleRule, types: Vec<TypeKnowledge>) -> Self {
        let types = types.into_iter().map(TypePlanner::new).collect();
        Self { levels, rule, types, schedule: None }
    }
}

impl SpeedPolicy for Learner<'_> {
    fn begin(&mut self, task: &TraceTask, waiting: usize) {
        self.schedule = match waiting {
            1 => self.types[task.kind].plan(self.levels, self.rule, task.deadline),
            _ => None,
        };
    }

    fn end(&mut self, task: &TraceTask, _waiting: usize) {
        self.types[task.kind].add(task.cycles);
        self.schedule = None;
    }

    fn level(&self, done: f64) -> (Level, f64) {
        scheduled(self.levels, self.schedule.as_ref(), done)
    }
}

/// The level of a schedule at `done` cycles, and the cycles at which the level changes next.
/// Without a schedule, this is the fastest level.
fn scheduled(levels: &Levels, schedule: Option<&Schedule>, done: f64) -> (Level, f64) {
    let all = levels.worthwhile();
    let Some(schedule) = schedule else { return (all[all.len() - 1], f64::INFINITY) };
    let steps = schedule.steps();
    let next = steps.partition_point(|step| step.from <= done);
    (all[steps[next - 1].level], steps.get(next).map_or(f64::INFINITY, |step| step.from))
}

/// The policy that always uses the fastest level.
pub struct Fastest<'levels>(pub &'levels Levels);

impl SpeedPolicy for Fastest<'_> {
    fn begin(&mut self, _task: &TraceTask, _waiting: usize) {}

    fn end(&mut self, _task: &TraceTask, _waiting: usize) {}

    fn level(&self, done: f64) -> (Level, f64) {
        scheduled(self.0, None, done)
    }
}

/// The policy that knows the work of each task in advance. If no task waits for another, no policy
/// that meets all deadlines needs less energy.
pub struct Clairvoyant<'levels> {
    levels: &'levels Levels,
    schedule: Option<Schedule>,
}

impl<'levels> Clairvoyant<'levels> {
    /// Creates the policy for these levels.
    pub fn new(levels: &'levels Levels) -> Self {
        Self { levels, schedule: None }
    }
}

impl SpeedPolicy for Clairvoyant<'_> {
    fn begin(&mut self, task: &TraceTask, waiting: usize) {
        let goal = Goal::new(task.deadline, task.cycles).filter(|_| waiting == 1);
        let curve = WorkCurve::of_samples([(task.cycles, 1.0)]);
        self.schedule = goal.zip(curve).map(|(goal, curve)| lambda_rule(self.levels, &curve, goal));
    }

    fn end(&mut self, _task: &TraceTask, _waiting: usize) {
        self.schedule = None;
    }

    fn level(&self, done: f64) -> (Level, f64) {
        scheduled(self.levels, self.schedule.as_ref(), done)
    }
}
