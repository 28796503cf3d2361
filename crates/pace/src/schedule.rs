//! Schedules: the level at which a task runs as a function of the work that it has done.

use std::mem;

use crate::curve::WorkCurve;
use crate::levels::Levels;

/// The goal of a schedule: the pre-deadline cycles by the deadline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goal {
    pub(crate) deadline: f64,
    pub(crate) cycles: f64,
}

impl Goal {
    /// `deadline` is in seconds from the beginning of the task, and `cycles` are the pre-deadline
    /// cycles. Returns `None` unless the deadline is a positive, finite number, and the cycles are
    /// a finite number that is not negative.
    pub fn new(deadline: f64, cycles: f64) -> Option<Self> {
        let is_possible =
            deadline.is_finite() && deadline > 0.0 && cycles.is_finite() && cycles >= 0.0;
        is_possible.then_some(Self { deadline, cycles })
    }

    /// Seconds from the beginning of the task.
    pub fn deadline(self) -> f64 {
        self.deadline
    }

    /// The pre-deadline cycles.
    pub fn cycles(self) -> f64 {
        self.cycles
    }
}

/// A level, and the work from which it is used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// The cycles that the task has done when this step begins.
    pub from: f64,
    /// An index in [`Levels::worthwhile`].
    pub level: usize,
}

/// The sequence of a task's levels. The first step begins at 0 cycles. Each further step has a
/// faster level. The last step has the fastest level, and begins at the pre-deadline cycles or
/// earlier.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    steps: Vec<Step>,
}

/// The number of halvings in the search for λ. The curve has finitely many steps, so the search
/// reaches two neighbouring schedules in fewer halvings than this.
const HALVINGS: usize = 40;
/// The smallest λ of the search, as a fraction of the λ at which a schedule leaves the slowest
/// level at once. The same fraction is the probability Fᶜ(w) at which this smallest λ leaves the
/// slowest level. No curve has a smaller probability, except 0.
const MIN_LAMBDA: f64 = 1e-9;

impl Schedule {
    /// The steps in the order of their beginnings.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The schedule that uses the fastest level from the beginning.
    pub(crate) fn fastest(levels: &Levels) -> Self {
        Self { steps: vec![Step { from: 0.0, level: levels.worthwhile().len() - 1 }] }
    }

    /// `leaves[i]` is the work at which level i is left. It is ascending, and has one entry less
    /// than there are levels.
    pub(crate) fn of_transitions(leaves: &[f64]) -> Self {
        let mut steps: Vec<Step> = vec![Step { from: 0.0, level: 0 }];
        for (level, from) in leaves.iter().enumerate() {
            if steps.last().is_some_and(|step| step.from >= *from) {
                steps.pop();
            }
            steps.push(Step { from: *from, level: level + 1 });
        }
        Self { steps }
    }

    /// The steps, each with the work at which it ends.
    fn phases(&self) -> impl Iterator<Item = (Step, f64)> {
        let ends = self.steps.iter().skip(1).map(|step| step.from).chain([f64::INFINITY]);
        self.steps.iter().copied().zip(ends)
    }

    /// How long a task of this many cycles takes, in seconds.
    pub fn time(&self, levels: &Levels, cycles: f64) -> f64 {
        self.phases()
            .map(|(step, end)| {
                (end.min(cycles) - step.from).max(0.0) / levels.worthwhile()[step.level].hz
            })
            .sum()
    }

    /// The expected energy of a task beyond that of an idle processor, in joules.
    pub fn expected_energy(&self, levels: &Levels, curve: &WorkCurve) -> f64 {
        self.phases()
            .map(|(step, end)| {
                curve.expected_between(step.from, end) * levels.energy_per_cycle(step.level)
            })
            .sum()
    }

    /// Moves the beginning of each step back to a multiple of `tick` seconds, so that the
    /// pre-deadline cycles take no longer.
    pub fn rounded(&self, levels: &Levels, tick: f64) -> Self {
        let mut steps = vec![self.steps[0]];
        let (mut time, mut done) = (0.0, self.steps[0].from);
        for step in &self.steps[1..] {
            let slower = steps[steps.len() - 1];
            let hz = levels.worthwhile()[slower.level].hz;
            let leaves = ((time + (step.from - done) / hz) / tick).floor() * tick;
            done += (leaves - time).max(0.0) * hz;
            time = time.max(leaves);
            if done <= slower.from {
                steps.pop();
            }
            steps.push(Step { from: done, level: step.level });
        }
        Self { steps }
    }

