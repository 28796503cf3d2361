//! Bootstrap intervals for sequences whose values depend on their neighbours.

use crate::interval::Interval;
use crate::order::Random;

/// The number of resamples. With 2,000, about 50 quotients lie outside each limit of a 95 %
/// interval.
const RESAMPLES: usize = 2000;

/// The quotient of the sums of two sequences, whose values belong together in pairs.
///
/// The interval is a percentile interval of the circular block bootstrap: each resample consists of
/// random blocks of consecutive pairs, so it keeps the dependence between neighbours. The length of
/// a block is the cube root of the number of pairs, which is the best order of magnitude for a
/// variance. The same seed gives the same interval.
///
/// `None` if the sequences are empty or differ in length, if the sum of the denominators is not
/// positive, or if `confidence` is not between 0 and 1.
///
/// Source: Politis and Romano, "A circular block-resampling procedure for stationary data", in
/// "Exploring the Limits of Bootstrap" (1992).
pub fn quotient_of_sums(
    numerators: &[f64],
    denominators: &[f64],
    confidence: f64,
    seed: u64,
) -> Option<Interval> {
    let n = numerators.len();
    let (above, below) = (numerators.iter().sum::<f64>(), denominators.iter().sum::<f64>());
    let is_possible = below > 0.0 && confidence > 0.0 && confidence < 1.0;
    if n == 0 || n != denominators.len() || !is_possible {
        return None;
    }
    let length = ((n as f64).cbrt().round() as usize).clamp(1, n);
    // The sum of a block is the difference of two sums from the beginning. The first values are
    // repeated at the end, because a block may go beyond the end of the sequence.
    let sums = |values: &[f64]| -> Vec<f64> {
        let mut sum = 0.0;
        let up_to = values.iter().cycle().take(n + length).map(|value| {
            sum += value;
            sum
        });
        [0.0].into_iter().chain(up_to).collect()
    };
    let (above_sums, below_sums) = (sums(numerators), sums(denominators));
    let mut random = Random::new(seed);
    let mut quotients: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let (mut above, mut below, mut left) = (0.0, 0.0, n);
            while left > 0 {
                let (begin, size) = (random.below(n), length.min(left));
                above += above_sums[begin + size] - above_sums[begin];
                below += below_sums[begin + size] - below_sums[begin];
                left -= size;
            }
            above / below
        })
        .filter(|quotient| quotient.is_finite())
        .collect();
    quotients.sort_by(f64::total_cmp);
    let tail = (1.0 - confidence) / 2.0;
    let at = |part: f64| {
        let index = (part * quotients.len() as f64) as usize;
        quotients.get(index.min(quotients.len().saturating_sub(1))).copied()
    };
    Some(Interval { estimate: above / below, low: at(tail)?, high: at(1.0 - tail)?, confidence })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_quotient_has_no_width() {
        let below: Vec<f64> = (1..=50).map(f64::from).collect();
        let above: Vec<f64> = below.iter().map(|value| 2.0 * value).collect();
        let interval = quotient_of_sums(&above, &below, 0.95, 1).unwrap();
        for limit in [interval.estimate, interval.low, interval.high] {
            assert!((limit - 2.0).abs() < 1e-9, "{interval:?}");
        }
    }

    /// The mean of a sequence in which each value is 0.8 times the previous one plus noise. An
    /// interval that ignored this dependence would cover the true mean in about half of the cases.
    #[test]
    fn dependent_values_are_covered() {
        let mut random = Random::new(7);
        let mut covered = 0;
        for seed in 0..200 {
            let mut value = 10.0;
            let values: Vec<f64> = (0..1500)
                .map(|_| {
                    value = 10.0 + 0.8 * (value - 10.0) + random.unit() - 0.5;
                    value
                })
                .collect();
            let interval = quotient_of_sums(&values, &[1.0; 1500], 0.95, seed).unwrap();
            covered += usize::from(interval.low <= 10.0 && 10.0 <= interval.high);
        }
        assert!((160..=200).contains(&covered), "{covered} of 200");
    }

    #[test]
    fn impossible_quotients_are_none() {
        assert_eq!(quotient_of_sums(&[], &[], 0.95, 1), None);
        assert_eq!(quotient_of_sums(&[1.0], &[0.0], 0.95, 1), None);
        assert_eq!(quotient_of_sums(&[1.0], &[1.0, 2.0], 0.95, 1), None);
        assert_eq!(quotient_of_sums(&[1.0], &[1.0], 1.0, 1), None);
    }
}
