//! Confidence intervals.

use statrs::distribution::{Beta, ContinuousCDF as _, StudentsT};

/// A two-sided confidence interval, in the unit of the samples.
///
/// Limits are signed and never clamped, not even for quantities that cannot be negative: clamping
/// would bias the differences between arms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The point estimate: the median or the mean of the samples.
    pub estimate: f64,
    /// Lower limit.
    pub low: f64,
    /// Upper limit.
    pub high: f64,
    /// The probability, from 0 to 1, that an interval constructed in this way contains the true
    /// value.
    pub confidence: f64,
}

/// The median of the samples. For an even number this is the upper of the two in the middle, so the
/// result is always a sample.
///
/// # Panics
/// If there are no samples.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The sample median with a distribution-free interval: the sign test, inverted.
///
/// The limits are the k-th smallest and the k-th largest sample, with the largest k whose coverage,
/// 1 - 2 P(X < k) for X binomial (n, 1/2), is at least `confidence`. Coverage comes in steps, so
/// the `confidence` of the interval is usually somewhat above the requested one. If even the full
/// range does not reach the requested confidence (at 95 %: fewer than six samples), the full range
/// is returned with its lower confidence. The samples must be independent; their distribution does
/// not matter. Ties only raise the true coverage.
///
/// `None` without samples, if one is not a number, or if `confidence` is not between 0 and 1.
///
/// Source: David and Nagaraja, "Order Statistics", 3rd edition, section 7.1.
pub fn median_interval(samples: &[f64], confidence: f64) -> Option<Interval> {
    if samples.is_empty()
        || samples.iter().any(|sample| sample.is_nan())
        || !is_open_fraction(confidence)
    {
        return None;
    }
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let (cut, coverage) = symmetric_cut(n, confidence);
    Some(Interval {
        estimate: f64::midpoint(sorted[(n - 1) / 2], sorted[n / 2]),
        low: sorted[cut],
        high: sorted[n - 1 - cut],
        confidence: coverage,
    })
}

/// The quotient of two medians of paired samples. The interval has all q for which
/// [`median_interval`] of the differences `numerators - q * denominators` contains 0.
///
/// This corresponds to Fieller's theorem for means. The median of the quotients of the pairs would
/// be biased if the noise of the denominators is as large as the denominators.
///
/// `None` if [`median_interval`] gives `None`, if the two slices differ in length, or if the
/// interval of the denominators contains 0.
///
/// Source: the sign test, inverted as in [`median_interval`]; Fieller, "Some problems in interval
/// estimation", JRSS B 16 (1954).
pub fn quotient_interval(
    numerators: &[f64],
    denominators: &[f64],
    confidence: f64,
) -> Option<Interval> {
    let below = median_interval(denominators, confidence)?;
    if numerators.len() != denominators.len() || (below.low <= 0.0 && below.high >= 0.0) {
        return None;
    }
    let pairs = || numerators.iter().zip(denominators);
    let at = |quotient: f64| {
        let differences: Vec<_> = pairs().map(|(above, below)| above - quotient * below).collect();
        median_interval(&differences, confidence)
    };
    // The signs of the differences change only at these quotients.
    let mut all = Vec::new();
    for quotient in
        pairs().map(|(above, below)| above / below).filter(|quotient| quotient.is_finite())
    {
        all.push((quotient, at(quotient)?));
    }
    let holding = || {
        all.iter().filter(|(_, it)| it.low <= 0.0 && it.high >= 0.0).map(|(quotient, _)| *quotient)
    };
    let (estimate, _) =
        all.iter().min_by(|(_, a), (_, b)| a.estimate.abs().total_cmp(&b.estimate.abs()))?;
    Some(Interval {
        estimate: *estimate,
        low: holding().fold(*estimate, f64::min),
        high: holding().fold(*estimate, f64::max),
        confidence: below.confidence,
    })
}

/// The number of samples to leave out at each end, and the probability that the range of the others
/// covers the median.
fn symmetric_cut(n: usize, confidence: f64) -> (usize, f64) {
    let (tails, total) = binomial_tails(n);
    let coverage = |tail: f64| 1.0 - 2.0 * tail / total;
    // Coverage falls as the cut grows. A cut of (n - 1) / 2 leaves one or two samples, which is the
    // narrowest possible range.
    let reaching = tails[..=(n - 1) / 2].partition_point(|&tail| coverage(tail) >= confidence);
    let cut = reaching.saturating_sub(1);
    (cut, coverage(tails[cut]))
}

