//! The formulas of Linux's governors, for comparison.
//!
//! Sources, Linux v6.18: drivers/cpufreq/cpufreq_ondemand.c, cpufreq_conservative.c,
//! cpufreq_governor.c, kernel/sched/cpufreq_schedutil.c, kernel/sched/pelt.c. The load that
//! ondemand assumes after long idle times and the boosts for I/O are not modelled.

use crate::levels::{Level, Levels};
use crate::replay::{SpeedPolicy, TraceTask};

/// A governor of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Governor {
    /// Uses the fastest level above 95 % load, and a speed in proportion to the load below.
    Ondemand,
    /// Moves in steps of 5 % of the fastest speed: upwards above 80 % load, downwards below 20 %.
    Conservative,
    /// Uses a speed of 1.25 times the utilization, which decays with a half-life of 32 ms.
    Schedutil,
}

/// The sampling interval of ondemand and conservative: two ticks at 250 Hz
/// (CPUFREQ_DBS_MIN_SAMPLING_INTERVAL).
const SAMPLING: f64 = 0.008;
/// The minimum time between two changes of schedutil (`cpufreq_policy_transition_delay_us`, for a
/// driver that does not state its latency).
const RATE_LIMIT: f64 = 0.001;
/// The half-life of the utilization (PELT).
const HALF_LIFE: f64 = 0.032;
const ONDEMAND_UP: f64 = 0.95;
const CONSERVATIVE_UP: f64 = 0.80;
const CONSERVATIVE_DOWN: f64 = 0.20;
const CONSERVATIVE_STEP: f64 = 0.05;
const SCHEDUTIL_HEADROOM: f64 = 1.25;

/// The policy of a governor on one processor.
pub struct GovernorPolicy<'levels> {
    levels: &'levels Levels,
    governor: Governor,
    current: usize,
    /// The speed that conservative wants, between the levels.
    requested: f64,
    now: f64,
    next_tick: f64,
    busy: f64,
    /// PELT's utilization, and its estimate at the ends of tasks (util_est).
    utilization: f64,
    estimate: f64,
}

impl<'levels> GovernorPolicy<'levels> {
    /// Creates the governor at the slowest level, as after a long idle time.
    pub fn new(levels: &'levels Levels, governor: Governor) -> Self {
        Self {
            levels,
            governor,
            current: 0,
            requested: levels.all()[0].hz,
            now: 0.0,
            next_tick: 0.0,
            busy: 0.0,
            utilization: 0.0,
            estimate: 0.0,
        }
    }

    fn fastest(&self) -> f64 {
        self.levels.all()[self.levels.all().len() - 1].hz
    }

    fn slowest_from(&self, hz: f64) -> usize {
        let all = self.levels.all();
        all.iter().position(|level| level.hz >= hz * (1.0 - 1e-12)).unwrap_or(all.len() - 1)
    }

    fn fastest_up_to(&self, hz: f64) -> usize {
        let below = |level: &Level| level.hz <= hz * (1.0 + 1e-12);
        self.levels.all().iter().rposition(below).unwrap_or(0)
    }

    fn closest(&self, hz: f64) -> usize {
        let (below, above) = (self.fastest_up_to(hz), self.slowest_from(hz));
        let speed = |level: usize| self.levels.all()[level].hz;
        if speed(above) - hz < hz - speed(below) { above } else { below }
    }

    /// The level that schedutil chooses.
    fn by_utilization(&self) -> usize {
        let utilization = self.utilization.max(self.estimate);
        self.slowest_from(SCHEDUTIL_HEADROOM * utilization * self.fastest())
    }

    fn interval(&self) -> f64 {
        if self.governor == Governor::Schedutil { RATE_LIMIT } else { SAMPLING }
    }

    /// Whether no tick changes the level, as long as the processor stays busy, or idle.
    fn is_steady(&self, is_busy: bool) -> bool {
        let is_at = |level: usize| {
            self.current == level
                && (self.governor != Governor::Conservative
                    || self.requested == self.levels.all()[level].hz)
        };
        if is_busy {
            let interval_began = self.next_tick - self.interval();
            let is_busy_since_then = self.busy >= (self.now - interval_began) * (1.0 - 1e-9);
            // The estimate falls between two tasks without a pause.
            let keeps_level =
                self.governor != Governor::Schedutil || self.current == self.by_utilization();
            return is_busy_since_then && keeps_level && is_at(self.levels.all().len() - 1);
        }
        let is_lowest = match self.governor {
            Governor::Ondemand | Governor::Conservative => is_at(0),
            // The estimate does not change while the processor is idle.
            Governor::Schedutil => {
                self.current == 0
                    || self.utilization <= self.estimate && self.current == self.by_utilization()
            }
        };
        self.busy == 0.0 && is_lowest
    }

    fn sample(&mut self, load: f64) {
        let (min, max) = (self.levels.all()[0].hz, self.fastest());
        match self.governor {
            Governor::Ondemand if load > ONDEMAND_UP => self.current = self.slowest_from(max),
            Governor::Ondemand => self.current = self.closest(min + load * (max - min)),
            Governor::Conservative if load > CONSERVATIVE_UP => {
                self.requested = (self.requested + CONSERVATIVE_STEP * max).min(max);
                self.current = self.fastest_up_to(self.requested);
            }
            Governor::Conservative if load < CONSERVATIVE_DOWN => {
                self.requested = (self.requested - CONSERVATIVE_STEP * max).max(min);
                self.current = self.slowest_from(self.requested);
            }
            Governor::Conservative => {}
            Governor::Schedutil => self.current = self.by_utilization(),
        }
    }
}

