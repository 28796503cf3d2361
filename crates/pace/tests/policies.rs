//! Replays traces with the policies.

use pace::{
    Clairvoyant, DistributionModel, Estimator, Fastest, Governor, GovernorPolicy, Learner, Level,
    Levels, Replay, SampleSelection, ScheduleRule, SpeedPolicy, TraceTask, TypeKnowledge, replay,
};
use proptest::prelude::*;

/// The five emulated P-states of an Intel-like machine, in MHz and watts.
fn five_levels() -> Levels {
    let level = |(mhz, watts): (f64, f64)| Level { hz: mhz * 1e6, watts };
    let pairs = [(800.0, 4.0), (1200.0, 7.0), (1800.0, 12.0), (2400.0, 20.0), (3000.0, 30.0)];
    Levels::new(pairs.map(level).into(), 0.0).expect("sensible levels")
}

/// A task every 100 ms, with a deadline of 50 ms.
fn tasks(cycles: &[f64]) -> Vec<TraceTask> {
    let task = |(index, cycles): (usize, &f64)| TraceTask {
        kind: 0,
        begin: index as f64 * 0.1,
        cycles: *cycles,
        deadline: 0.05,
    };
    cycles.iter().enumerate().map(task).collect()
}

fn learner(levels: &Levels, rule: ScheduleRule, target: f64) -> Learner<'_> {
    let estimator =
        Estimator { selection: SampleSelection::All, model: DistributionModel::Samples };
    let known = TypeKnowledge { target, estimator, samples: Vec::new() };
    Learner::new(levels, rule, vec![known])
}

fn met(result: &Replay, tasks: &[TraceTask]) -> usize {
    result.met(tasks).into_iter().filter(|is_met| *is_met).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// No policy needs less energy than the one that knows the work in advance, and none ends tasks
    /// earlier than the fastest level.
    #[test]
    fn clairvoyant_needs_the_least_and_fastest_ends_first(
        cycles in prop::collection::vec(1e6..140e6, 12..60),
    ) {
        let levels = five_levels();
        let tasks = tasks(&cycles);
        let least = replay(&levels, &tasks, &mut Clairvoyant::new(&levels));
        let fastest = replay(&levels, &tasks, &mut Fastest(&levels));
        prop_assert_eq!(met(&least, &tasks), tasks.len());
        let mut policies: Vec<Box<dyn SpeedPolicy + '_>> = vec![
            Box::new(learner(&levels, ScheduleRule::Lambda, 0.95)),
            Box::new(learner(&levels, ScheduleRule::Flat, 0.95)),
            Box::new(learner(&levels, ScheduleRule::FourSteps(1e-3), 0.95)),
            Box::new(GovernorPolicy::new(&levels, Governor::Ondemand)),
            Box::new(GovernorPolicy::new(&levels, Governor::Conservative)),
            Box::new(GovernorPolicy::new(&levels, Governor::Schedutil)),
        ];
        for policy in &mut policies {
            let all = replay(&levels, &tasks, policy.as_mut());
            // A policy that misses a deadline may need less.
            if met(&all, &tasks) == tasks.len() {
                prop_assert!(all.energy() >= least.energy() * (1.0 - 1e-9));
            }
            for (time, first) in all.times.iter().zip(&fastest.times) {
                prop_assert!(*time >= first * (1.0 - 1e-9));
            }
        }
    }
}

/// The work varies: one task in ten needs four times as much.
fn varied() -> Vec<TraceTask> {
    let cycles: Vec<_> =
        (0..400).map(|i| if i % 10 == 7 { 120e6 } else { 25e6 + f64::from(i % 7) * 1e6 }).collect();
    tasks(&cycles)
}

#[test]
fn pace_meets_its_target_with_less_energy_than_flat() {
    let levels = five_levels();
    let tasks = varied();
    let of = |rule| {
        let all = replay(&levels, &tasks, &mut learner(&levels, rule, 0.95));
        (all.energy(), met(&all, &tasks))
    };
    let ((pace, met), (flat, _), (steps, steps_met)) =
        (of(ScheduleRule::Lambda), of(ScheduleRule::Flat), of(ScheduleRule::FourSteps(1e-3)));
    assert!(met >= 380 && steps_met >= 380, "{met} and {steps_met} of 400 met");
    assert!(pace < 0.9 * flat, "{pace} J, and {flat} J at one speed");
    assert!(pace <= steps, "{pace} J, and {steps} J by four steps");
}