    /// Returns the rest of the schedule after a wait for I/O. As in the paper, all remaining speeds
    /// are multiplied by one factor. This is the smallest factor with which the rest of the
    /// pre-deadline cycles takes at most `left` seconds, if each speed is rounded up to a level.
    /// The result counts work from the beginning of the task, like this schedule. If no factor
    /// suffices, the result uses the fastest level.
    pub fn after_wait(&self, levels: &Levels, goal: Goal, done: f64, left: f64) -> Self {
        let hz = |level: usize| levels.worthwhile()[level].hz;
        let fastest = levels.worthwhile().len() - 1;
        let remaining: Vec<_> = self.phases().filter(|(_, end)| *end > done).collect();
        let raised = |factor: f64| -> Vec<Step> {
            let rounded_up = |level: usize| {
                let wanted = hz(level) * factor * (1.0 - 1e-12);
                (level..=fastest).find(|faster| hz(*faster) >= wanted).unwrap_or(fastest)
            };
            let mut steps: Vec<Step> = Vec::new();
            for (step, _) in &remaining {
                let level = rounded_up(step.level);
                if steps.last().is_none_or(|last| last.level != level) {
                    steps.push(Step { from: step.from, level });
                }
            }
            steps[0].from = 0.0;
            steps
        };
        let suffices = |steps: &[Step]| {
            let whole = Self { steps: steps.to_vec() };
            let rest = whole.time(levels, goal.cycles) - whole.time(levels, done.min(goal.cycles));
            rest <= left * (1.0 + 1e-12)
        };
        // The result changes only at the factors that raise a speed exactly to a faster level.
        let mut factors: Vec<_> = remaining
            .iter()
            .flat_map(|(step, _)| (step.level..=fastest).map(|to| hz(to) / hz(step.level)))
            .collect();
        factors.sort_by(f64::total_cmp);
        let steps = factors.into_iter().map(raised).find(|steps| suffices(steps));
        steps.map_or_else(|| Self::fastest(levels), |steps| Self { steps })
    }
}

/// The schedule with one speed up to the pre-deadline cycles. This is the slowest worthwhile level
/// that does them by the deadline.
pub fn flat(levels: &Levels, goal: Goal) -> Schedule {
    let all = levels.worthwhile();
    let fastest = all.len() - 1;
    let level =
        all.iter().position(|level| goal.cycles <= level.hz * goal.deadline).unwrap_or(fastest);
    let mut steps = vec![Step { from: 0.0, level }];
    if level < fastest && goal.cycles > 0.0 {
        steps.push(Step { from: goal.cycles, level: fastest });
    }
    Schedule { steps }
}

/// The schedule with the least expected energy that does the pre-deadline cycles by the deadline.
///
/// In the paper's condition for the optimum, s²·E′(s)·Fᶜ(w) = K, Fᶜ(w) is the probability that a
/// task needs more than w cycles, and K is a constant. It has this discrete form: level i is left
/// for level i + 1 when Fᶜ(w) falls to λ·(1/sᵢ − 1/sᵢ₊₁) / (Eᵢ₊₁ − Eᵢ), where E is the energy of a
/// cycle. A larger λ makes the schedule faster. The search chooses λ so that the pre-deadline
/// cycles take exactly the deadline. At a step of the curve, no λ may do that. Then all transitions
/// move by the same fraction between the two neighbouring schedules. Both minimize the Lagrangian
/// for the same λ, so every schedule between them does, too. Therefore no schedule with the same
/// time needs less energy.
///
/// If the slowest level does the cycles by the deadline, the schedule uses it. If the fastest level
/// does not, the schedule uses the fastest level from the beginning.
pub fn lambda_rule(levels: &Levels, curve: &WorkCurve, goal: Goal) -> Schedule {
    let all = levels.worthwhile();
    let fastest = all.len() - 1;
    // The seconds that each next level saves for one more joule. They are descending, because the
    // levels are a convex hull.
    let rates: Vec<_> = (0..fastest)
        .map(|level| {
            let more = levels.energy_per_cycle(level + 1) - levels.energy_per_cycle(level);
            (1.0 / all[level].hz - 1.0 / all[level + 1].hz) / more
        })
        .collect();
    // Where a level can be left: 0 is at once, n is at the n-th amount of the curve, and the last
    // position is at the pre-deadline cycles. A larger λ leaves no level later.
    let amounts = curve.amounts();
    let inner = amounts.partition_point(|amount| *amount < goal.cycles);
    let work = |position: usize| match position {
        0 => 0.0,
        position if position <= inner => amounts[position - 1],
        _ => goal.cycles,
    };
    let time = |leaves: &[usize]| -> f64 {
        let (mut time, mut done) = (0.0, 0.0);
        for (position, level) in leaves.iter().chain([&(inner + 1)]).zip(all) {
            time += (work(*position) - done) / level.hz;
            done = work(*position);
        }
        time
    };
    if goal.cycles >= all[fastest].hz * goal.deadline || fastest == 0 {
        return Schedule::fastest(levels);
    }
    let mut slow = vec![inner + 1; fastest];
    if time(&slow) <= goal.deadline {
        return Schedule::of_transitions(&vec![goal.cycles; fastest]);
    }
    let mut fast = vec![0; fastest];
    let mut between = fast.clone();
    let (mut low, mut high) = (MIN_LAMBDA / rates[0], 1.0 / rates[fastest - 1]);
    for _ in 0..HALVINGS {
        if slow.iter().sum::<usize>() - fast.iter().sum::<usize>() == 1 {
            break;
        }
        let lambda = (low * high).sqrt();
        for (level, rate) in rates.iter().enumerate() {
            let first = fast[level].max(1);
            between[level] = match lambda * rate {
                probability if probability >= 1.0 => 0,
                probability => 1 + curve.first_step(probability, first - 1..slow[level] - 1),
            };
        }
        if time(&between) > goal.deadline {
            low = lambda;
            mem::swap(&mut slow, &mut between);
        } else {
            high = lambda;
            mem::swap(&mut fast, &mut between);
        }
    }
    let (longer, shorter) = (time(&slow), time(&fast));
    let part = ((longer - goal.deadline) / (longer - shorter)).clamp(0.0, 1.0);
    let exact = slow.iter().zip(&fast).map(|(slow, fast)| {
        let (slow, fast) = (work(*slow), work(*fast));
        slow + part * (fast - slow)
    });
    Schedule::of_transitions(&exact.collect::<Vec<_>>())
}
