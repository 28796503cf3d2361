//! The rows of `lens top`: a sample, grouped by what the user has chosen.

use std::borrow::Cow;
use std::collections::BTreeMap;

use kernel::lens::call_stats::{CallStats, RowStats, SiteStats};
use kernel::lens::files::FileStats;
use kernel::symbols::KernelSymbols;
use stats::histogram;

use super::super::build_report::one_call;
use super::super::call_table::shown_name;
use super::super::file_name;
use super::super::report::Call;
use super::level::TopLevel;
use super::live_lens::{Sample, SampleRow};
use crate::format::printable;

/// A longer name is cut off.
const MAX_NAME: usize = 40;
/// Of a longer name of a file, only the end is shown.
const MAX_FILE_NAME: usize = 60;

/// What a row stands for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowKey {
    Program(String),
    Process(u32),
    /// Its number, and when it began.
    Thread(u32, u64),
    Call(u32),
    Site(String),
    /// Its name, and the number of its file system.
    File(String, u32),
}

/// A row: what was counted, per second of the interval.
#[derive(Clone, Debug)]
pub struct TopRow {
    pub key: RowKey,
    pub name: String,
    /// Calls that ended; of a blocking site, sleeps.
    pub calls: f64,
    pub errors: f64,
    pub wall_ns: f64,
    pub cpu_ns: f64,
    pub blocked_ns: f64,
    pub runqueue_ns: f64,
    /// Of `wall_ns`: in calls that wait.
    pub in_waits_ns: f64,
    pub faults: f64,
    /// Of a file.
    pub read_bytes: f64,
    /// Of a file.
    pub written_bytes: f64,
    pub p50_ns: u64,
    pub p95_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
    /// Where it was blocked for the longest time.
    pub blocked_in: String,
}

impl TopRow {
    /// A row without values.
    fn empty(key: RowKey, name: &str) -> Self {
        Self {
            key,
            name: printable(name),
            calls: 0.0,
            errors: 0.0,
            wall_ns: 0.0,
            cpu_ns: 0.0,
            blocked_ns: 0.0,
            runqueue_ns: 0.0,
            in_waits_ns: 0.0,
            faults: 0.0,
            read_bytes: 0.0,
            written_bytes: 0.0,
            p50_ns: 0,
            p95_ns: 0,
            p99_ns: 0,
            max_ns: 0,
            blocked_in: String::new(),
        }
    }
}

/// What the rows are restricted to: everything that was chosen on the way to them.
#[derive(Clone, Default, Debug, PartialEq)]
pub struct Chosen {
    pub keys: Vec<(RowKey, String)>,
}

impl Chosen {
    fn has(&self, row: &SampleRow) -> bool {
        self.keys.iter().all(|(key, _)| match key {
            RowKey::Program(program) => row.program == *program,
            RowKey::Process(tgid) => row.name.tgid == *tgid,
            RowKey::Thread(pid, started) => (row.name.pid, row.name.started_ns) == (*pid, *started),
            RowKey::Call(_) | RowKey::Site(_) | RowKey::File(..) => true,
        })
    }

    /// The index of the chosen call.
    fn call(&self) -> Option<u32> {
        self.keys.iter().find_map(|(key, _)| match key {
            RowKey::Call(call) => Some(*call),
            _ => None,
        })
    }

    fn has_call(&self, slot: u32) -> bool {
        self.call().is_none_or(|call| call == slot)
    }
}

/// The rows of a level, in no order.
pub fn rows(
    sample: &Sample,
    level: TopLevel,
    chosen: &Chosen,
    symbols: &KernelSymbols,
) -> Vec<TopRow> {
    let seconds = sample.seconds();
    if level == TopLevel::File {
        return files(sample, chosen, seconds);
    }
    let mut groups: BTreeMap<RowKey, (String, RowStats)> = BTreeMap::new();
    for row in sample.rows.iter().filter(|row| chosen.has(row)) {
        for (slot, stats) in row.stats.calls.iter().filter(|(slot, _)| chosen.has_call(**slot)) {
            let (key, name) = match level {
                TopLevel::Program => (RowKey::Program(row.program.clone()), row.program.clone()),
                TopLevel::Process => {
                    (RowKey::Process(row.name.tgid), numbered(&row.program, row.name.tgid))
                }
                TopLevel::Thread => (
                    RowKey::Thread(row.name.pid, row.name.started_ns),
                    numbered(&row.name.command, row.name.pid),
                ),
                // Sites are taken from the calls, and files are not.
                TopLevel::Call | TopLevel::Site | TopLevel::File => {
                    (RowKey::Call(*slot), String::new())
                }
            };
            let (shown, sum) = groups.entry(key).or_default();
            *shown = name;
            sum.calls.entry(*slot).or_default().add(stats);
            for (site, stats) in row.stats.sites.range((*slot, 0)..=(*slot, u64::MAX)) {
                add_site(sum.sites.entry(*site).or_default(), stats);
            }
        }
    }
    let groups =
        groups.into_iter().map(|(key, (name, stats))| Group::of(key, name, &stats, symbols));
    if level == TopLevel::Site {
        return sites(&groups.collect::<Vec<_>>(), seconds);
    }
    groups.map(|group| group.row(seconds)).collect()
}

