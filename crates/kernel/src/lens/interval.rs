//! What was counted since the reading before, for views that are refreshed while a session runs.

use std::collections::{BTreeMap, BTreeSet};

use stats::histogram;

use super::call_stats::{CallStats, RowName, RowStats, SiteStats};
use super::counters::Collector;
use super::files::{FileId, FileStats};
use crate::clock::now_ns;
use crate::error::Result;
use crate::gate::{Gate, Lock};
use crate::session::LiveThread;

/// The times so far of the calls that a row's threads are in, by call index.
type CallsInProgress = BTreeMap<u32, CallStats>;

/// Blocking sites by call and address.
type Sites = BTreeMap<(u32, u64), SiteStats>;

type Files = BTreeMap<FileId, FileStats>;

/// The address that stands for the blocking sites of sleeps that have not ended: the gate takes the
/// stack when a thread wakes up.
pub const SITE_OF_SLEEPERS: u64 = 0;

/// What was counted in an interval.
pub struct IntervalStats {
    /// The statistics of rows. The longest times are estimates, because the gate keeps only those
    /// since the rows began.
    pub rows: BTreeMap<RowName, RowStats>,
    /// The number of threads in the session.
    pub threads: usize,
    /// Until when the times of calls in progress count.
    pub ended_ns: u64,
}

/// Reads the statistics of intervals. Times of a call count in the intervals in which they pass,
/// also if the call has not ended.
#[derive(Default)]
pub struct IntervalReader {
    collector: Collector,
    /// As of the reading before.
    in_progress: BTreeMap<RowName, CallsInProgress>,
    sites: BTreeMap<RowName, Sites>,
    files: BTreeMap<RowName, Files>,
}

impl IntervalReader {
    /// As [`Collector::finish_rows`].
    pub fn finish_rows(
        &mut self,
        gate: &Gate,
        lock: &Lock,
        session: u32,
        rows: &BTreeSet<u32>,
    ) -> Result<()> {
        self.collector.finish_rows(gate, lock, session, rows)
    }

    /// What was counted since the reading before. `began_ns`: when the session began to count.
    pub fn read(&mut self, gate: &Gate, session: u32, began_ns: u64) -> Result<IntervalStats> {
        let mut rows = self.collector.take_stats(gate, session)?;
        let now = now_ns();
        let mut in_progress: BTreeMap<RowName, CallsInProgress> = BTreeMap::new();
        let threads = gate.live_threads(session);
        for thread in &threads {
            if let Some((call, time)) = call_in_progress(thread, began_ns, now) {
                let row = in_progress.entry(gate.row_name(session, thread.row)).or_default();
                row.entry(call).or_default().add(&time);
            }
        }
        for row in rows.values_mut() {
            row.calls.values_mut().for_each(estimate_max);
        }
        self.sites = sites_since(&mut rows, &self.sites);
        self.files = files_since(&mut rows, &self.files);
        add_in_progress(&mut rows, &in_progress, &self.in_progress);
        self.in_progress = in_progress;
        Ok(IntervalStats { rows, threads: threads.len(), ended_ns: now })
    }
}

/// The longest time in the interval, by the histogram. The longest time since the row began is a
/// bound.
fn estimate_max(stats: &mut CallStats) {
    let longest = histogram::quantile(&*stats.histogram, 1.0, stats.max_ns);
    stats.max_ns = longest.map_or(0, |ns| ns.round() as u64);
}

/// The time since a call began or, if it began before, since the session did; `None` if it is not
/// known when it began.
fn call_in_progress(thread: &LiveThread, began_ns: u64, now: u64) -> Option<(u32, CallStats)> {
    let (call, entered_ns) = thread.call.filter(|(_, entered_ns)| *entered_ns != 0)?;
    let (hot, switch) = (&thread.state.lens, &thread.state.lens_switch);
    let wall_ns = now.saturating_sub(entered_ns.max(began_ns));
    let off_now = if hot.is_off_cpu == 0 { 0 } else { now.saturating_sub(switch.switched_out_ns) };
    let off_before = hot.off_ns;
    // What the scheduler has added since the last switch out belongs to a later wait.
    let waited_before =
        switch.run_delay_last.saturating_sub(switch.run_delay_first).min(off_before);
    let (blocked, waited) = match hot.is_asleep {
        0 => (off_before - waited_before, waited_before + off_now),
        _ => (off_before - waited_before + off_now, waited_before),
    };
    let blocked_ns = blocked.min(wall_ns);
    let runqueue_ns = waited.min(wall_ns - blocked_ns);
    Some((call, CallStats { wall_ns, blocked_ns, runqueue_ns, ..CallStats::default() }))
}

