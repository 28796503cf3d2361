//! Builds the lens' section of a report from the gate's call statistics.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use kernel::lens::call_stats::{CallStats, RowName, RowStats, SiteStats};
use kernel::lens::interval::SITE_OF_SLEEPERS;
use kernel::symbols::KernelSymbols;
use kernel::wire;
use stats::histogram;
use stats::interval::normal_mean_interval;

use super::account::account;
use super::cell_values::{errors, quantile};
use super::files::files;
use super::order::Order;
use super::report::{
    BlockedIn, COMMON, Call, FileCalls, HistogramOctave, LensReport, RowReport, ThreadAccount,
    UNNAMED, WallInterval,
};
use super::requests::requests;
use super::why_report::{PartyNames, of_site};
use crate::call_name::call_name;

/// The confidence of the intervals of sampled times.
const CONFIDENCE: f64 = 0.95;

/// What the rows of a report are.
pub struct ReportRows<'a> {
    /// One of `wire::per`.
    pub per: u32,
    /// The order of rows, and of the calls of each.
    pub order: Order,
    /// The names of the calls that have histograms.
    pub histograms: &'a [String],
    /// Whether calls are also shown by file.
    pub has_files: bool,
    /// The time in which calls counted.
    pub counted: Range<u64>,
    /// The names of threads that have not ended. A thread can change its name, so the gate knows
    /// only that of a thread that has ended.
    pub names: &'a BTreeMap<u32, String>,
    /// The time between two ticks of the kernel.
    pub tick_ns: u64,
}

/// The lens' section of a report, from the call statistics of rows, without single calls.
pub fn lens_report(
    stats: &BTreeMap<RowName, RowStats>,
    rows: &ReportRows<'_>,
    symbols: &KernelSymbols,
) -> LensReport {
    let mut total = RowStats::default();
    for row in stats.values() {
        total.add(row);
    }
    let groups = if rows.per == wire::PER_ALL { Vec::new() } else { rows.reports(stats, symbols) };
    let calls = rows.calls(&total, symbols);
    let of_groups = groups.iter().filter_map(|group| group.account.as_ref());
    LensReport {
        account: ThreadAccount::sum(of_groups).or_else(|| account(&total, &calls, rows.tick_ns)),
        io_uring: requests(&total, rows.order),
        files: rows.files(&total),
        calls,
        groups,
        ..LensReport::default()
    }
}

