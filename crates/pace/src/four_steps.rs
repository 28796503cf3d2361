//! RightSpeed's own four steps from the ideal schedule to levels, as far as the paper describes
//! them.

use crate::curve::WorkCurve;
use crate::levels::Levels;
use crate::schedule::{Goal, Schedule};

/// More than the 53 bits of a number (IEEE 754), so that the search reaches its precision.
const HALVINGS: usize = 60;

/// The schedule by RightSpeed's four steps (section 4.3 of the paper):
///
/// 1. the ideal schedule, made of phases of a constant speed;
/// 2. each speed is rounded to the nearest worthwhile level;
/// 3. the length of each phase is rounded to `tick` seconds (1 ms in the paper);
/// 4. the rounding is repaired, so that the goal is met.
///
/// Two parts are our reconstruction. The ideal schedule needs the energy of every speed, not only
/// of the levels. Here this is the power law of the speed that fits the levels best. The text at
/// hand has only the beginning of step 4. Here the slowest phase becomes shorter, tick by tick,
/// until the goal is met.
pub fn four_steps(levels: &Levels, curve: &WorkCurve, goal: Goal, tick: f64) -> Schedule {
    let all = levels.worthwhile();
    let fastest = all.len() - 1;
    if goal.cycles >= all[fastest].hz * goal.deadline {
        return Schedule::fastest(levels);
    }
    let ends: Vec<f64> = curve
        .amounts()
        .iter()
        .copied()
        .take_while(|amount| *amount < goal.cycles)
        .chain([goal.cycles])
        .collect();
    let begins = || [0.0].into_iter().chain(ends.iter().copied());
    let exponent = 1.0 / (energy_exponent(levels) + 1.0);
    let speeds = |k: f64| -> Vec<f64> {
        begins()
            .zip(&ends)
            .map(|(begin, _)| (k / curve.survival(begin)).powf(exponent))
            .map(|speed| speed.clamp(all[0].hz, all[fastest].hz))
            .collect()
    };
    let time = |speeds: &[f64]| -> f64 {
        begins().zip(&ends).zip(speeds).map(|((begin, end), speed)| (end - begin) / speed).sum()
    };
    // With the smallest K, all speeds are clamped to the slowest level, and with the largest K to
    // the fastest level.
    let power = |speed: f64, survival: f64| speed.powf(1.0 / exponent) * survival;
    let rarest = begins().zip(&ends).map(|(begin, _)| curve.survival(begin)).fold(1.0, f64::min);
    let (mut low, mut high) = (power(all[0].hz, rarest.max(1e-9)), power(all[fastest].hz, 1.0));
    for _ in 0..HALVINGS {
        let k = (low * high).sqrt();
        if time(&speeds(k)) > goal.deadline { low = k } else { high = k }
    }
    let nearest = |speed: f64| {
        let distance = |level: &usize| (all[*level].hz - speed).abs();
        (0..=fastest).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(fastest)
    };
    let mut seconds = vec![0.0; fastest + 1];
    for ((begin, end), speed) in begins().zip(&ends).zip(speeds(high)) {
        let level = nearest(speed);
        seconds[level] += (end - begin) / all[level].hz;
    }
    for time in &mut seconds[..fastest] {
        *time = (*time / tick).round() * tick;
    }
    while let Some(slowest) = seconds[..fastest].iter().position(|time| *time > 0.0) {
        let schedule = Schedule::of_transitions(&leaves(levels, &seconds, goal));
        if schedule.time(levels, goal.cycles) <= goal.deadline * (1.0 + 1e-12) {
            return schedule;
        }
        seconds[slowest] = (seconds[slowest] - tick).max(0.0);
    }
    Schedule::fastest(levels)
}

/// Converts the time at each level to the work at which each level but the fastest is left.
fn leaves(levels: &Levels, seconds: &[f64], goal: Goal) -> Vec<f64> {
    let mut done = 0.0;
    seconds[..seconds.len() - 1]
        .iter()
        .zip(levels.worthwhile())
        .map(|(time, level)| {
            done = f64::min(done + time * level.hz, goal.cycles);
            done
        })
        .collect()
}

/// The exponent a of the energy per cycle, E(s) ~ s^a, that fits the worthwhile levels best (least
/// squares of the logarithms). With a single level it does not matter.
fn energy_exponent(levels: &Levels) -> f64 {
    let points: Vec<_> = levels
        .worthwhile()
        .iter()
        .enumerate()
        .map(|(index, level)| (level.hz.ln(), levels.energy_per_cycle(index).ln()))
        .collect();
    let n = points.len() as f64;
    let mean = |part: fn(&(f64, f64)) -> f64| points.iter().map(part).sum::<f64>() / n;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let squares: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let products: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    if squares > 0.0 { products / squares } else { 1.0 }
}
