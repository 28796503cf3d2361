//! Compares the histogram with exact computation on the same values.

use proptest::collection::vec;
use proptest::prelude::*;
use stats::histogram::{BUCKETS, SMALL, bounds, bucket, quantile};

const RANGE: u64 = 1 << 37;

fn count(values: &[u64]) -> Vec<u64> {
    let mut counts = vec![0; BUCKETS];
    for &value in values {
        counts[bucket(value)] += 1;
    }
    counts
}

/// Values in range, every magnitude equally likely, and many small ones, which share the narrowest
/// buckets.
fn values() -> impl Strategy<Value = Vec<u64>> {
    let any_magnitude = (0u32..37, any::<u64>())
        .prop_map(|(octave, bits)| (1 << octave) | (bits & ((1 << octave) - 1)));
    let narrow = (64u64..RANGE / 2).prop_flat_map(|start| vec(start..start + start / 4, 1..100));
    prop_oneof![vec(any_magnitude, 1..200), vec(0u64..80, 1..200), narrow]
}

/// The nearest rank in integer arithmetic: the smallest value such that at least `per_mille` of all
/// values are at or below it.
fn exact_quantile(values: &[u64], per_mille: u64) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (per_mille * sorted.len() as u64).div_ceil(1000).max(1);
    sorted[rank as usize - 1]
}

fn assert_within_five_percent(estimate: f64, exact: u64) {
    let exact = exact as f64;
    assert!((estimate - exact).abs() <= 0.05 * exact, "{estimate} for {exact}");
}

#[test]
fn layout() {
    assert_eq!(BUCKETS, 280);
    assert_eq!(bucket(0), 0);
    assert_eq!(bucket(15), 15);
    assert_eq!(bucket(16), 16);
    assert_eq!(bucket(32), 24);
    assert_eq!(bucket(1024 + 6 * 16 - 1), 16 + 6 * 8);
    assert_eq!(bucket(1024 + 6 * 16), 16 + 6 * 8 + 1);
    assert_eq!(bucket(RANGE - 1), BUCKETS - 1);
    assert_eq!(bucket(RANGE), BUCKETS - 1);
    assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    assert_eq!(bounds(BUCKETS - 1), (117 << 30, u64::MAX));
}

/// How the BPF side finds a bucket (bpf/lens/cells.bpf.h).
fn looked_up(value: u64) -> usize {
    let octaves = (value.ilog2() as usize).saturating_sub(10);
    (SMALL[(value >> octaves) as usize] as usize + octaves * 8).min(BUCKETS - 1)
}

proptest! {
    #[test]
    fn buckets_of_large_values_follow_from_those_of_small_ones(bits in 0..64u32, value: u64) {
        let value = (value >> bits).max(1);
        prop_assert_eq!(looked_up(value), bucket(value));
    }
}

#[test]
fn small_values_have_their_buckets() {
    for (value, small) in SMALL.into_iter().enumerate() {
        assert_eq!(usize::from(small), bucket(value as u64));
    }
}

/// Below 64, some of the 64 steps do not exist. Every bucket still has values, so no bucket is a
/// special case.
#[test]
fn buckets_are_adjacent_and_none_is_empty() {
    let mut expected_low = 0;
    for index in 0..BUCKETS {
        let (low, high) = bounds(index);
        assert_eq!(low, expected_low, "bucket {index}");
        assert!(low < high, "bucket {index} is empty");
        assert_eq!(bucket(low), index);
        assert_eq!(bucket(high - 1), index);
        expected_low = high;
    }
}

/// A second, larger value makes sure that the estimate does not come from the exact maximum.
#[test]
fn lower_of_two_values_is_within_five_percent() {
    let edges = (0..BUCKETS).map(bounds).flat_map(|(low, high)| [low, high - 1]);
    for value in edges.chain(0..4096).filter(|&value| value < RANGE) {
        let median = quantile(&count(&[value, RANGE - 1]), 0.5, RANGE - 1).unwrap();
        assert_within_five_percent(median, value);
    }
}

#[test]
fn highest_rank_is_the_recorded_maximum() {
    let hour = 3_600_000_000_000;
    assert_eq!(quantile(&count(&[20, hour]), 1.0, hour), Some(hour as f64));
    assert_eq!(quantile(&count(&[hour]), 0.5, hour), Some(hour as f64));
    // If the maximum is not in the highest bucket with a count, it was recorded after the counts
    // were read, and is not used.
    assert_within_five_percent(quantile(&count(&[1000]), 0.5, hour).unwrap(), 1000);
}

#[test]
fn estimates_do_not_exceed_the_maximum() {
    assert_eq!(quantile(&count(&[1024, 1024, 1024]), 0.5, 1024), Some(1024.0));
}

#[test]
fn ranks_out_of_range_are_at_least_the_end_of_the_range() {
    let median = quantile(&count(&[RANGE * 2, RANGE * 4]), 0.5, RANGE * 4).unwrap();
    assert_within_five_percent(median, RANGE);
}

#[test]
fn binary_fractions_do_not_raise_the_rank() {
    // In binary, 0.07 * 100 = 7.000000000000001. Ranks 7 and 8 are in different buckets, so a wrong
    // rank is visible.
    let mut counts = vec![0; BUCKETS];
    counts[1] = 7;
    counts[2] = 93;
    assert_eq!(quantile(&counts, 0.07, 2), Some(1.0));
    assert_eq!(quantile(&counts, 0.0701, 2), Some(2.0));
}

#[test]
fn nothing_to_estimate() {
    assert_eq!(quantile(&[0; BUCKETS], 0.5, 0), None);
    assert_eq!(quantile(&[], 0.5, 0), None);
    for q in [-0.1, 1.1, f64::NAN] {
        assert_eq!(quantile(&[1], q, 0), None);
    }
}

proptest! {
    #[test]
    fn bounds_contain_the_value(value: u64) {
        let (low, high) = bounds(bucket(value));
        prop_assert!(low <= value && (value < high || value == u64::MAX));
    }

    #[test]
    fn quantiles_are_within_five_percent(values in values(), per_mille in 0u64..=1000) {
        let max = *values.iter().max().unwrap();
        let estimate = quantile(&count(&values), per_mille as f64 / 1000.0, max).unwrap();
        prop_assert!(estimate <= max as f64);
        assert_within_five_percent(estimate, exact_quantile(&values, per_mille));
    }
}
