//! When to look at samples that keep coming, and when to stop.
//!
//! Looking at every sample and stopping as soon as something shows finds differences that are not there. So samples
//! are looked at a few times only, each look at twice as many, and each has its part of the error.

use crate::interval::median_interval;

/// Quads of the first look: the fewest whose sign-test interval is not their whole range, doubled.
pub const FIRST_LOOK: usize = 12;

/// Looks at the most: at 12, 24, 48 … 1,536 quads.
pub const LOOKS: usize = 8;

/// Samples beyond which nothing is looked at any more.
pub const MOST: usize = FIRST_LOOK << (LOOKS - 1);

/// RightSpeed's rule, as published: the 95 % interval of the mean within 0.01 % of it, or so many runs, or so long.
///
/// Source: Lorch and Smith, "Operating system modifications for task-based speed and voltage scheduling", MobiSys
/// 2003, its section on overhead.
pub mod rightspeed {
    use std::time::Duration;

    use crate::interval::t_mean_interval;

    pub const RUNS: usize = 10_000;
    pub const TIME: Duration = Duration::from_secs(2000);
    const PART_OF_MEAN: f64 = 1e-4;

    /// Whether the mean of these runs is known well enough.
    pub fn is_precise(runs: &[f64]) -> bool {
        t_mean_interval(runs, 0.95)
            .is_some_and(|interval| interval.high - interval.estimate <= PART_OF_MEAN * interval.estimate)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn means_must_be_known_to_one_in_ten_thousand() {
            assert!(is_precise(&[100.0; 5]));
            let spread = |half: f64| {
                (0..100).map(|i| 100.0 + if i % 2 == 0 { half } else { -half }).collect::<Vec<_>>()
            };
            // 1.984 * 0.05 * 1.005 / sqrt(100) = 0.00997: just within 0.01.
            assert!(is_precise(&spread(0.05)));
            assert!(!is_precise(&spread(0.051)));
            assert!(!is_precise(&[100.0]));
        }
    }
}

/// Whether so many samples are to be looked at.
pub fn is_look(samples: usize) -> bool {
    (0..LOOKS).any(|look| samples == FIRST_LOOK << look)
}

/// The error that each look may make, so that all together make `error` at most (Bonferroni).
pub fn error_a_look(error: f64) -> f64 {
    error / LOOKS as f64
}

/// Whether the median's sign-test interval is at most so wide to each side of its middle. Only as sure an interval
/// as asked for counts.
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
        assert_eq!(MOST, 1536);
    }
}
