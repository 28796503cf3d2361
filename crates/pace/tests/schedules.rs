//! Properties of schedules.

use pace::{Goal, Level, Levels, Schedule, WorkCurve, flat, four_steps, lambda_rule, least_energy};
use proptest::prelude::*;

/// Levels and samples of any form; speeds of MHz, as laptops and phones have.
fn machines() -> impl Strategy<Value = Levels> {
    let pairs = prop::collection::btree_map(100u32..5000, 1u32..100_000, 1..8);
    pairs.prop_map(|pairs| {
        let level = |(mhz, milliwatts): (u32, u32)| Level {
            hz: f64::from(mhz) * 1e6,
            watts: f64::from(milliwatts) / 1000.0,
        };
        Levels::new(pairs.into_iter().map(level).collect(), 0.0).expect("positive, and different")
    })
}

fn curves() -> impl Strategy<Value = WorkCurve> {
    prop::collection::vec((1e5..1e9, 0.1..10.0), 1..8)
        .prop_map(|samples| WorkCurve::of_samples(samples).expect("there are samples"))
}

/// A goal between what the slowest and what the fastest level can do: `part` from 0 to 1.
fn goal(levels: &Levels, curve: &WorkCurve, share: f64, part: f64) -> Goal {
    let cycles = curve.quantile(share);
    let all = levels.worthwhile();
    let (shortest, longest) = (cycles / all[all.len() - 1].hz, cycles / all[0].hz);
    Goal { deadline: shortest + part * (longest - shortest), cycles }
}

fn is_ordered(schedule: &Schedule) -> bool {
    schedule.steps()[0].from == 0.0
        && schedule.steps().windows(2).all(|two| two[0].from < two[1].from)
        && schedule.steps().windows(2).all(|two| two[0].level < two[1].level)
}

proptest! {
    #[test]
    fn pre_deadline_cycles_take_exactly_the_deadline(
        levels in machines(), curve in curves(), share in 0.5..1.0, part in 0.0..1.0,
    ) {
        let goal = goal(&levels, &curve, share, part);
        let schedule = lambda_rule(&levels, &curve, goal);
        prop_assert!(is_ordered(&schedule), "{schedule:?}");
        let time = schedule.time(&levels, goal.cycles);
        prop_assert!((time / goal.deadline - 1.0).abs() < 1e-9, "{time} for {goal:?}");
    }

    #[test]
    fn rounding_never_takes_longer(
        levels in machines(), curve in curves(), share in 0.5..1.0, part in 0.0..1.0,
        tick in 1e-4..1e-2,
    ) {
        let goal = goal(&levels, &curve, share, part);
        for schedule in [
            lambda_rule(&levels, &curve, goal).rounded(&levels, tick),
            four_steps(&levels, &curve, goal, tick),
            flat(&levels, goal),
        ] {
            prop_assert!(is_ordered(&schedule), "{schedule:?}");
            prop_assert!(schedule.time(&levels, goal.cycles) <= goal.deadline * (1.0 + 1e-9));
        }
    }

    #[test]
    fn no_schedule_needs_less_energy(
        levels in machines(), curve in curves(), share in 0.5..1.0, part in 0.0..1.0,
    ) {
        let goal = goal(&levels, &curve, share, part);
        let least = least_energy(&levels, &curve, goal).expect("the fastest level suffices");
        let energy = lambda_rule(&levels, &curve, goal).expected_energy(&levels, &curve);
        prop_assert!(energy <= least * (1.0 + 1e-9), "{energy} is more than {least}");
        let flat = flat(&levels, goal).expected_energy(&levels, &curve);
        prop_assert!(energy <= flat * (1.0 + 1e-9), "{energy} is more than {flat} at one speed");
    }

    #[test]
    fn rest_after_a_wait_meets_the_deadline_if_possible(
        levels in machines(), curve in curves(), share in 0.5..1.0, part in 0.0..1.0,
        done in 0.0..1.0, left in 0.0..1.0,
    ) {
        let goal = goal(&levels, &curve, share, part);
        let schedule = lambda_rule(&levels, &curve, goal);
        let done = done * goal.cycles;
        let planned = goal.deadline - schedule.time(&levels, done);
        let left = left * planned;
        let rest = schedule.after_wait(&levels, goal, done, left);
        prop_assert!(is_ordered(&rest), "{rest:?}");
        let time = rest.time(&levels, goal.cycles) - rest.time(&levels, done);
        let all = levels.worthwhile();
        let shortest = (goal.cycles - done) / all[all.len() - 1].hz;
        prop_assert!(time <= left.max(shortest) * (1.0 + 1e-9), "{time}, {left} left");
    }
}

#[test]
fn impossible_and_easy_goals() {
    let level = |mhz: f64, watts| Level { hz: mhz * 1e6, watts };
    let levels =
        Levels::new(vec![level(300.0, 2.0), level(500.0, 3.6), level(700.0, 6.0)], 0.0).unwrap();
    let curve = WorkCurve::of_samples([(7e6, 1.0), (35e6, 1.0)]).unwrap();
    let levels_of = |deadline| -> Vec<_> {
        let goal = Goal { deadline, cycles: 35e6 };
        let schedules = [
            lambda_rule(&levels, &curve, goal),
            flat(&levels, goal),
            four_steps(&levels, &curve, goal, 1e-3),
        ];
        schedules.map(|one| one.steps().iter().map(|step| step.level).collect::<Vec<_>>()).into()
    };
    // 35 million cycles take 50 ms at 700 MHz and 117 ms at 300 MHz.
    assert_eq!(levels_of(0.04), vec![vec![2]; 3]);
    assert_eq!(levels_of(0.2), vec![vec![0, 2]; 3]);
}