impl SpeedPolicy for GovernorPolicy<'_> {
    fn begin(&mut self, _task: &TraceTask, _waiting: usize) {}

    fn end(&mut self, _task: &TraceTask, waiting: usize) {
        // util_est rises at once, and falls by a quarter of the difference.
        if waiting == 0 {
            let less = self.utilization - self.estimate;
            self.estimate += if less > 0.0 { less } else { less / 4.0 };
        }
    }

    fn level(&self, _done: f64) -> (Level, f64) {
        (self.levels.all()[self.current], f64::INFINITY)
    }

    fn next_tick(&self, is_busy: bool) -> f64 {
        if self.is_steady(is_busy) { f64::INFINITY } else { self.next_tick }
    }

    fn pass(&mut self, now: f64, is_busy: bool) {
        let seconds = now - self.now;
        self.now = now;
        self.busy += if is_busy { seconds } else { 0.0 };
        let decay = 0.5_f64.powf(seconds / HALF_LIFE);
        let speed = self.levels.all()[self.current].hz / self.fastest();
        self.utilization =
            self.utilization * decay + if is_busy { speed * (1.0 - decay) } else { 0.0 };
        if now < self.next_tick {
            return;
        }
        let interval = self.interval();
        // The governor was steady, so the ticks until now have changed nothing.
        if now > self.next_tick {
            let latest = self.next_tick + ((now - self.next_tick) / interval).floor() * interval;
            self.busy = if is_busy { now - latest } else { 0.0 };
            self.next_tick = latest + interval;
            return;
        }
        self.sample(self.busy / interval);
        self.busy = 0.0;
        self.next_tick = now + interval;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::replay::replay;

    /// The same governor, whose ticks are never skipped.
    struct EachTick<'levels>(GovernorPolicy<'levels>);

    impl SpeedPolicy for EachTick<'_> {
        fn begin(&mut self, task: &TraceTask, waiting: usize) {
            self.0.begin(task, waiting);
        }

        fn end(&mut self, task: &TraceTask, waiting: usize) {
            self.0.end(task, waiting);
        }

        fn level(&self, done: f64) -> (Level, f64) {
            self.0.level(done)
        }

        fn next_tick(&self, _is_busy: bool) -> f64 {
            self.0.next_tick
        }

        fn pass(&mut self, now: f64, is_busy: bool) {
            self.0.pass(now, is_busy);
        }
    }

    const GOVERNORS: [Governor; 3] =
        [Governor::Ondemand, Governor::Conservative, Governor::Schedutil];

    fn levels() -> Levels {
        let level = |(mhz, watts): (f64, f64)| Level { hz: mhz * 1e6, watts };
        Levels::new([(300.0, 2.0), (500.0, 3.6), (700.0, 6.0)].map(level).into(), 0.0).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn steady_times_change_no_result(
            tasks in prop::collection::vec((-9.0..0.5_f64, 4.0..9.5_f64), 1..30),
            has_pauses: bool,
        ) {
            let levels = levels();
            let mut begin = 0.0;
            let task = |(pause, cycles): (f64, f64)| {
                begin += if has_pauses { pause.exp() } else { 0.0 };
                TraceTask { kind: 0, begin, cycles: 10_f64.powf(cycles), deadline: 0.05 }
            };
            let tasks: Vec<_> = tasks.into_iter().map(task).collect();
            for governor in GOVERNORS {
                let of = |policy: &mut dyn SpeedPolicy| {
                    let result = replay(&levels, &tasks, policy);
                    [result.energies, result.times].concat()
                };
                let found = of(&mut GovernorPolicy::new(&levels, governor));
                let expected = of(&mut EachTick(GovernorPolicy::new(&levels, governor)));
                for (found, expected) in found.into_iter().zip(expected) {
                    prop_assert!(
                        (found / expected - 1.0).abs() < 1e-6,
                        "{:?}: {} is not {}", governor, found, expected
                    );
                }
            }
        }
    }

    /// One long task on an idle processor, calculated by hand. Schedutil leaves 300 MHz when its
    /// utilization, 3/7 · (1 − 2^(−t/32 ms)), exceeds 300/700/1.25, and 500 MHz correspondingly.
    #[test]
    fn speeds_rise_by_the_formulas() {
        let levels = levels();
        let task = TraceTask { kind: 0, begin: 0.0, cycles: 100e6, deadline: 0.05 };
        for (governor, first, second) in [
            // From the slowest to the fastest level at the first sample.
            (Governor::Ondemand, 0.008, 0.008),
            // By 35 MHz every 8 ms: 510 MHz after six samples, 700 after twelve.
            (Governor::Conservative, 0.048, 0.096),
            (Governor::Schedutil, 0.075, 0.119),
        ] {
            let done = first * 300e6 + (second - first) * 500e6;
            let expected = second + (100e6 - done) / 700e6;
            let result = replay(&levels, &[task], &mut GovernorPolicy::new(&levels, governor));
            assert!((result.times[0] - expected).abs() < 1e-6, "{governor:?}: {result:?}");
        }
    }

    /// Each task takes seven hours: 26 million ticks of schedutil.
    #[test]
    fn long_tasks_and_pauses_take_few_ticks() {
        let levels = levels();
        let task = |n: u32| TraceTask {
            kind: 0,
            begin: f64::from(n) * 50_000.0,
            cycles: 1.8e13,
            deadline: 0.05,
        };
        let tasks: Vec<_> = (0..400).map(task).collect();
        for governor in GOVERNORS {
            let result = replay(&levels, &tasks, &mut GovernorPolicy::new(&levels, governor));
            let seconds = 1.8e13 / 700e6;
            assert!(result.times.iter().all(|time| (time / seconds - 1.0).abs() < 1e-4));
        }
    }
}
