//! The latency histogram that the BPF programs fill: logarithmic buckets of nanoseconds.
//!
//! Each value below 16 has its own bucket. From 16 on, an octave has eight buckets, whose
//! boundaries are the powers 2^(k/8) rounded to 1/64 of the octave's start. Thus the position of
//! the highest set bit and the six bits after it determine the bucket. The BPF side shifts a large
//! value to the right, one octave at a time, and then looks up the bucket in [`SMALL`].
//!
//! No bucket is wider than 9.7 % of its lower bound, so every estimate is within 5 % of the exact
//! value.

/// Each value below this has its own bucket.
const EXACT: usize = 1 << FIRST_OCTAVE;

/// log2 of the first value that shares its bucket with others.
const FIRST_OCTAVE: u32 = 4;

/// Octaves covered, so that the histogram ends at 2^37 ns = 137 s.
const OCTAVES: u32 = 33;

const BUCKETS_PER_OCTAVE: usize = 8;

/// log2 of the first value that is out of range.
const RANGE_BITS: u32 = FIRST_OCTAVE + OCTAVES;

/// The number of buckets. The last one also has all values from 2^37 ns (137 s) on.
pub const BUCKETS: usize = EXACT + OCTAVES as usize * BUCKETS_PER_OCTAVE;

/// The start of each bucket of an octave, and the end of the octave: 64 * (2^(k/8) - 1), rounded.
///
/// Written out because `powf` cannot be used in constants; a test compares it with the formula.
const STARTS: [u8; BUCKETS_PER_OCTAVE + 1] = [0, 6, 12, 19, 27, 35, 44, 53, 64];

/// The bucket inside an octave, indexed by the six bits that follow the highest set bit.
const SUB_BUCKET: [u8; 64] = sub_buckets();

const fn sub_buckets() -> [u8; 64] {
    let mut table = [0; 64];
    let mut step = 0;
    let mut sub_bucket = 0;
    while step < table.len() {
        if step == STARTS[sub_bucket + 1] as usize {
            sub_bucket += 1;
        }
        table[step] = sub_bucket as u8;
        step += 1;
    }
    table
}

/// The bucket of a value in nanoseconds; always below [`BUCKETS`].
pub const fn bucket(value: u64) -> usize {
    if value < EXACT as u64 {
        return value as usize;
    }
    let octave = value.ilog2();
    if octave >= RANGE_BITS {
        return BUCKETS - 1;
    }
    let step = ((value << 6 >> octave) & 63) as usize;
    EXACT + (octave - FIRST_OCTAVE) as usize * BUCKETS_PER_OCTAVE + SUB_BUCKET[step] as usize
}

/// The buckets of the smallest values; the value is the index.
pub const SMALL: [u8; 2048] = small_buckets();

const fn small_buckets() -> [u8; 2048] {
    let mut table = [0; 2048];
    let mut value = 0;
    while value < table.len() {
        table[value] = bucket(value as u64) as u8;
        value += 1;
    }
    table
}

/// The range `low..high` of a bucket's values in nanoseconds.
///
/// The last bucket has no upper end; its `high` is [`u64::MAX`], and that value belongs to it too.
///
/// # Panics
///
/// If `bucket` is not below [`BUCKETS`].
pub fn bounds(bucket: usize) -> (u64, u64) {
    let (low, high) = nominal_bounds(bucket);
    if bucket == BUCKETS - 1 { (low, u64::MAX) } else { (low, high) }
}

/// As [`bounds`], but the last bucket ends at the end of its octave.
fn nominal_bounds(bucket: usize) -> (u64, u64) {
    assert!(bucket < BUCKETS, "there is no bucket {bucket}");
    let Some(above_exact) = bucket.checked_sub(EXACT) else {
        return (bucket as u64, bucket as u64 + 1);
    };
    let octave = FIRST_OCTAVE + (above_exact / BUCKETS_PER_OCTAVE) as u32;
    let sub_bucket = above_exact % BUCKETS_PER_OCTAVE;
    // Below 64, a step is less than 1 ns, so the bucket starts at the first whole value at or after
    // the boundary.
    let boundary = |start: u8| ((64 + u64::from(start)) << octave).div_ceil(64);
    (boundary(STARTS[sub_bucket]), boundary(STARTS[sub_bucket + 1]))
}

/// The value that represents a bucket: the one with the smallest worst-case relative error over the
/// bucket's values.
///
/// For values from a to b this is 2ab/(a+b), with the error (b-a)/(b+a) at both ends. It is not
/// rounded: a whole number could not be within 5 % of both 16 and 17, which share a bucket.
fn estimate(bucket: usize) -> f64 {
    let (low, high) = nominal_bounds(bucket);
    let (smallest, largest) = (low as f64, (high - 1) as f64);
    if smallest == largest {
        return smallest;
    }
    2.0 * smallest * largest / (smallest + largest)
}

/// The values from one power of two to the next, and how many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Octave {
    /// The first value; 0 is in an octave of its own.
    pub low: u64,
    /// The first value beyond. `None`: the octave also has all values that are out of range.
    pub high: Option<u64>,
    /// The number of values.
    pub count: u64,
}

