//! What the counters of calls and of requests have in common.

use std::collections::BTreeMap;

use kernel::lens::call_stats::{CallStats, errno_of_index};
use stats::histogram;

/// A quantile of the times, in nanoseconds.
pub fn quantile(stats: &CallStats, q: f64) -> u64 {
    histogram::quantile(&*stats.histogram, q, stats.max_ns).map_or(0, |ns| ns.round() as u64)
}

/// The numbers of errors, by name.
pub fn errors(stats: &CallStats) -> BTreeMap<String, u64> {
    let name = |slot| match errno_of_index(slot) {
        0 => "other".to_owned(),
        errno => calls::display_errno(errno).into_owned(),
    };
    stats
        .errors
        .iter()
        .enumerate()
        .filter(|(_, n)| **n > 0)
        .map(|(slot, n)| (name(slot), *n))
        .collect()
}
