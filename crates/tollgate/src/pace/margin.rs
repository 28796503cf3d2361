//! How much earlier than the deadline a schedule ends.

use std::time::Duration;

use ::pace::Levels;

/// How much earlier than the deadline a schedule ends, because speeds change late.
#[derive(Debug, Clone, Copy)]
pub struct Margin {
    /// The times from the moment at which a task needs another speed until it has it: the median
    /// and the 99th percentile.
    pub latency: (Duration, Duration),
}

impl Margin {
    /// The maximum margin, as a share of the deadline: a greater one leaves too little of it.
    const MAX_SHARE: f64 = 0.5;
    /// The minimum margin, as a share of the deadline. It covers delays that are not measured, such
    /// as the wake-up of the task itself.
    const MIN_SHARE: f64 = 0.01;

    /// The factor by which a measured latency must differ from the one of the margin, so that
    /// schedules are not made anew for each measurement.
    const STEP: f64 = 1.5;

    /// Uses another latency, if its 99th percentile differs much from the one before.
    pub fn follow(&mut self, latency: (Duration, Duration)) {
        let quotient = latency.1.as_secs_f64() / self.latency.1.as_secs_f64();
        if !(1.0 / Self::STEP..Self::STEP).contains(&quotient) {
            self.latency = latency;
        }
    }

    /// The time for one change to each level, of which one is as late as the 99th percentile.
    pub fn seconds(self, deadline: f64, levels: &Levels) -> f64 {
        let (median, p99) = (self.latency.0.as_secs_f64(), self.latency.1.as_secs_f64());
        let others = levels.worthwhile().len() - 1;
        (p99 + median * others as f64).clamp(Self::MIN_SHARE * deadline, Self::MAX_SHARE * deadline)
    }
}

#[cfg(test)]
mod tests {
    use ::pace::Level;

    use super::*;

    fn of(median: u64, p99: u64) -> Margin {
        Margin { latency: (Duration::from_micros(median), Duration::from_micros(p99)) }
    }

    #[test]
    fn margin_is_bounded() {
        let level = |ghz: f64| Level { hz: ghz * 1e9, watts: ghz.powi(3) };
        let levels = Levels::new([0.5, 0.6, 0.7, 0.8].map(level).into(), 0.0).unwrap();
        assert_eq!(of(0, 0).seconds(0.1, &levels), 0.001);
        assert!((of(200, 1400).seconds(0.1, &levels) - 0.002).abs() < 1e-12);
        assert_eq!(of(0, 1_000_000).seconds(0.1, &levels), 0.05);
    }

    #[test]
    fn margin_follows_the_latency_in_steps() {
        let mut margin = of(100, 300);
        let mut after = |median, p99| {
            margin.follow(of(median, p99).latency);
            margin.latency
        };
        assert_eq!(after(120, 440), of(100, 300).latency);
        assert_eq!(after(120, 460), of(120, 460).latency);
        assert_eq!(after(90, 310), of(120, 460).latency);
        assert_eq!(after(90, 300), of(90, 300).latency);
    }
}
