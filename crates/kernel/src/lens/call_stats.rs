//! Statistics of calls and rows, and their sums. Independent of libbpf.

use std::collections::BTreeMap;

use crate::wire;

/// Statistics of one call, in one row or in several together. Times in nanoseconds.
#[derive(Debug, Clone)]
pub struct CallStats {
    pub count: u64,
    pub denied: u64,
    pub unfinished: u64,
    pub wall_ns: u64,
    pub blocked_ns: u64,
    pub runqueue_ns: u64,
    pub max_ns: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub sampled: u64,
    pub sampled_ns: u64,
    pub sampled_ns2: u64,
    pub skipped: u64,
    /// By error index: see [`errno_of_index`].
    pub errors: [u64; wire::ERRNO_INDICES as usize],
    pub histogram: Box<[u64; wire::HISTOGRAM_BUCKETS as usize]>,
}

impl Default for CallStats {
    fn default() -> Self {
        Self {
            count: 0,
            denied: 0,
            unfinished: 0,
            wall_ns: 0,
            blocked_ns: 0,
            runqueue_ns: 0,
            max_ns: 0,
            minor_faults: 0,
            major_faults: 0,
            sampled: 0,
            sampled_ns: 0,
            sampled_ns2: 0,
            skipped: 0,
            errors: [0; wire::ERRNO_INDICES as usize],
            histogram: Box::new([0; wire::HISTOGRAM_BUCKETS as usize]),
        }
    }
}

/// The errno of an error index; 0: one beyond the known range.
pub fn errno_of_index(slot: usize) -> i32 {
    if slot < wire::ERRNO_REGULAR as usize {
        slot as i32
    } else {
        (slot as u32 - wire::ERRNO_REGULAR + wire::ERRNO_RESTART_FIRST) as i32
    }
}

impl CallStats {
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.denied += other.denied;
        self.unfinished += other.unfinished;
        self.wall_ns += other.wall_ns;
        self.blocked_ns += other.blocked_ns;
        self.runqueue_ns += other.runqueue_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
        self.minor_faults += other.minor_faults;
        self.major_faults += other.major_faults;
        self.sampled += other.sampled;
        self.sampled_ns += other.sampled_ns;
        self.sampled_ns2 += other.sampled_ns2;
        self.skipped += other.skipped;
        add_each(&mut self.errors, &other.errors);
        add_each(&mut *self.histogram, &*other.histogram);
    }

    /// Adds what one processor counted since `last`. Only the small counters may have wrapped.
    pub(crate) fn add_since(&mut self, now: &wire::cell, last: &wire::cell) {
        self.count += now.count - last.count;
        self.denied += now.denied - last.denied;
        self.unfinished += now.unfinished - last.unfinished;
        self.wall_ns += now.wall_ns - last.wall_ns;
        self.blocked_ns += now.blocked_ns - last.blocked_ns;
        self.runqueue_ns += now.runqueue_ns - last.runqueue_ns;
        self.max_ns = self.max_ns.max(now.max_ns);
        self.minor_faults += now.minor_faults - last.minor_faults;
        self.major_faults += now.major_faults - last.major_faults;
        self.sampled += now.sampled - last.sampled;
        self.sampled_ns += now.sampled_ns - last.sampled_ns;
        self.sampled_ns2 += now.sampled_ns2 - last.sampled_ns2;
        self.skipped += now.skipped - last.skipped;
        add_wrapped(&mut self.errors, &now.errors, &last.errors);
        add_wrapped(&mut *self.histogram, &now.histogram, &last.histogram);
    }
}

fn add_each(sums: &mut [u64], more: &[u64]) {
    for (sum, value) in sums.iter_mut().zip(more) {
        *sum += value;
    }
}

fn add_wrapped(sums: &mut [u64], now: &[u32], last: &[u32]) {
    for ((sum, now), last) in sums.iter_mut().zip(now).zip(last) {
        *sum += u64::from(now.wrapping_sub(*last));
    }
}

/// What a row is of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowName {
    pub tgid: u32,
    pub pid: u32,
    pub command: String,
}

/// A blocking site's share of one call.
#[derive(Debug, Clone, Copy, Default)]
pub struct SiteStats {
    pub blocked_ns: u64,
    pub sleeps: u64,
}

/// Statistics of one row.
#[derive(Debug, Default, Clone)]
pub struct RowStats {
    pub calls: BTreeMap<u32, CallStats>,
    /// By call index and kernel address.
    pub sites: BTreeMap<(u32, u64), SiteStats>,
}

impl RowStats {
    pub fn add(&mut self, other: &Self) {
        for (call, figures) in &other.calls {
            self.calls.entry(*call).or_default().add(figures);
        }
        for (key, site) in &other.sites {
            let sum = self.sites.entry(*key).or_default();
            sum.blocked_ns += site.blocked_ns;
            sum.sleeps += site.sleeps;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_counters_may_wrap_between_readings() {
        let mut last = wire::cell::default();
        let mut now = wire::cell::default();
        last.histogram[3] = u32::MAX - 1;
        now.histogram[3] = 5;
        now.count = 7;
        let mut figures = CallStats::default();
        figures.add_since(&now, &last);
        assert_eq!(figures.histogram[3], 7);
        assert_eq!(figures.count, 7);
    }

    #[test]
    fn errno_indices_round_trip() {
        assert_eq!(errno_of_index(2), 2);
        assert_eq!(errno_of_index(133), 133);
        assert_eq!(errno_of_index(134), 512);
        assert_eq!(errno_of_index(138), 516);
    }

    #[test]
    fn the_histogram_has_the_layout_of_stats() {
        assert_eq!(wire::HISTOGRAM_BUCKETS as usize, stats::histogram::BUCKETS);
        assert_eq!(wire::SMALL_VALUES as usize, stats::histogram::SMALL.len());
        const { assert!(calls::LIMIT <= wire::CALL_UNKNOWN) };
    }
}
