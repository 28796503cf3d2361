//! Sequential analysis: when to look at accumulating samples, and when to stop.
//!
//! Testing after every sample and stopping at the first significant result would find differences
//! that do not exist. So there are only a few looks, each at twice as many samples as the one
//! before, and each may use only its share of the permitted error.

use crate::interval::median_interval;

/// Quads at the first look: twice the smallest number for which the 95 % sign-test interval reaches
/// its confidence.
pub const FIRST_LOOK: usize = 12;

/// The maximum number of looks. They are at 12, 24, 48 … 1,536 quads.
pub const LOOKS: usize = 8;

/// The number of quads at the last look.
pub const MAX_QUADS: usize = FIRST_LOOK << (LOOKS - 1);

/// RightSpeed's stopping rule, as published: the 95 % interval of the mean is within 0.01 % of the
/// mean, or there are [`RUNS`](rightspeed::RUNS) runs, or [`TIME`](rightspeed::TIME) has passed.
///
/// Source: Lorch and Smith, "Operating system modifications for task-based speed and voltage
/// scheduling", MobiSys 2003, its section on overhead.
pub mod rightspeed {
    use std::time::Duration;

    use crate::interval::t_mean_interval;

    /// The maximum number of runs.
    pub const RUNS: usize = 10_000;
    /// The longest time.
    pub const TIME: Duration = Duration::from_secs(2000);
    const PART_OF_MEAN: f64 = 1e-4;

    /// Whether the interval of the mean of these runs is narrow enough.
    pub fn is_mean_precise(runs: &[f64]) -> bool {
        t_mean_interval(runs, 0.95).is_some_and(|interval| {
            interval.high - interval.estimate <= PART_OF_MEAN * interval.estimate
        })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn precision_bound_of_the_mean() {
            assert!(is_mean_precise(&[100.0; 5]));
            let spread = |half: f64| {
                (0..100).map(|i| 100.0 + if i % 2 == 0 { half } else { -half }).collect::<Vec<_>>()
            };
            // 1.984 * 0.05 * 1.005 / sqrt(100) = 0.00997: just within 0.01.
            assert!(is_mean_precise(&spread(0.05)));
            assert!(!is_mean_precise(&spread(0.051)));
            assert!(!is_mean_precise(&[100.0]));
        }
    }
}

/// Whether there is a look at this number of samples.
pub fn is_look(samples: usize) -> bool {
    (0..LOOKS).any(|look| samples == FIRST_LOOK << look)
}

/// The error of each look, such that all looks together have at most `error` (Bonferroni).
pub fn error_a_look(error: f64) -> f64 {
    error / LOOKS as f64
}

/// Whether the sign-test interval of the median has at least the given confidence and is at most
/// twice `half_width` wide.
pub fn is_precise(samples: &[f64], half_width: f64, confidence: f64) -> bool {
    median_interval(samples, confidence).is_some_and(|interval| {
        interval.confidence >= confidence && (interval.high - interval.low) / 2.0 <= half_width
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_samples_are_never_precise() {
        assert!(!is_precise(&[0.0; 5], 0.1, 0.95));
        assert!(is_precise(&[0.0; 6], 0.1, 0.95));
        assert!(!is_precise(&[0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0], 0.1, 0.95));
    }

    #[test]
    fn looks_double() {
        let looks: Vec<_> = (0..5000).filter(|n| is_look(*n)).collect();
        assert_eq!(looks, [12, 24, 48, 96, 192, 384, 768, 1536]);
        assert_eq!(MAX_QUADS, 1536);
    }
}
