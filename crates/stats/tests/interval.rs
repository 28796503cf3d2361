//! Tests the intervals on known cases, and their coverage by simulation with fixed seeds.

use proptest::collection::vec;
use proptest::prelude::*;
use stats::interval::{Interval, median_interval, normal_mean_interval, quotient_interval};

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform between 0 and 1, both excluded.
    fn uniform(&mut self) -> f64 {
        ((self.next() >> 12) as f64 + 0.5) / (1u64 << 52) as f64
    }
}

const TRIALS: u32 = 4000;

/// The share of trials whose interval contains `truth`, and the coverage that the intervals claim.
fn simulate(truth: f64, mut trial: impl FnMut() -> Interval) -> (f64, f64) {
    let mut covered = 0;
    let mut claimed = 0.0;
    for _ in 0..TRIALS {
        let interval = trial();
        covered += u32::from(interval.low <= truth && truth <= interval.high);
        claimed = interval.confidence;
    }
    (f64::from(covered) / f64::from(TRIALS), claimed)
}

/// Four standard errors of a share that is observed in `TRIALS` trials.
fn tolerance(share: f64) -> f64 {
    4.0 * (share * (1.0 - share) / f64::from(TRIALS)).sqrt()
}

#[test]
fn median_interval_covers_as_often_as_it_claims() {
    let mut generator = SplitMix64(1);
    // A shifted exponential distribution: skewed and mostly negative, as differences may be.
    let median = std::f64::consts::LN_2 - 2.0;
    for (n, confidence) in [(4, 0.95), (11, 0.95), (12, 0.5), (60, 0.9), (101, 0.99)] {
        let (covered, claimed) = simulate(median, || {
            let samples: Vec<f64> = (0..n).map(|_| -generator.uniform().ln() - 2.0).collect();
            median_interval(&samples, confidence).unwrap()
        });
        assert!(
            (covered - claimed).abs() <= tolerance(claimed),
            "n {n}: {covered}, claimed {claimed}"
        );
    }
}

#[test]
fn quotient_interval_covers_as_often_as_it_claims() {
    let mut generator = SplitMix64(7);
    for n in [21, 60] {
        let (covered, claimed) = simulate(1.3, || {
            // Tolls: both sides minus the same noisy reference.
            let mut noise = || 40.0 * (generator.uniform() - generator.uniform());
            let (above, below): (Vec<_>, Vec<_>) = (0..n)
                .map(|_| {
                    let reference = noise();
                    (65.0 + noise() - reference, 50.0 + noise() - reference)
                })
                .unzip();
            quotient_interval(&above, &below, 0.95).expect("the denominators are clear of 0")
        });
        assert!(
            (covered - claimed).abs() <= tolerance(claimed),
            "n {n}: {covered}, claimed {claimed}"
        );
    }
}

#[test]
fn quotients_of_exact_samples_are_exact() {
    let below: Vec<f64> = (1..20).map(f64::from).collect();
    let above: Vec<f64> = below.iter().map(|value| value * 1.5).collect();
    let quotient = quotient_interval(&above, &below, 0.95).unwrap();
    assert_eq!((quotient.low, quotient.estimate, quotient.high), (1.5, 1.5, 1.5));
    let around_zero: Vec<f64> = below.iter().map(|value| value - 10.0).collect();
    assert_eq!(quotient_interval(&above, &around_zero, 0.95), None);
    assert_eq!(quotient_interval(&above, &below[1..], 0.95), None);
    assert_eq!(quotient_interval(&[], &[], 0.95), None);
}

#[test]
fn ties_do_not_lower_the_coverage() {
    let mut generator = SplitMix64(2);
    for n in [8, 25, 60] {
        // The values 0, 1, 2 and 3 have the weights 1, 2, 4 and 1, so the median is 2.
        let (covered, claimed) = simulate(2.0, || {
            let values = [0.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 3.0];
            let samples: Vec<f64> =
                (0..n).map(|_| values[(generator.next() >> 61) as usize]).collect();
            median_interval(&samples, 0.95).unwrap()
        });
        assert!(covered >= claimed - tolerance(claimed), "n {n}: {covered}, claimed {claimed}");
    }
}