impl ReportRows<'_> {
    /// The rows of the report in their order.
    fn reports(
        &self,
        stats: &BTreeMap<RowName, RowStats>,
        symbols: &KernelSymbols,
    ) -> Vec<RowReport> {
        let mut merged: BTreeMap<RowName, (String, RowStats)> = BTreeMap::new();
        for (name, row) in stats {
            let (command, sum) = merged.entry(self.identity(name)).or_default();
            // A program may have changed its name: the last one counts.
            if command.is_empty() || row.ended_ns >= sum.ended_ns {
                command.clone_from(&name.command);
            }
            sum.add(row);
        }
        let mut rows: Vec<_> = merged
            .iter()
            .map(|(name, (command, row))| self.report(name, command, row, symbols))
            .collect();
        self.join_partial_accounts(&merged, &mut rows, symbols);
        // A thread that has made no call has an account.
        let has_lived = |row: &RowReport| row.account.as_ref().is_some_and(|of| of.lifetime_ns > 0);
        rows.retain(|row| !row.calls.is_empty() || !row.io_uring.is_empty() || has_lived(row));
        let sum = |row: &RowReport| row.calls.iter().map(|call| self.order.key(call)).sum::<u64>();
        rows.sort_by_key(|row| std::cmp::Reverse(sum(row)));
        rows
    }

    /// Some calls of a row may be in the common row, because no counters were left. Its account is
    /// not known without them, so the common row has the account of all these rows together.
    /// `rows`: the reports of `merged`, in the same order.
    fn join_partial_accounts(
        &self,
        merged: &BTreeMap<RowName, (String, RowStats)>,
        rows: &mut [RowReport],
        symbols: &KernelSymbols,
    ) {
        if !merged.values().any(|(_, row)| row.is_partial) {
            return;
        }
        let Some(common) = merged.keys().position(RowName::is_common) else { return };
        let mut joint = RowStats::default();
        for (index, (report, (_, row))) in rows.iter_mut().zip(merged.values()).enumerate() {
            if index == common || row.is_partial {
                joint.add(row);
                report.account = None;
            }
        }
        rows[common].account = account(&joint, &self.calls(&joint, symbols), self.tick_ns);
    }

    /// What rows of one process, thread or command have in common.
    fn identity(&self, name: &RowName) -> RowName {
        let mut name = name.clone();
        if name.command.is_empty() && !name.is_common() {
            name.command = UNNAMED.into();
        }
        match self.per {
            wire::PER_COMMAND => (name.pid, name.tgid, name.started_ns) = (0, 0, 0),
            // The number is that of the thread that was seen first.
            wire::PER_PROCESS => (name.pid, name.command) = (name.tgid, String::new()),
            _ => name.command = String::new(),
        }
        name
    }

    fn report(
        &self,
        name: &RowName,
        command: &str,
        row: &RowStats,
        symbols: &KernelSymbols,
    ) -> RowReport {
        let has_ended = row.ended_ns < self.counted.end;
        let command = self.names.get(&name.pid).filter(|_| !has_ended).map_or(command, |now| now);
        let began_ns = row.began_ns.clamp(self.counted.start, self.counted.end);
        let ended_ns = row.ended_ns.clamp(began_ns, self.counted.end);
        let calls = self.calls(row, symbols);
        RowReport {
            account: account(row, &calls, self.tick_ns),
            pid: name.tgid,
            tid: (self.per == wire::PER_THREAD).then_some(name.pid),
            command: match command {
                "" if name.is_common() => COMMON.into(),
                "" => UNNAMED.into(),
                command => command.into(),
            },
            elapsed_ns: ended_ns - began_ns,
            io_uring: requests(row, self.order),
            files: self.files(row),
            calls,
        }
    }

    fn files(&self, row: &RowStats) -> Vec<FileCalls> {
        if self.has_files { files(row, self.order) } else { Vec::new() }
    }

    /// All calls of a row in the order; of equal ones, the longest first.
    fn calls(&self, row: &RowStats, symbols: &KernelSymbols) -> Vec<Call> {
        let order = self.order;
        let mut calls: Vec<_> = row
            .calls
            .iter()
            .filter(|(_, call)| call.count + call.unfinished > 0)
            .map(|(slot, stats)| {
                let call = one_call(*slot, stats, row, symbols);
                let has_histogram = self.histograms.contains(&call.name);
                Call { histogram: has_histogram.then(|| octaves(stats)), ..call }
            })
            .collect();
        calls.sort_by(|a, b| {
            let by_key = order.key(b).cmp(&order.key(a)).then(b.wall_ns.cmp(&a.wall_ns));
            by_key.then(b.count.cmp(&a.count)).then(a.name.cmp(&b.name))
        });
        calls
    }
}

/// The wall times of a call's timed calls, by powers of two.
fn octaves(stats: &CallStats) -> Vec<HistogramOctave> {
    let octaves = histogram::octaves(&*stats.histogram).into_iter();
    octaves
        .map(|octave| HistogramOctave {
            from_ns: octave.low,
            to_ns: octave.high,
            count: octave.count,
        })
        .collect()
}

