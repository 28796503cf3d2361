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
            Governor::Schedutil => {
                let utilization = self.utilization.max(self.estimate);
                self.current = self.slowest_from(SCHEDUTIL_HEADROOM * utilization * max);
            }
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

    fn next_tick(&self) -> f64 {
        self.next_tick
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
        let interval = if self.governor == Governor::Schedutil { RATE_LIMIT } else { SAMPLING };
        self.sample(self.busy / interval);
        self.busy = 0.0;
        self.next_tick = now + interval;
    }
}