#[test]
fn normal_interval_covers_as_often_as_it_claims() {
    let mut generator = SplitMix64(3);
    let n = 200;
    for confidence in [0.8, 0.95] {
        let (covered, _) = simulate(0.5, || {
            let samples: Vec<f64> = (0..n).map(|_| generator.uniform()).collect();
            let mean = samples.iter().sum::<f64>() / f64::from(n);
            let variance = samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>()
                / f64::from(n - 1);
            normal_mean_interval(mean, variance, n as u64, confidence).unwrap()
        });
        assert!(
            (covered - confidence).abs() <= tolerance(confidence),
            "{covered}, claimed {confidence}"
        );
    }
}

#[test]
fn median_of_ten() {
    let samples = [7.0, -3.0, 1.0, 9.0, 4.0, 2.0, 8.0, 5.0, 6.0, 3.0];
    let interval = median_interval(&samples, 0.95).unwrap();
    assert_eq!((interval.estimate, interval.low, interval.high), (4.5, 1.0, 8.0));
    // One sample is left out at each end: 1 - 2 (1 + 10) / 2^10.
    assert!((interval.confidence - 0.978515625).abs() < 1e-12);
}

#[test]
fn small_samples_give_their_range_and_its_coverage() {
    let interval = median_interval(&[3.0, 1.0, 2.0], 0.95).unwrap();
    assert_eq!((interval.estimate, interval.low, interval.high), (2.0, 1.0, 3.0));
    assert!((interval.confidence - 0.75).abs() < 1e-12);
    let single = median_interval(&[-5.0], 0.95).unwrap();
    assert_eq!(
        (single.estimate, single.low, single.high, single.confidence),
        (-5.0, -5.0, -5.0, 0.0)
    );
}

#[test]
fn six_samples_are_enough_for_95_percent() {
    assert!(median_interval(&[1.0; 5], 0.95).unwrap().confidence < 0.95);
    assert!(median_interval(&[1.0; 6], 0.95).unwrap().confidence > 0.95);
}

#[test]
fn normal_interval_of_known_width() {
    let interval = normal_mean_interval(-1.0, 400.0, 100, 0.95).unwrap();
    assert_eq!((interval.estimate, interval.confidence), (-1.0, 0.95));
    assert!((interval.low + 1.0 + 2.0 * 1.959964).abs() < 1e-5);
    assert!((interval.high + 1.0 - 2.0 * 1.959964).abs() < 1e-5);
}

#[test]
fn impossible_requests() {
    for confidence in [0.0, 1.0, -1.0, f64::NAN] {
        assert_eq!(median_interval(&[1.0], confidence), None);
        assert_eq!(normal_mean_interval(0.0, 1.0, 10, confidence), None);
    }
    assert_eq!(median_interval(&[], 0.95), None);
    assert_eq!(median_interval(&[1.0, f64::NAN], 0.95), None);
    assert_eq!(normal_mean_interval(0.0, 1.0, 1, 0.95), None);
    assert_eq!(normal_mean_interval(0.0, -1.0, 10, 0.95), None);
    assert_eq!(normal_mean_interval(0.0, f64::NAN, 10, 0.95), None);
}

proptest! {
    #[test]
    fn more_confidence_never_narrows(
        samples in vec(-1e9..1e9, 1..120),
        (a, b) in (0.01..0.999, 0.01..0.999),
    ) {
        let narrow = median_interval(&samples, f64::min(a, b)).unwrap();
        let wide = median_interval(&samples, f64::max(a, b)).unwrap();
        prop_assert!(narrow.low <= narrow.estimate && narrow.estimate <= narrow.high);
        prop_assert!(wide.low <= narrow.low && narrow.high <= wide.high);
        prop_assert!(narrow.confidence <= wide.confidence);
    }

    #[test]
    fn negated_samples_mirror_the_interval(samples in vec(-1e9..1e9, 1..120)) {
        let negated: Vec<f64> = samples.iter().map(|sample| -sample).collect();
        let interval = median_interval(&samples, 0.95).unwrap();
        let mirrored = median_interval(&negated, 0.95).unwrap();
        prop_assert_eq!(mirrored.estimate, -interval.estimate);
        prop_assert_eq!((mirrored.low, mirrored.high), (-interval.high, -interval.low));
    }
}