/// Adds the times of calls in progress, and subtracts what intervals before have of them: the whole
/// time of a call is counted when it ends.
fn add_in_progress(
    rows: &mut BTreeMap<RowName, RowStats>,
    now: &BTreeMap<RowName, CallsInProgress>,
    before: &BTreeMap<RowName, CallsInProgress>,
) {
    for (name, calls) in now {
        let row = rows.entry(name.clone()).or_default();
        for (call, time) in calls {
            row.calls.entry(*call).or_default().add(time);
            let had = before.get(name).and_then(|calls| calls.get(call));
            let blocked_ns = time.blocked_ns.saturating_sub(had.map_or(0, |had| had.blocked_ns));
            if blocked_ns > 0 {
                let site = SiteStats { blocked_ns, sleeps: 0 };
                row.sites.insert((*call, SITE_OF_SLEEPERS), site);
            }
        }
    }
    for (name, calls) in before {
        let Some(row) = rows.get_mut(name) else { continue };
        for (call, time) in calls {
            let Some(stats) = row.calls.get_mut(call) else { continue };
            // A call that did not return is counted nowhere, and a call may end between the
            // readings of the counters and of the threads.
            stats.wall_ns = stats.wall_ns.saturating_sub(time.wall_ns);
            stats.blocked_ns = stats.blocked_ns.saturating_sub(time.blocked_ns).min(stats.wall_ns);
            let rest = stats.wall_ns - stats.blocked_ns;
            stats.runqueue_ns = stats.runqueue_ns.saturating_sub(time.runqueue_ns).min(rest);
        }
    }
}

/// Subtracts from the blocking sites what they had before. Returns what they have now.
fn sites_since(
    rows: &mut BTreeMap<RowName, RowStats>,
    before: &BTreeMap<RowName, Sites>,
) -> BTreeMap<RowName, Sites> {
    let subtract = |site: &mut SiteStats, had: &SiteStats| {
        site.blocked_ns = site.blocked_ns.saturating_sub(had.blocked_ns);
        site.sleeps = site.sleeps.saturating_sub(had.sleeps);
    };
    values_since(rows, before, |row| &mut row.sites, subtract, |site| site.sleeps)
}

/// The same for the calls by file.
fn files_since(
    rows: &mut BTreeMap<RowName, RowStats>,
    before: &BTreeMap<RowName, Files>,
) -> BTreeMap<RowName, Files> {
    values_since(rows, before, |row| &mut row.files, FileStats::subtract, |file| file.calls)
}

