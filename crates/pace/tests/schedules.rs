//! Tests properties of schedules.

use pace::{Goal, Level, Levels, Schedule, WorkCurve, flat, four_steps, lambda_rule, least_energy};
use proptest::prelude::*;

/// Generates levels and samples of any form, with the speeds of laptops and phones.
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

/// A goal whose deadline is between the times that the fastest level (`part` is 0) and the slowest
/// level (1) need for its cycles.
fn goal(levels: &Levels, curve: &WorkCurve, share: f64, part: f64) -> Goal {
    let cycles = curve.quantile(share);
    let all = levels.worthwhile();
    let (shortest, longest) = (cycles / all[all.len() - 1].hz, cycles / all[0].hz);
    Goal::new(shortest + part * (longest - shortest), cycles).expect("sensible")
}

/// Generates the same fractions from 0 to 1 in every run, with a linear congruential generator
/// (constants of Knuth's MMIX).
struct Fractions(u64);

impl Fractions {
    fn next(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Levels whose power is that of a power law with an exponent from 2 to 3.5, and a constant
    /// part.
    fn levels(&mut self, count: usize, constant: f64) -> Levels {
        let (mut hz, exponent) = (0.0, 2.0 + 1.5 * self.next());
        let levels = (0..count).map(|_| {
            hz += 2e8 + 6e8 * self.next();
            Level { hz, watts: constant + (hz / 1e9).powf(exponent) }
        });
        Levels::new(levels.collect(), 0.0).expect("sensible levels")
    }

    /// The curve of six amounts of work.
    fn curve(&mut self) -> WorkCurve {
        let samples = std::iter::repeat_with(|| (1e6 + 1e8 * self.next().powi(3), 1.0)).take(6);
        WorkCurve::of_samples(samples.collect::<Vec<_>>()).expect("samples")
    }
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
        let time = schedule.time(&levels, goal.cycles());
        prop_assert!((time / goal.deadline() - 1.0).abs() < 1e-9, "{time} for {goal:?}");
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
            prop_assert!(schedule.time(&levels, goal.cycles()) <= goal.deadline() * (1.0 + 1e-9));
        }
    }

    #[test]
    fn no_schedule_of_whole_steps_needs_less_energy(
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
        let done = done * goal.cycles();
        let planned = goal.deadline() - schedule.time(&levels, done);
        let left = left * planned;
        let rest = schedule.after_wait(&levels, goal, done, left);
        prop_assert!(is_ordered(&rest), "{rest:?}");
        let time = rest.time(&levels, goal.cycles()) - rest.time(&levels, done);
        let all = levels.worthwhile();
        let shortest = (goal.cycles() - done) / all[all.len() - 1].hz;
        prop_assert!(time <= left.max(shortest) * (1.0 + 1e-9), "{time}, {left} left");
    }
}

#[test]
fn goals_that_make_no_sense_are_refused() {
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(Goal::new(bad, 1e6), None, "{bad}");
    }
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(Goal::new(0.05, bad), None, "{bad}");
    }
    assert!(Goal::new(0.05, 0.0).is_some());
}