/// Returns P(X <= j) for X binomial (n, 1/2) and each j up to n/2, not normalized, and the total by
/// which each must be divided.
///
/// The weights are relative to the central one, because 2^-n underflows from n = 1075 on. With
/// relative weights only the far tails, which do not matter, can underflow, and sums of positive
/// terms lose no digits.
pub(crate) fn binomial_tails(n: usize) -> (Vec<f64>, f64) {
    let mut tails = vec![1.0; n / 2 + 1];
    for j in (1..tails.len()).rev() {
        tails[j - 1] = tails[j] * j as f64 / (n - j + 1) as f64;
    }
    let central = tails[n / 2];
    for j in 1..tails.len() {
        tails[j] += tails[j - 1];
    }
    // The upper half mirrors the lower one. An even n has one central weight, which must not be
    // counted twice.
    let twice_lower = 2.0 * tails[n / 2];
    let total = if n.is_multiple_of(2) { twice_lower - central } else { twice_lower };
    (tails, total)
}

/// The interval of Student's t for the mean of independent samples that are nearly normal.
///
/// With spikes or correlation it is far too narrow: in simulations, intervals of 95 % had a
/// coverage of 6–32 %. Use it only for published rules that are defined with it. `None` below two
/// samples, if one is not a number, or if `confidence` is not between 0 and 1.
///
/// Source: "Student", "The probable error of a mean", Biometrika 6 (1908).
pub fn t_mean_interval(samples: &[f64], confidence: f64) -> Option<Interval> {
    let n = samples.len();
    if n < 2 || samples.iter().any(|sample| sample.is_nan()) || !is_open_fraction(confidence) {
        return None;
    }
    let mean = samples.iter().sum::<f64>() / n as f64;
    let variance =
        samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
    let t =
        StudentsT::new(0.0, 1.0, (n - 1) as f64).ok()?.inverse_cdf(f64::midpoint(1.0, confidence));
    let half_width = t * (variance / n as f64).sqrt();
    Some(Interval { estimate: mean, low: mean - half_width, high: mean + half_width, confidence })
}

/// The interval mean ± z * sqrt(variance / n) around the mean of `n` independent samples with the
/// sample variance `variance` (the square of the samples' unit).
///
/// It rests on the central limit theorem and needs a few dozen samples, or many more if a few
/// values dominate the sum. With fewer samples it is too narrow.
///
/// `None` below two samples, if `confidence` is not between 0 and 1, or if `variance` is negative
/// or not a number.
pub fn normal_mean_interval(mean: f64, variance: f64, n: u64, confidence: f64) -> Option<Interval> {
    if n < 2 || !is_open_fraction(confidence) || variance.is_nan() || variance < 0.0 {
        return None;
    }
    let half_width = two_sided_normal_quantile(confidence) * (variance / n as f64).sqrt();
    Some(Interval { estimate: mean, low: mean - half_width, high: mean + half_width, confidence })
}

/// The share of successes among independent trials, with the exact interval of Clopper and Pearson.
///
/// `None` without trials, with more successes than trials, or if `confidence` is not between 0 and
/// 1.
///
/// Source: Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case
/// of the binomial", Biometrika 26 (1934).
pub fn share_interval(successes: u64, trials: u64, confidence: f64) -> Option<Interval> {
    if trials == 0 || successes > trials || !is_open_fraction(confidence) {
        return None;
    }
    let (k, n, tail) = (successes as f64, trials as f64, (1.0 - confidence) / 2.0);
    let low = match successes {
        0 => 0.0,
        _ => Beta::new(k, n - k + 1.0).ok()?.inverse_cdf(tail),
    };
    let high = match trials - successes {
        0 => 1.0,
        _ => Beta::new(k + 1.0, n - k).ok()?.inverse_cdf(1.0 - tail),
    };
    Some(Interval { estimate: k / n, low, high, confidence })
}

/// The z for which a standard normal variable lies from -z to z with this probability, with a
/// relative error of about 1e-7.
///
/// Source: Wichura, "Algorithm AS 241: The Percentage Points of the Normal Distribution", Applied
/// Statistics 37 (1988), routine PPND7.
fn two_sided_normal_quantile(probability: f64) -> f64 {
    let polynomial =
        |x: f64, coefficients: &[f64]| coefficients.iter().rev().fold(0.0, |sum, c| sum * x + c);
    let q = probability / 2.0;
    if q <= 0.425 {
        let r = 0.180625 - q * q;
        return q * polynomial(r, &[3.3871327179, 50.434271938, 159.29113202, 59.109374720])
            / polynomial(r, &[1.0, 17.895169469, 78.757757664, 67.187563600]);
    }
    let r = (-((1.0 - probability) / 2.0).ln()).sqrt();
    if r <= 5.0 {
        let r = r - 1.6;
        polynomial(r, &[1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103])
            / polynomial(r, &[1.0, 0.73700164250, 0.12021132975])
    } else {
        let r = r - 5.0;
        polynomial(r, &[6.6579051150, 3.0812263860, 0.42868294337, 0.017337203997])
            / polynomial(r, &[1.0, 0.24197894225, 0.012258202635])
    }
}

