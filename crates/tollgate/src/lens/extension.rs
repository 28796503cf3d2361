//! The lens of a running session.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use kernel::call_stats::{RowName, RowStats};
use kernel::clock::now_ns;
use kernel::counters::Collector;
use kernel::gate::{Gate, Lock};
use kernel::session::SessionOptions;
use kernel::symbols::KernelSymbols;
use kernel::wire;

use super::build_report::lens_report;
use super::report::LensReport;
use super::slow_calls::SlowCalls;

/// How often to read counters, some of which could otherwise wrap.
const READ_EVERY_NS: u64 = 60_000_000_000;

/// What the lens keeps in a session.
pub struct Lens {
    mask: u32,
    per: u32,
    collector: Collector,
    slow: SlowCalls,
    read_ns: u64,
}

/// All that the lens knows when the session's tasks were detached.
pub struct LensResult {
    stats: BTreeMap<RowName, RowStats>,
    per: u32,
    slow: SlowCalls,
    has_sites: bool,
}

impl Lens {
    pub fn new(options: &SessionOptions, began_ns: u64) -> Self {
        Self {
            mask: options.mask,
            per: options.per,
            collector: Collector::default(),
            slow: SlowCalls::new(began_ns),
            read_ns: began_ns,
        }
    }

    /// Restarts the elapsed time.
    pub fn begin(&mut self, began_ns: u64) {
        self.slow = SlowCalls::new(began_ns);
    }

    /// Adds a slow call.
    pub fn on_record(&mut self, record: &wire::slow_call) {
        self.slow.add_record(record);
    }

    /// Reads rows that have ended, and gives them back.
    pub fn finish_rows(&mut self, gate: &Gate, lock: &Lock, rows: &BTreeSet<u32>) -> Result<()> {
        Ok(self.collector.finish_rows(gate, lock, rows)?)
    }

    /// Reads the counters of all rows from time to time.
    pub fn tend(&mut self, gate: &Gate, session: u32) -> Result<()> {
        if now_ns() - self.read_ns > READ_EVERY_NS {
            self.collector.read(gate, session)?;
            self.read_ns = now_ns();
        }
        Ok(())
    }

    /// Reads all statistics, after the session's tasks were detached.
    pub fn finish(&mut self, gate: &Gate, session: u32) -> Result<LensResult> {
        let mut stats = self.collector.stats_by_row(gate, session)?;
        if self.mask & wire::LENS == 0 {
            // Another session's counts cover only the time of that session.
            stats.values_mut().for_each(|row| *row = RowStats::default());
        }
        // Slow calls, and sessions around or within this one, may record blocking sites that this
        // session did not request.
        let has_sites =
            self.mask & wire::LENS_SITES != 0 || stats.values().any(|row| !row.sites.is_empty());
        let slow = std::mem::replace(&mut self.slow, SlowCalls::new(0));
        Ok(LensResult { stats, per: self.per, slow, has_sites })
    }
}

impl LensResult {
    /// The part of the report, and notes about it.
    pub fn report(self) -> (LensReport, Vec<String>) {
        let mut notes = Vec::new();
        let symbols = if self.has_sites { KernelSymbols::get() } else { KernelSymbols::none() };
        if self.has_sites && symbols.is_empty() {
            notes.push("blocking sites have no names: /proc/kallsyms shows no addresses".into());
        }
        let (slow, slow_seen) = self.slow.finish();
        if slow_seen > slow.len() as u64 {
            notes.push(format!(
                "{slow_seen} slow calls were reported; the {} slowest of them are kept",
                slow.len()
            ));
        }
        (lens_report(&self.stats, self.per, slow, symbols), notes)
    }
}
