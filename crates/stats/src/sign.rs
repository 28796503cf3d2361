//! The sign test, and its verdicts for several comparisons at once.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::interval::binomial_tails;

/// The result of a comparison with a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Below the limit.
    Within,
    /// Above the limit.
    Dearer,
    /// The samples show neither.
    Inconclusive,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Within => "within",
            Self::Dearer => "dearer",
            Self::Inconclusive => "inconclusive",
        })
    }
}

/// The two-sided probability that samples from a distribution with the median `median` lie at least
/// as far to one side of it as these do.
///
/// Samples that are equal to `median` count for the side that has fewer, so that ties never make a
/// difference more significant. The samples must be independent; their distribution does not
/// matter. The result is 1 without samples.
///
/// Source: Dixon and Mood, "The statistical sign test", JASA 41 (1946).
pub fn p_value(samples: &[f64], median: f64) -> f64 {
    let below = samples.iter().filter(|sample| **sample < median).count();
    let above = samples.iter().filter(|sample| **sample > median).count();
    let ties = samples.len() - below - above;
    let fewer = below.min(above) + ties;
    let n = samples.len();
    if 2 * fewer >= n {
        return 1.0;
    }
    let (tails, total) = binomial_tails(n);
    (2.0 * tails[fewer] / total).min(1.0)
}

/// Which hypotheses are rejected, such that the probability of rejecting any true one is at most
/// `error`.
///
/// Source: Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
/// Statistics 6 (1979).
pub fn holm(p_values: &[f64], error: f64) -> Vec<bool> {
    let mut order: Vec<_> = (0..p_values.len()).collect();
    order.sort_by(|a, b| p_values[*a].total_cmp(&p_values[*b]));
    let mut rejected = vec![false; p_values.len()];
    for (rank, index) in order.into_iter().enumerate() {
        if p_values[index] > error / (p_values.len() - rank) as f64 {
            break;
        }
        rejected[index] = true;
    }
    rejected
}

/// Verdicts on rows of samples against one limit. With probability 1 - `error`, none of them is
/// wrong.
pub fn verdicts(rows: &[&[f64]], limit: f64, error: f64) -> Vec<Verdict> {
    let p_values: Vec<_> = rows.iter().map(|samples| p_value(samples, limit)).collect();
    let rejected = holm(&p_values, error);
    let verdict = |(samples, rejected): (&&[f64], bool)| {
        let below = samples.iter().filter(|sample| **sample < limit).count();
        match rejected {
            false => Verdict::Inconclusive,
            true if 2 * below > samples.len() => Verdict::Within,
            true => Verdict::Dearer,
        }
    };
    rows.iter().zip(rejected).map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(actual: f64, expected: f64) {
        assert!((actual - expected).abs() < 1e-12, "{actual} instead of {expected}");
    }

    #[test]
    fn p_values_are_binomial() {
        // 2 * (1 + 10) / 1024.
        assert_close(
            p_value(&[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0], 0.0),
            22.0 / 1024.0,
        );
        assert_close(p_value(&[1.0; 6], 0.0), 2.0 / 64.0);
        assert_eq!(p_value(&[1.0, -1.0], 0.0), 1.0);
        assert_eq!(p_value(&[], 0.0), 1.0);
    }

    #[test]
    fn ties_count_against_a_difference() {
        let without = p_value(&[1.0; 10], 0.0);
        let mut tied = vec![1.0; 10];
        tied.extend([0.0; 2]);
        assert!(p_value(&tied, 0.0) > without);
        assert_eq!(p_value(&[0.0; 20], 0.0), 1.0);
    }

    #[test]
    fn holm_stops_at_the_first_that_is_not_rejected() {
        assert_eq!(holm(&[0.01, 0.04, 0.03], 0.05), [true, false, false]);
        assert_eq!(holm(&[0.01, 0.04, 0.02], 0.05), [true, true, true]);
        assert_eq!(holm(&[0.02, 0.001], 0.05), [true, true]);
        assert!(holm(&[], 0.05).is_empty());
    }

    #[test]
    fn verdicts_need_enough_samples() {
        let (low, high) = ([0.001; 12], [0.05; 12]);
        let rows: [&[f64]; 3] = [&low, &high, &low[..4]];
        assert_eq!(
            verdicts(&rows, 0.02, 0.05),
            [Verdict::Within, Verdict::Dearer, Verdict::Inconclusive]
        );
    }
}