/// One call of a row.
pub fn one_call(slot: u32, stats: &CallStats, row: &RowStats, symbols: &KernelSymbols) -> Call {
    let (abi, name) = call_name(slot);
    let quantile = |q| quantile(stats, q);
    let (extra, wall_interval_ns) = estimate_untimed(stats);
    let off = stats.blocked_ns + stats.runqueue_ns;
    Call {
        is_wait: calls::is_wait(&name),
        name,
        abi: abi.as_str().into(),
        count: stats.count,
        errors: errors(stats),
        wall_ns: stats.wall_ns + extra,
        cpu_ns: (stats.wall_ns + extra).saturating_sub(off),
        blocked_ns: stats.blocked_ns,
        runqueue_ns: stats.runqueue_ns,
        p50_ns: quantile(0.50),
        p95_ns: quantile(0.95),
        p99_ns: quantile(0.99),
        max_ns: stats.max_ns,
        minor_faults: stats.minor_faults,
        major_faults: stats.major_faults,
        blocked_in: sites(slot, stats.blocked_ns, row, symbols),
        denied: stats.denied,
        unfinished: stats.unfinished,
        untimed: stats.skipped,
        wall_interval_ns,
        histogram: None,
    }
}

/// The estimated time of the calls that sampling did not time, and the interval of the total.
fn estimate_untimed(stats: &CallStats) -> (u64, Option<WallInterval>) {
    if stats.skipped == 0 || stats.sampled == 0 {
        return (0, None);
    }
    let skipped = stats.skipped as f64;
    let mean = stats.sampled_ns as f64 / stats.sampled as f64;
    let freedom = stats.sampled.saturating_sub(1).max(1) as f64;
    // The two terms nearly cancel only if the spread is small. As the sums are integers, the
    // subtraction loses no significant digit even then.
    let variance = ((stats.sampled_ns2 as f64 - stats.sampled_ns as f64 * mean) / freedom).max(0.0);
    let interval =
        normal_mean_interval(mean, variance, stats.sampled, CONFIDENCE).map(|interval| {
            let whole = |mean: f64| stats.wall_ns + (skipped * mean).max(0.0).round() as u64;
            WallInterval {
                low: whole(interval.low),
                high: whole(interval.high),
                confidence: CONFIDENCE,
            }
        });
    ((skipped * mean).round() as u64, interval)
}