/// Subtracts from values of rows, of which the gate keeps the sums, what they had before. Leaves
/// out those to which nothing was added. Returns what the values have now.
fn values_since<K: Ord + Clone, V: Clone>(
    rows: &mut BTreeMap<RowName, RowStats>,
    before: &BTreeMap<RowName, BTreeMap<K, V>>,
    values_of: fn(&mut RowStats) -> &mut BTreeMap<K, V>,
    subtract: impl Fn(&mut V, &V),
    number: fn(&V) -> u64,
) -> BTreeMap<RowName, BTreeMap<K, V>> {
    let mut now = BTreeMap::new();
    for (name, row) in rows {
        let values = values_of(row);
        if values.is_empty() {
            continue;
        }
        now.insert(name.clone(), values.clone());
        let before = before.get(name);
        for (key, value) in &mut *values {
            if let Some(had) = before.and_then(|values| values.get(key)) {
                subtract(value, had);
            }
        }
        values.retain(|_, value| number(value) > 0);
    }
    now
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire;

    fn name(pid: u32) -> RowName {
        RowName { tgid: pid, pid, started_ns: 1, command: "worker".into() }
    }

    fn row(call: u32, wall_ns: u64, blocked_ns: u64) -> RowStats {
        let mut row = RowStats::default();
        row.calls.insert(call, CallStats { wall_ns, blocked_ns, ..CallStats::default() });
        row
    }

    #[test]
    fn a_call_counts_in_the_intervals_in_which_its_time_passes() {
        // A read of 25 ms, which begins 5 ms before the first reading.
        let so_far = |ns: u64| BTreeMap::from([(name(1), row(0, ns, ns / 2).calls)]);
        let none = BTreeMap::new();
        let mut times = Vec::new();
        for (counted, now, before) in
            [(0, so_far(5), none.clone()), (0, so_far(15), so_far(5)), (25, none, so_far(15))]
        {
            let mut rows = BTreeMap::new();
            if counted > 0 {
                rows.insert(name(1), row(0, counted, counted / 2));
            }
            add_in_progress(&mut rows, &now, &before);
            let row = &rows[&name(1)];
            let asleep = row.sites.get(&(0, SITE_OF_SLEEPERS)).map(|site| site.blocked_ns);
            times.push((row.calls[&0].wall_ns, row.calls[&0].blocked_ns, asleep));
        }
        assert_eq!(times, [(5, 2, Some(2)), (10, 5, Some(5)), (10, 5, None)]);
    }

    #[test]
    fn a_call_that_did_not_return_takes_no_time_from_others() {
        let before = BTreeMap::from([(name(1), row(0, 50, 40).calls)]);
        let mut rows = BTreeMap::from([(name(1), row(0, 10, 10))]);
        add_in_progress(&mut rows, &BTreeMap::new(), &before);
        let stats = &rows[&name(1)].calls[&0];
        assert_eq!((stats.wall_ns, stats.blocked_ns, stats.runqueue_ns), (0, 0, 0));
        // The row has ended.
        add_in_progress(&mut BTreeMap::new(), &BTreeMap::new(), &before);
    }

    #[test]
    fn the_time_of_a_call_is_that_within_the_session() {
        let mut state = wire::thread_state::default();
        state.lens.off_ns = 30;
        state.lens.is_off_cpu = 1;
        state.lens.is_asleep = 1;
        state.lens_switch.switched_out_ns = 160;
        (state.lens_switch.run_delay_first, state.lens_switch.run_delay_last) = (7, 17);
        let thread = LiveThread::of_test(Some((0, 100)), state, wire::lens_life::default());
        let split = |thread: &LiveThread, began_ns| {
            let (_, stats) = call_in_progress(thread, began_ns, 200).expect("a time");
            (stats.wall_ns, stats.blocked_ns, stats.runqueue_ns)
        };
        assert_eq!(split(&thread, 0), (100, 60, 10));
        assert_eq!(split(&thread, 150), (50, 50, 0));
        state.lens.is_asleep = 0;
        let thread = LiveThread { state, ..thread };
        assert_eq!(split(&thread, 0), (100, 20, 50));
        let unknown = LiveThread { call: Some((0, 0)), ..thread };
        assert!(call_in_progress(&unknown, 0, 200).is_none());
    }

    #[test]
    fn sites_have_what_was_added() {
        let with_sites = |sleeps: u64| {
            let mut row = RowStats::default();
            let site = SiteStats { blocked_ns: 10 * sleeps, sleeps };
            row.sites.insert((0, 0x10), site);
            row.sites.insert((0, 0x20), SiteStats { blocked_ns: 5, sleeps: 1 });
            BTreeMap::from([(name(1), row)])
        };
        let mut rows = with_sites(2);
        let before = sites_since(&mut rows, &BTreeMap::new());
        assert_eq!(rows[&name(1)].sites.len(), 2);
        let mut rows = with_sites(5);
        sites_since(&mut rows, &before);
        let sites = &rows[&name(1)].sites;
        assert_eq!(sites.len(), 1);
        assert_eq!((sites[&(0, 0x10)].sleeps, sites[&(0, 0x10)].blocked_ns), (3, 30));
    }

    #[test]
    fn files_have_what_was_added() {
        let with_files = |calls: u64| {
            let mut row = RowStats::default();
            let file = |calls| FileStats { calls, ..FileStats::default() };
            row.files.insert(FileId { inode: 1, ..FileId::default() }, file(calls));
            row.files.insert(FileId { inode: 2, ..FileId::default() }, file(1));
            BTreeMap::from([(name(1), row)])
        };
        let mut rows = with_files(2);
        let before = files_since(&mut rows, &BTreeMap::new());
        assert_eq!(rows[&name(1)].files.len(), 2);
        let mut rows = with_files(5);
        files_since(&mut rows, &before);
        let files: Vec<_> = rows[&name(1)].files.iter().collect();
        assert_eq!(files.len(), 1);
        assert_eq!((files[0].0.inode, files[0].1.calls), (1, 3));
    }

    #[test]
    fn the_longest_time_is_that_of_the_interval() {
        let mut stats = CallStats { max_ns: 1_000_000, ..CallStats::default() };
        estimate_max(&mut stats);
        assert_eq!(stats.max_ns, 0);
        (stats.max_ns, stats.histogram[histogram::bucket(2000)]) = (1_000_000, 1);
        estimate_max(&mut stats);
        assert!((1900..2100).contains(&stats.max_ns), "{}", stats.max_ns);
    }
}
