//! The least energy without a change of the level within a step of the curve, with which the rules
//! are compared.

use crate::curve::WorkCurve;
use crate::levels::Levels;
use crate::schedule::Goal;

/// Returns the least expected energy with one level for each step of the curve up to the
/// pre-deadline cycles, and the fastest level after them. Returns `None` if the pre-deadline cycles
/// cannot be done by the deadline. Schedules that change the level within a step may need less.
/// This is dynamic programming over the steps, which keeps each pair of time and energy unless
/// another pair is better in both. The number of pairs can grow
/// exponentially, so this is for curves of a dozen steps.
pub fn least_energy(levels: &Levels, curve: &WorkCurve, goal: Goal) -> Option<f64> {
    let all = levels.worthwhile();
    let mut ends: Vec<f64> =
        curve.amounts().iter().copied().filter(|amount| *amount < goal.cycles).collect();
    ends.push(goal.cycles);
    let mut frontier = vec![(0.0, 0.0)];
    let mut begin = 0.0;
    for end in ends {
        let expected = curve.expected_between(begin, end);
        let mut next: Vec<(f64, f64)> = frontier
            .iter()
            .flat_map(|(time, energy)| {
                all.iter().enumerate().map(move |(index, level)| {
                    (
                        time + (end - begin) / level.hz,
                        energy + expected * levels.energy_per_cycle(index),
                    )
                })
            })
            .filter(|(time, _)| *time <= goal.deadline * (1.0 + 1e-12))
            .collect();
        next.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut least = f64::INFINITY;
        next.retain(|(_, energy)| {
            let is_better = *energy < least;
            least = least.min(*energy);
            is_better
        });
        (frontier, begin) = (next, end);
    }
    let (_, energy) = frontier.last()?;
    let after = curve.expected_between(goal.cycles, f64::INFINITY);
    Some(energy + after * levels.energy_per_cycle(all.len() - 1))
}