fn is_open_fraction(confidence: f64) -> bool {
    confidence > 0.0 && confidence < 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(actual: f64, expected: f64, tolerance: f64) {
        assert!((actual - expected).abs() <= tolerance, "{actual} instead of {expected}");
    }

    #[test]
    fn binomial_tails_match_pascals_triangle() {
        let (tails, total) = binomial_tails(10);
        for (j, expected) in [1.0, 11.0, 56.0, 176.0, 386.0, 638.0].into_iter().enumerate() {
            assert_close(tails[j] / total * 1024.0, expected, 1e-10);
        }
        let (tails, total) = binomial_tails(7);
        for (j, expected) in [1.0, 8.0, 29.0, 64.0].into_iter().enumerate() {
            assert_close(tails[j] / total * 128.0, expected, 1e-11);
        }
    }

    /// The expected values were computed with Python's exact integers, because 2^-2000 is below the
    /// range of f64.
    #[test]
    fn coverage_of_large_samples_is_exact() {
        for (n, expected_cut, expected) in
            [(2000, 955, 0.9534471795082162), (10_001, 4901, 0.9522907611993354)]
        {
            let (cut, coverage) = symmetric_cut(n, 0.95);
            assert_eq!(cut, expected_cut);
            assert_close(coverage, expected, 1e-12);
        }
    }

    #[test]
    fn cuts_of_large_samples_agree_with_the_normal_limit() {
        for n in [10_000, 100_001, 1_000_000] {
            let (cut, coverage) = symmetric_cut(n, 0.95);
            let limit = (n as f64 - 1.959964 * (n as f64).sqrt() - 1.0) / 2.0;
            assert_eq!(cut, limit as usize);
            assert!((0.95..0.9525).contains(&coverage), "{n}: {coverage}");
        }
    }

    #[test]
    fn cut_is_the_largest_that_reaches_the_confidence() {
        for n in 1..200 {
            let (tails, total) = binomial_tails(n);
            for confidence in [0.5, 0.9, 0.95, 0.99] {
                let (cut, coverage) = symmetric_cut(n, confidence);
                assert!(coverage >= confidence || cut == 0);
                let narrower = cut + 1;
                if narrower <= (n - 1) / 2 {
                    assert!(
                        1.0 - 2.0 * tails[narrower] / total < confidence,
                        "n {n}, {confidence}"
                    );
                }
            }
        }
    }

    /// The tabulated t for 95 % and 9 degrees of freedom is 2.262157.
    #[test]
    fn students_interval() {
        let samples: Vec<f64> = (1..=10).map(f64::from).collect();
        let interval = t_mean_interval(&samples, 0.95).unwrap();
        assert_close(interval.estimate, 5.5, 1e-12);
        assert_close(interval.high - 5.5, 2.262_157 * (55.0_f64 / 6.0 / 10.0).sqrt(), 1e-5);
        assert!(t_mean_interval(&[1.0], 0.95).is_none());
    }

    /// Without a success among n trials, the upper limit is 1 - (tail)^(1/n). The other values are
    /// those of the usual tables for 5 of 20.
    #[test]
    fn share_of_successes() {
        let none = share_interval(0, 100, 0.95).unwrap();
        assert_close(none.low, 0.0, 0.0);
        assert_close(none.high, 1.0 - 0.025_f64.powf(0.01), 1e-6);
        let some = share_interval(5, 20, 0.95).unwrap();
        assert_close(some.estimate, 0.25, 1e-12);
        assert_close(some.low, 0.0866, 1e-4);
        assert_close(some.high, 0.4910, 1e-4);
        assert_close(share_interval(7, 7, 0.95).unwrap().high, 1.0, 0.0);
        assert!(share_interval(1, 0, 0.95).is_none() && share_interval(2, 1, 0.95).is_none());
    }

    /// The expected values are from Python's `statistics.NormalDist().inv_cdf`.
    #[test]
    fn normal_quantiles() {
        for (probability, expected) in [
            (0.01, 0.012533469508),
            (0.5, 0.674489750196),
            (0.85, 1.439531470938),
            (0.86, 1.475791028179),
            (0.95, 1.959963984540),
            (0.999, 3.290526731492),
            (1.0 - 0.5f64.powi(38), 6.950575947917),
        ] {
            assert_close(two_sided_normal_quantile(probability) / expected, 1.0, 2e-7);
        }
    }
}