#[test]
fn impossible_and_easy_goals() {
    let level = |mhz: f64, watts| Level { hz: mhz * 1e6, watts };
    let levels =
        Levels::new(vec![level(300.0, 2.0), level(500.0, 3.6), level(700.0, 6.0)], 0.0).unwrap();
    let curve = WorkCurve::of_samples([(7e6, 1.0), (35e6, 1.0)]).unwrap();
    let levels_of = |deadline| -> Vec<_> {
        let goal = Goal::new(deadline, 35e6).expect("sensible");
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

/// How much more energy schedules need than others, in the order of the differences.
struct Excess(Vec<f64>);

impl Excess {
    fn new(mut differences: Vec<f64>) -> Self {
        differences.sort_by(f64::total_cmp);
        Self(differences)
    }

    /// A quantile, in percent.
    fn at(&self, share: f64) -> f64 {
        100.0 * self.0[((self.0.len() - 1) as f64 * share) as usize]
    }

    fn print(&self, than: &str) {
        let [median, p95, p99, max] = [0.5, 0.95, 0.99, 1.0].map(|share| self.at(share));
        let within = self.0.iter().filter(|one| **one <= 0.03).count() as f64 / self.0.len() as f64;
        println!(
            "more than {than}: median {median:.2} %, 95 % {p95:.2} %, 99 % {p99:.2} %, at most \
            {max:.2} %; within 3 %: {:.2} %",
            100.0 * within
        );
    }
}

/// A lower bound of the expected energy until the goal, by Lagrangian duality: for each λ, each
/// piece of work runs at the level for which its energy plus λ times its time is the least. The
/// best λ gives the optimum, because the problem is a linear one.
fn dual_bound(levels: &Levels, curve: &WorkCurve, goal: Goal) -> f64 {
    let ends = curve.amounts().iter().copied().filter(|amount| *amount < goal.cycles());
    let mut begin = 0.0;
    let pieces: Vec<_> = ends
        .chain([goal.cycles()])
        .map(|end| {
            let piece = (end - begin, curve.survival(begin));
            begin = end;
            piece
        })
        .collect();
    let at = |lambda: f64| -> f64 {
        let least = |(length, survival): &(f64, f64)| {
            let cost = |level: &Level| (survival * level.watts + lambda) / level.hz;
            length * levels.worthwhile().iter().map(cost).fold(f64::INFINITY, f64::min)
        };
        pieces.iter().map(least).sum::<f64>() - lambda * goal.deadline()
    };
    // The bound is concave in λ. λ is at most the additional energy of a faster level, divided by
    // the time that it saves, which is less than 10 kW for these levels.
    let (mut low, mut high) = (0.0, 1e4);
    for _ in 0..200 {
        let (a, b) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if at(a) < at(b) { low = a } else { high = b }
    }
    at(f64::midpoint(low, high))
}

#[test]
fn lambda_rule_reaches_the_dual_bound() {
    let mut random = Fractions(2);
    for _ in 0..1000 {
        let levels = random.levels(5, 0.0);
        let curve = random.curve();
        let goal = goal(&levels, &curve, 0.95, random.next());
        let energy = lambda_rule(&levels, &curve, goal).expected_energy(&levels, &curve);
        // Work beyond the goal runs at the fastest level.
        let fastest = levels.worthwhile()[levels.worthwhile().len() - 1];
        let beyond: f64 = curve
            .amounts()
            .windows(2)
            .map(|two| (two[1] - two[0].max(goal.cycles())).max(0.0) * curve.survival(two[0]))
            .sum();
        let bound = dual_bound(&levels, &curve, goal) + beyond * fastest.watts / fastest.hz;
        assert!((energy / bound - 1.0).abs() < 1e-6, "{energy} J, and at least {bound}");
    }
}

/// Compares the λ rule as it is executed, with steps at multiples of 0.1 ms and a deadline of
/// 50 ms, with the optimum, which is the λ rule without rounding, and with the least energy of
/// whole steps.
#[test]
fn executed_lambda_rule_is_near_the_optimum() {
    let mut random = Fractions(1);
    let (mut more_than_optimum, mut more_than_whole_steps) = (Vec::new(), Vec::new());
    while more_than_optimum.len() < 10_000 {
        let count = 3 + (random.next() * 4.0) as usize;
        let constant = 0.5 * random.next();
        let levels = random.levels(count, constant);
        let curve = random.curve();
        let cycles = curve.quantile(0.95);
        let fastest = levels.worthwhile()[levels.worthwhile().len() - 1].hz;
        let goal = Goal::new(0.05, cycles.min(0.95 * 0.05 * fastest)).expect("sensible");
        let least = least_energy(&levels, &curve, goal).expect("possible");
        let optimum = lambda_rule(&levels, &curve, goal);
        let executed = optimum.rounded(&levels, 1e-4).expected_energy(&levels, &curve);
        more_than_optimum.push(executed / optimum.expected_energy(&levels, &curve) - 1.0);
        more_than_whole_steps.push(executed / least - 1.0);
    }
    let optimum = Excess::new(more_than_optimum);
    let whole_steps = Excess::new(more_than_whole_steps);
    optimum.print("the optimum");
    whole_steps.print("with whole steps");
    assert!(optimum.at(0.0) >= -1e-7, "{} % below the optimum", -optimum.at(0.0));
    assert!(optimum.at(0.95) <= 3.0, "{} % above the optimum", optimum.at(0.95));
    assert!(whole_steps.at(0.95) <= 3.0, "{} % above", whole_steps.at(0.95));
}
