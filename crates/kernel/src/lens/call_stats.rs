//! Statistics of calls and rows, and their sums. This module does not use libbpf, so that it can be
//! tested without a kernel.

use std::collections::BTreeMap;

use super::causes::Causes;
use super::files::{FileId, FileStats};
use crate::wire;

/// Statistics of one call, in one row or added up over several rows.
#[derive(Debug, Clone)]
pub struct CallStats {
    /// All calls that ended.
    pub count: u64,
    /// Of `count`: calls that seccomp or a tracer rejected before they began. They have no time.
    pub denied: u64,
    /// Calls that had not ended when their thread did. They are not in `count`.
    pub unfinished: u64,
    /// Time from entry to exit, over all timed calls.
    pub wall_ns: u64,
    /// Of `wall_ns`: time asleep.
    pub blocked_ns: u64,
    /// Of `wall_ns`: time spent waiting for a processor.
    pub runqueue_ns: u64,
    /// The longest time of one call.
    pub max_ns: u64,
    /// Page faults without storage access.
    pub minor_faults: u64,
    /// Page faults that had to read from storage.
    pub major_faults: u64,
    /// With `LENS_SAMPLE`: cheap calls that were timed.
    pub sampled: u64,
    /// The sum of the times of `sampled`.
    pub sampled_ns: u64,
    /// The sum of the squares of the times of `sampled`.
    pub sampled_ns2: u64,
    /// With `LENS_SAMPLE`: cheap calls that were counted, but not timed.
    pub skipped: u64,
    /// Of requests: see `wire::request_cell`.
    pub submitted: u64,
    /// Failed calls by error index: see [`errno_of_index`].
    pub errors: [u64; wire::ERRNO_INDICES as usize],
    /// The number of timed calls in each bucket of [`stats::histogram`].
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
            submitted: 0,
            errors: [0; wire::ERRNO_INDICES as usize],
            histogram: Box::new([0; wire::HISTOGRAM_BUCKETS as usize]),
        }
    }
}

/// The errno (a positive number) of an index of [`CallStats::errors`]. Index 0 has all errors
/// beyond the known range, and the result for it is 0.
pub fn errno_of_index(index: usize) -> i32 {
    if index < wire::ERRNO_REGULAR as usize {
        index as i32
    } else {
        (index as u32 - wire::ERRNO_REGULAR + wire::ERRNO_RESTART_FIRST) as i32
    }
}

impl CallStats {
    /// Adds another row's statistics of the same call.
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
        self.submitted += other.submitted;
        add_each(&mut self.errors, &other.errors);
        add_each(&mut *self.histogram, &*other.histogram);
    }

    /// Adds what one processor counted since `last`. The errors and the histogram may have wrapped
    /// since then.
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
        self.submitted += now.submitted - last.submitted;
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

/// A row is named by the first thread that counted in it. The base row, which has everything, has
/// zeros and an empty command.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowName {
    /// The process, as the session's PID namespace numbers it.
    pub tgid: u32,
    /// The thread, numbered likewise.
    pub pid: u32,
    /// When the process or thread began, which distinguishes those with equal numbers. 0 for a
    /// command.
    pub started_ns: u64,
    /// The thread's name (comm). For a command, the name of its program's file.
    pub command: String,
}

impl RowName {
    /// Whether it names the base row, or the session's common row, which is no task's.
    pub fn is_common(&self) -> bool {
        self.tgid == 0 && self.command.is_empty()
    }
}

/// How one call slept at one blocking site.
#[derive(Debug, Clone, Copy, Default)]
pub struct SiteStats {
    /// Time asleep there.
    pub blocked_ns: u64,
    /// How often the call slept there.
    pub sleeps: u64,
}