/// The values by octave, from the first octave that has any to the last one. This is exact, because
/// every octave begins with a bucket. `counts` is as for [`quantile`].
///
/// # Panics
///
/// If there are more counts than [`BUCKETS`].
pub fn octaves(counts: &[u64]) -> Vec<Octave> {
    total(counts);
    let end = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    let mut octaves: Vec<Octave> = Vec::new();
    for (bucket, count) in counts[..end].iter().enumerate() {
        let (low, _) = bounds(bucket);
        if low.is_power_of_two() || bucket == 0 {
            let high = if low == 0 { 1 } else { 2 * low };
            let high = (high < 1 << RANGE_BITS).then_some(high);
            octaves.push(Octave { low, high, count: 0 });
        }
        if let Some(octave) = octaves.last_mut() {
            octave.count += count;
        }
    }
    let empty = octaves.iter().take_while(|octave| octave.count == 0).count();
    octaves.split_off(empty)
}

fn total(counts: &[u64]) -> u64 {
    assert!(counts.len() <= BUCKETS, "{} counts for {BUCKETS} buckets", counts.len());
    counts.iter().sum()
}

/// The `q`-quantile in nanoseconds, within 5 % of the exact one for values below 2^37 ns.
///
/// The quantile is that of the *nearest rank*: of n sorted values, the one at rank ceil(q * n),
/// counted from 1, and the smallest for q = 0. `counts[i]` is the number of values in bucket i, and
/// `max` is the largest value. The highest rank gives `max` exactly, and no other rank exceeds it.
/// If the value at another rank is 2^37 ns or more, the result is about 2^37 ns, a lower bound.
///
/// `None` without values, or if `q` is not from 0 to 1.
///
/// # Panics
///
/// If there are more counts than [`BUCKETS`].
pub fn quantile(counts: &[u64], q: f64, max: u64) -> Option<f64> {
    let n = total(counts);
    if n == 0 || !(0.0..=1.0).contains(&q) {
        return None;
    }
    // In binary, 0.07 * 100 is slightly more than 7, and must not become rank 8.
    let rank = (q * n as f64 * (1.0 - 4.0 * f64::EPSILON)).ceil() as u64;
    let rank = rank.clamp(1, n);
    let mut seen = 0;
    let found = counts.iter().position(|&count| {
        seen += count;
        seen >= rank
    })?;
    // `max` may have been read later than the counts. The check keeps it from replacing an older,
    // smaller value.
    if rank == n && bucket(max) == found {
        return Some(max as f64);
    }
    Some(estimate(found).min(max as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_rounded_powers() {
        for (k, &start) in STARTS.iter().enumerate() {
            let exact = 64.0 * ((k as f64 / 8.0).exp2() - 1.0);
            assert_eq!(f64::from(start), exact.round(), "boundary {k}");
        }
    }

    #[test]
    fn octaves_have_every_value_once() {
        let values = [1, 2, 3, 15, 16, 17, 2047, 2048, (1 << 37) - 1, u64::MAX];
        let mut counts = [0; BUCKETS];
        values.iter().for_each(|value| counts[bucket(*value)] += 1);
        let octaves = octaves(&counts);
        assert!(octaves[0].low == 1 && octaves[0].count == 1, "{octaves:?}");
        for (octave, next) in octaves.iter().zip(&octaves[1..]) {
            assert!(octave.high == Some(next.low) && next.low == 2 * octave.low, "{octaves:?}");
        }
        for octave in &octaves {
            let is_in =
                |value: &&u64| **value >= octave.low && octave.high.is_none_or(|h| **value < h);
            assert_eq!(octave.count, values.iter().filter(is_in).count() as u64, "{octave:?}");
        }
        let last = octaves.last().expect("it has values");
        assert_eq!((last.low, last.high), (1 << 36, None));
    }

    #[test]
    fn octaves_without_values_are_only_between_others() {
        assert_eq!(octaves(&[0; BUCKETS]), []);
        let octave = |low, high, count| Octave { low, high: Some(high), count };
        assert_eq!(octaves(&[5]), [octave(0, 1, 5)]);
        let mut counts = [0; BUCKETS];
        (counts[bucket(1024)], counts[bucket(4095)], counts[bucket(4096)]) = (1, 2, 4);
        let wanted = [octave(1024, 2048, 1), octave(2048, 4096, 2), octave(4096, 8192, 4)];
        assert_eq!(octaves(&counts), wanted);
        counts[bucket(4095)] = 0;
        assert_eq!(octaves(&counts)[1], octave(2048, 4096, 0));
    }

    #[test]
    fn estimates_err_equally_and_within_five_percent_at_both_ends() {
        for bucket in 1..BUCKETS {
            let (low, high) = nominal_bounds(bucket);
            let error = |value: u64| (estimate(bucket) / value as f64 - 1.0).abs();
            let (at_smallest, at_largest) = (error(low), error(high - 1));
            assert!(at_smallest <= 0.05, "bucket {bucket}: {at_smallest}");
            assert!((at_smallest - at_largest).abs() < 1e-12, "bucket {bucket}: {at_largest}");
        }
        assert_eq!(estimate(0), 0.0);
    }
}