/// The blocking sites of a call, by function. The site is not recorded for every sleep
/// (bpf/lens/hooks.bpf.h), so the times of sites are scaled to the blocked time, which is measured
/// at every sleep.
fn sites(slot: u32, blocked_ns: u64, row: &RowStats, symbols: &KernelSymbols) -> Vec<BlockedIn> {
    let mut by_function: BTreeMap<String, (SiteStats, BTreeSet<u64>)> = BTreeMap::new();
    for ((_, address), site) in row.sites.range((slot, 0)..=(slot, u64::MAX)) {
        let function = match symbols.function(*address) {
            Some(function) => function.to_owned(),
            None if *address == u64::from(wire::SITE_UNKNOWN) => "(unknown)".to_owned(),
            None if *address == SITE_OF_SLEEPERS => "(still asleep)".to_owned(),
            None => format!("{address:#x}"),
        };
        let (sum, addresses) = by_function.entry(function).or_default();
        sum.blocked_ns += site.blocked_ns;
        sum.sleeps += site.sleeps;
        addresses.insert(*address);
    }
    let seen: u64 = by_function.values().map(|(site, _)| site.blocked_ns).sum();
    let scale = if seen == 0 { 0.0 } else { blocked_ns as f64 / seen as f64 };
    let variables =
        if row.causes.is_empty() { KernelSymbols::none() } else { KernelSymbols::variables() };
    let names = PartyNames { functions: symbols, variables };
    let mut sites: Vec<_> = by_function
        .into_iter()
        .map(|(function, (site, addresses))| {
            let is_here = |address| addresses.contains(&address);
            let (woken_by, locks) = of_site(&row.causes, slot, is_here, scale, &names);
            let ns = (site.blocked_ns as f64 * scale).round() as u64;
            BlockedIn { function, ns, count: site.sleeps, woken_by, locks }
        })
        .collect();
    sites.sort_by(|a, b| b.ns.cmp(&a.ns).then(a.function.cmp(&b.function)));
    sites
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use stats::histogram;

    use super::*;

    /// Statistics of a row: a call and all parts of an account.
    fn any_row() -> impl Strategy<Value = RowStats> {
        let times = (0..1_000_u64, 0..1_000_u64, 0..1_000_u64);
        let parts = 1 + (wire::ACCOUNT_END - wire::ACCOUNT_LIFE) as usize;
        (prop::collection::vec(times, parts), any::<bool>()).prop_map(|(times, is_partial)| {
            let mut row = RowStats { is_partial, ..RowStats::default() };
            let all = times.iter().map(|(more, blocked_ns, runqueue_ns)| CallStats {
                count: 1,
                wall_ns: more + blocked_ns + runqueue_ns,
                blocked_ns: *blocked_ns,
                runqueue_ns: *runqueue_ns,
                minor_faults: *more,
                ..CallStats::default()
            });
            let mut all = all.collect::<Vec<_>>().into_iter();
            row.calls.extend(all.next().map(|call| (0, call)));
            row.parts.extend((wire::ACCOUNT_LIFE..).zip(all));
            row
        })
    }

    fn report_per(per: u32, stats: &BTreeMap<RowName, RowStats>) -> LensReport {
        let rows = ReportRows {
            per,
            order: Order::Wall,
            histograms: &[],
            has_files: false,
            counted: 0..0,
            names: &BTreeMap::new(),
            tick_ns: 4_000_000,
        };
        lens_report(stats, &rows, &KernelSymbols::default())
    }

    proptest! {
        #[test]
        fn groups_add_up_to_the_total(rows in prop::collection::vec(any_row(), 1..6)) {
            // The first one is the common row.
            let name = |pid: usize| RowName {
                tgid: pid as u32,
                pid: pid as u32,
                started_ns: pid as u64,
                command: if pid == 0 { String::new() } else { "worker".into() },
            };
            let stats: BTreeMap<_, _> =
                rows.into_iter().enumerate().map(|(pid, row)| (name(pid), row)).collect();
            for per in [wire::PER_PROCESS, wire::PER_THREAD, wire::PER_COMMAND] {
                let report = report_per(per, &stats);
                let accounts = report.groups.iter().filter_map(|group| group.account.as_ref());
                prop_assert_eq!(ThreadAccount::sum(accounts), report.account.clone());
                let account = report.account.expect("threads have lived");
                let lives = stats.values().map(|row| &row.parts[&wire::ACCOUNT_LIFE]);
                prop_assert_eq!(account.lifetime_ns, lives.map(|life| life.wall_ns).sum::<u64>());
                prop_assert_eq!(
                    account.parts().iter().map(|(_, ns)| ns).sum::<u64>(),
                    account.lifetime_ns
                );
            }
        }
    }

    #[test]
    fn rows_with_calls_in_the_common_row_share_its_account() {
        let call = |wall_ns| CallStats { count: 1, wall_ns, ..CallStats::default() };
        let of = |wall_ns, is_partial| {
            let mut row = RowStats { is_partial, ..RowStats::default() };
            row.calls.insert(0, call(wall_ns));
            row
        };
        let name = |pid: u32, command: &str| RowName {
            tgid: pid,
            pid,
            started_ns: 0,
            command: command.into(),
        };
        // The worker has lived 1000 ns, 900 of them in calls; the common row has most of these.
        let mut worker = of(100, true);
        worker.parts.insert(wire::ACCOUNT_LIFE, call(1000));
        let stats = BTreeMap::from([(name(0, ""), of(800, false)), (name(7, "worker"), worker)]);
        let report = report_per(wire::PER_PROCESS, &stats);
        let accounts: Vec<_> = report
            .groups
            .iter()
            .map(|group| group.account.as_ref().map(|account| (account.calls_ns, account.cpu_ns)))
            .collect();
        assert_eq!(accounts, [Some((900, 100)), None]);
    }

    #[test]
    fn only_the_common_row_has_no_task() {
        let name = |pid, command: &str| RowName {
            tgid: pid,
            pid,
            started_ns: pid.into(),
            command: command.into(),
        };
        let stats =
            [name(0, ""), name(7, ""), name(8, "works")].map(|name| (name, row())).into_iter();
        let stats = BTreeMap::from_iter(stats);
        for per in [wire::PER_PROCESS, wire::PER_THREAD, wire::PER_COMMAND] {
            let names: Vec<_> =
                report_per(per, &stats).groups.into_iter().map(|group| group.command).collect();
            assert_eq!(names, [COMMON, UNNAMED, "works"], "{per}");
        }
    }

    fn row() -> RowStats {
        let mut call = CallStats {
            count: 3,
            wall_ns: 900,
            blocked_ns: 500,
            runqueue_ns: 100,
            ..Default::default()
        };
        call.max_ns = 500;
        call.histogram[histogram::bucket(200)] = 2;
        call.histogram[histogram::bucket(500)] = 1;
        call.errors[2] = 1;
        call.errors[134] = 1;
        let mut row = RowStats::default();
        row.calls.insert(0, call);
        row.sites.insert((0, 0x10), SiteStats { blocked_ns: 30, sleeps: 1 });
        row.sites.insert((0, 0x20), SiteStats { blocked_ns: 10, sleeps: 1 });
        row.sites.insert((1, 0x20), SiteStats { blocked_ns: 99, sleeps: 1 });
        row
    }

    fn calls(histograms: &[String]) -> Vec<Call> {
        let rows = ReportRows {
            per: wire::PER_ALL,
            order: Order::Wall,
            histograms,
            has_files: false,
            counted: 0..0,
            names: &BTreeMap::new(),
            tick_ns: 4_000_000,
        };
        rows.calls(&row(), &KernelSymbols::default())
    }

    #[test]
    fn the_histogram_of_a_call_has_its_timed_calls() {
        assert!(calls(&["write".into()])[0].histogram.is_none());
        let call = &calls(&["read".into()])[0];
        let octaves = call.histogram.as_deref().expect("it is asked for");
        let octaves: Vec<_> =
            octaves.iter().map(|octave| (octave.from_ns, octave.to_ns, octave.count)).collect();
        assert_eq!(octaves, [(128, Some(256), 2), (256, Some(512), 1)]);
        assert_eq!(octaves.iter().map(|(.., count)| count).sum::<u64>(), call.count);
    }

    #[test]
    fn a_call_has_its_split_errors_and_sites() {
        let call = &calls(&[])[0];
        assert_eq!((call.name.as_str(), call.abi.as_str()), ("read", "x86-64"));
        assert_eq!(call.cpu_ns, 300);
        assert_eq!(call.errors, BTreeMap::from([("ENOENT".into(), 1), ("ERESTARTSYS".into(), 1)]));
        assert_eq!(call.max_ns, 500);
        let sites: Vec<_> =
            call.blocked_in.iter().map(|site| (site.function.as_str(), site.ns)).collect();
        assert_eq!(sites, [("0x10", 375), ("0x20", 125)]);
    }

    #[test]
    fn untimed_calls_are_estimated_from_sampled_ones() {
        let mut call = CallStats {
            count: 800,
            skipped: 700,
            sampled: 100,
            sampled_ns: 20_000,
            ..Default::default()
        };
        // Half of them take 190 ns, half 210: the standard error of the mean is 1 ns.
        call.sampled_ns2 = 50 * (190 * 190 + 210 * 210);
        // One of the calls was preempted, which does not affect the estimate of the skipped calls.
        call.wall_ns = 20_000 + 1_000_000;
        call.histogram[histogram::bucket(1_000_000)] = 1;
        let (extra, interval) = estimate_untimed(&call);
        assert_eq!(extra, 140_000);
        let interval = interval.unwrap();
        let half = 1.96 * 700.0 * 1.005;
        assert!((interval.low as f64 - (1_160_000.0 - half)).abs() < 2.0, "{interval:?}");
        assert!((interval.high as f64 - (1_160_000.0 + half)).abs() < 2.0, "{interval:?}");
    }
}