/// Statistics of one row.
#[derive(Debug, Clone)]
pub struct RowStats {
    /// By call index.
    pub calls: BTreeMap<u32, CallStats>,
    /// By [`wire::account_part`]: what threads did beside calls. Only the numbers, the times and
    /// the faults are used.
    pub parts: BTreeMap<u32, CallStats>,
    /// By the operation of io_uring. `wire::request_cell` says what is used.
    pub requests: BTreeMap<u32, CallStats>,
    /// By call index and kernel address.
    pub sites: BTreeMap<(u32, u64), SiteStats>,
    /// With `LENS_FILES`.
    pub files: BTreeMap<FileId, FileStats>,
    /// With `LENS_WHY`: what the sleeps had to do with.
    pub causes: Causes,
    /// When its first thread began to count.
    pub began_ns: u64,
    /// When its last thread ended; `u64::MAX`: it has threads.
    pub ended_ns: u64,
    /// Some calls of its threads are in the common row, because no counters were left for them.
    pub is_partial: bool,
}

impl Default for RowStats {
    fn default() -> Self {
        Self {
            calls: BTreeMap::new(),
            parts: BTreeMap::new(),
            requests: BTreeMap::new(),
            sites: BTreeMap::new(),
            files: BTreeMap::new(),
            causes: Causes::new(),
            began_ns: u64::MAX,
            ended_ns: 0,
            is_partial: false,
        }
    }
}

impl RowStats {
    /// The statistics of a call, of a part of the account or of requests, by the index of the cell.
    pub(crate) fn of_cell(&mut self, index: u32) -> &mut CallStats {
        let (all, index) = match index {
            wire::REQUESTS_BEGIN.. => (&mut self.requests, index - wire::REQUESTS_BEGIN),
            wire::CALL_INDICES.. => (&mut self.parts, index),
            _ => (&mut self.calls, index),
        };
        all.entry(index).or_default()
    }

    /// Adds another row's statistics, call by call. The earlier beginning and the later end remain.
    pub fn add(&mut self, other: &Self) {
        self.began_ns = self.began_ns.min(other.began_ns);
        self.ended_ns = self.ended_ns.max(other.ended_ns);
        self.is_partial |= other.is_partial;
        for (call, stats) in &other.calls {
            self.calls.entry(*call).or_default().add(stats);
        }
        for (part, stats) in &other.parts {
            self.parts.entry(*part).or_default().add(stats);
        }
        for (operation, stats) in &other.requests {
            self.requests.entry(*operation).or_default().add(stats);
        }
        for (key, site) in &other.sites {
            let sum = self.sites.entry(*key).or_default();
            sum.blocked_ns += site.blocked_ns;
            sum.sleeps += site.sleeps;
        }
        for (file, stats) in &other.files {
            self.files
                .entry(*file)
                .and_modify(|sum| sum.add(stats))
                .or_insert_with(|| stats.clone());
        }
        for (cause, stats) in &other.causes {
            self.causes.entry(cause.clone()).or_default().add(stats);
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
        let mut stats = CallStats::default();
        stats.add_since(&now, &last);
        assert_eq!(stats.histogram[3], 7);
        assert_eq!(stats.count, 7);
    }

    #[test]
    fn calls_parts_and_requests_are_apart() {
        let mut row = RowStats::default();
        row.of_cell(0).count = 1;
        row.of_cell(wire::CALL_INDICES - 1).count = 2;
        row.of_cell(wire::ACCOUNT_LIFE).count = 3;
        row.of_cell(wire::ACCOUNT_THROTTLED).count = 4;
        row.of_cell(wire::REQUESTS_BEGIN).count = 5;
        row.of_cell(wire::CELL_INDICES - 1).count = 6;
        let mut sum = row.clone();
        sum.add(&row);
        let counts = |all: &BTreeMap<u32, CallStats>| {
            Vec::from_iter(all.iter().map(|(index, stats)| (*index, stats.count)))
        };
        assert_eq!(counts(&sum.calls), [(0, 2), (wire::CALL_INDICES - 1, 4)]);
        let parts = [(wire::ACCOUNT_LIFE, 6), (wire::ACCOUNT_THROTTLED, 8)];
        assert_eq!(counts(&sum.parts), parts);
        assert_eq!(counts(&sum.requests), [(0, 10), (wire::IO_URING_OPERATIONS - 1, 12)]);
        assert_eq!(wire::REQUEST_UNKNOWN, wire::CELL_INDICES - 1);
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