fn numbered(name: &str, number: u32) -> String {
    if number == 0 { name.to_owned() } else { format!("{name} ({number})") }
}

fn add_site(sum: &mut SiteStats, site: &SiteStats) {
    sum.blocked_ns += site.blocked_ns;
    sum.sleeps += site.sleeps;
}

/// The calls of a row, and their sum.
struct Group {
    key: RowKey,
    name: String,
    calls: Vec<Call>,
    sum: CallStats,
}

impl Group {
    fn of(key: RowKey, name: String, stats: &RowStats, symbols: &KernelSymbols) -> Self {
        let mut sum = CallStats::default();
        let mut calls = Vec::new();
        for (slot, call) in &stats.calls {
            sum.add(call);
            calls.push(one_call(*slot, call, stats, symbols));
        }
        let name = match (&key, calls.first()) {
            (RowKey::Call(_), Some(call)) => shown_name(&call.name, &call.abi),
            _ => printable(&name),
        };
        let name = match name.char_indices().nth(MAX_NAME) {
            Some((end, _)) => name[..end].to_owned(),
            None => name,
        };
        Self { key, name, calls, sum }
    }

    fn row(self, seconds: f64) -> TopRow {
        let sum =
            |part: fn(&Call) -> u64| self.calls.iter().map(part).sum::<u64>() as f64 / seconds;
        let quantile = |q| {
            let ns = histogram::quantile(&*self.sum.histogram, q, self.sum.max_ns);
            ns.map_or(0, |ns| ns.round() as u64)
        };
        let longest =
            self.calls.iter().flat_map(|call| &call.blocked_in).max_by_key(|site| site.ns);
        TopRow {
            calls: sum(|call| call.count),
            errors: sum(|call| call.errors.values().sum()),
            wall_ns: sum(|call| call.wall_ns),
            cpu_ns: sum(|call| call.cpu_ns),
            blocked_ns: sum(|call| call.blocked_ns),
            runqueue_ns: sum(|call| call.runqueue_ns),
            in_waits_ns: sum(|call| if call.is_wait { call.wall_ns } else { 0 }),
            faults: sum(|call| call.minor_faults + call.major_faults),
            p50_ns: quantile(0.50),
            p95_ns: quantile(0.95),
            p99_ns: quantile(0.99),
            read_bytes: 0.0,
            written_bytes: 0.0,
            max_ns: self.sum.max_ns,
            blocked_in: longest.map_or(String::new(), |site| printable(&site.function)),
            key: self.key,
            name: self.name,
        }
    }
}

/// The blocking sites of all these calls together.
fn sites(calls: &[Group], seconds: f64) -> Vec<TopRow> {
    let mut sites: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for site in calls.iter().flat_map(|group| &group.calls).flat_map(|call| &call.blocked_in) {
        let (ns, count) = sites.entry(&site.function).or_default();
        (*ns, *count) = (*ns + site.ns, *count + site.count);
    }
    let row = |(function, (ns, count)): (&str, (u64, u64))| TopRow {
        calls: count as f64 / seconds,
        blocked_ns: ns as f64 / seconds,
        ..TopRow::empty(RowKey::Site(function.into()), function)
    };
    sites.into_iter().map(row).collect()
}

/// The files that all these threads have used; of a chosen call, with its number and time only.
fn files(sample: &Sample, chosen: &Chosen, seconds: f64) -> Vec<TopRow> {
    let mut files: BTreeMap<(String, u32), FileStats> = BTreeMap::new();
    for row in sample.rows.iter().filter(|row| chosen.has(row)) {
        for (id, file) in &row.stats.files {
            let Some(used) = of_call(file, chosen.call()) else { continue };
            files.entry((file_name::name(id, file), id.device)).or_default().add(&used);
        }
    }
    let row = |((name, device), file): ((String, u32), FileStats)| {
        let per_second = |value: u64| value as f64 / seconds;
        TopRow {
            calls: per_second(file.calls),
            errors: per_second(file.errors),
            wall_ns: per_second(file.wall_ns),
            blocked_ns: per_second(file.blocked_ns),
            read_bytes: per_second(file.read_bytes),
            written_bytes: per_second(file.written_bytes),
            ..TopRow::empty(RowKey::File(name.clone(), device), &last_part(&name))
        }
    };
    files.into_iter().map(row).collect()
}

/// What this call did with a file. Its errors, bytes and sleeps are not known apart.
fn of_call(file: &FileStats, call: Option<u32>) -> Option<Cow<'_, FileStats>> {
    let Some(call) = call else { return Some(Cow::Borrowed(file)) };
    let (_, calls, wall_ns) = *file.by_call.iter().find(|(index, ..)| *index == call)?;
    Some(Cow::Owned(FileStats { calls, wall_ns, ..FileStats::default() }))
}

/// The end of a name that is too long, which says more about a path than its beginning.
fn last_part(name: &str) -> String {
    match name.char_indices().rev().nth(MAX_FILE_NAME - 1) {
        Some((at, _)) if at > 0 => format!("…{}", &name[at..]),
        _ => name.to_owned(),
    }
}