/// A load of 100 % brings every governor to the fastest level, and idle time back to the slowest.
#[test]
fn governors_follow_the_load() {
    let levels = five_levels();
    for governor in [Governor::Ondemand, Governor::Conservative, Governor::Schedutil] {
        let mut policy = GovernorPolicy::new(&levels, governor);
        let long = [TraceTask { kind: 0, begin: 0.0, cycles: 3e9, deadline: 2.0 }];
        replay(&levels, &long, &mut policy);
        assert_eq!(policy.level(0.0).0.hz, 3e9, "{governor:?} under load");
        let later = [TraceTask { kind: 0, begin: 60.0, cycles: 1.0, deadline: 1.0 }];
        replay(&levels, &later, &mut policy);
        let idle = policy.level(0.0).0.hz;
        // With util_est, schedutil keeps the utilization of the last task.
        assert!(idle == 8e8 || governor == Governor::Schedutil, "{governor:?}: {idle}");
    }
}

#[test]
fn tasks_that_wait_run_at_the_fastest_level() {
    let levels = five_levels();
    let mut all = tasks(&[25e6; 20]);
    all.push(TraceTask { kind: 0, begin: 1.901, cycles: 25e6, deadline: 0.05 });
    let policy = &mut learner(&levels, ScheduleRule::Lambda, 0.95);
    let Replay { times, overlapped, .. } = replay(&levels, &all, policy);
    assert_eq!(overlapped, [[false; 19].as_slice(), &[true; 2]].concat());
    // 25 million cycles take 31.25 ms at 800 MHz and 8.33 ms at 3 GHz.
    assert!((times[18] - 0.03125).abs() < 1e-9, "{}", times[18]);
    // 1 ms at 800 MHz, the rest at 3 GHz; then the second task.
    assert!((times[19] - (0.001 + 24.2e6 / 3e9)).abs() < 1e-9, "{}", times[19]);
    assert!((times[20] - (times[19] - 0.001 + 25e6 / 3e9)).abs() < 1e-9, "{}", times[20]);
}

/// Each type has its own samples and target: the tasks of one do not change the schedules of the
/// other.
#[test]
fn types_are_learned_separately() {
    let levels = five_levels();
    let of_kind = |kind: usize, index: u32, cycles: f64| TraceTask {
        kind,
        begin: f64::from(index) * 0.1 + if kind == 0 { 0.0 } else { 0.04 },
        cycles,
        deadline: 0.05,
    };
    let light = |index| of_kind(0, index, 30e6);
    let heavy = |index| of_kind(1, index, 130e6);
    let both: Vec<_> = (0..50).flat_map(|index| [light(index), heavy(index)]).collect();
    let alone: Vec<_> = (0..50).map(light).collect();
    let known = || {
        let estimator =
            Estimator { selection: SampleSelection::All, model: DistributionModel::Samples };
        TypeKnowledge { target: 0.95, estimator, samples: Vec::new() }
    };
    let run = |tasks: &[TraceTask]| {
        let mut policy = Learner::new(&levels, ScheduleRule::Lambda, vec![known(), known()]);
        replay(&levels, tasks, &mut policy)
    };
    let (together, single) = (run(&both), run(&alone));
    let of_light: Vec<_> = together.energies.iter().step_by(2).copied().collect();
    assert_eq!(of_light, single.energies);
}

/// In a loop of frames, each begins at the deadline of the one before. A frame that ends at its
/// deadline does not overlap the next one, and needs as much energy as one that nothing follows.
#[test]
fn frame_that_ends_at_its_deadline_has_ended_when_the_next_one_begins() {
    let levels = five_levels();
    let period = 0.0286;
    // The begin times of the last trace have the largest rounding errors (a week).
    for first in [0.0, 1000.0, 604_000.0] {
        let frames = |distance: f64| -> Vec<_> {
            let frame = |index: u32| TraceTask {
                kind: 0,
                begin: first + f64::from(index) * distance,
                cycles: 25e6 + f64::from(index % 7) * 8e6,
                deadline: period,
            };
            (0..400).map(frame).collect()
        };
        for is_clairvoyant in [true, false] {
            let of = |distance| {
                let all = frames(distance);
                let result = match is_clairvoyant {
                    true => replay(&levels, &all, &mut Clairvoyant::new(&levels)),
                    false => {
                        replay(&levels, &all, &mut learner(&levels, ScheduleRule::Lambda, 0.95))
                    }
                };
                assert_eq!(result.overlapped.iter().filter(|is_so| **is_so).count(), 0);
                (met(&result, &all), result.energy())
            };
            let ((close_met, close), (far_met, far)) = (of(period), of(2.0 * period));
            assert_eq!((close_met, far_met), (400, 400), "begins at {first} s");
            assert!((close / far - 1.0).abs() < 1e-6, "{close} J, and {far} J at a distance");
        }
    }
}
