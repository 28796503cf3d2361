//! Reads the gate's counters, and adds them up to a session's statistics.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use libbpf_rs::{MapCore as _, MapFlags};
use zerocopy::FromBytes as _;

use crate::error::{ErrorContext, Result};
use crate::gate::{Gate, Lock};
use crate::lens::account::live_parts;
use crate::lens::call_stats::{RowName, RowStats, SiteStats};
use crate::lens::causes::{Cause, CauseStats};
use crate::rows::session_rows;
use crate::session::LiveThread;
use crate::wire;

/// Adds up a session's statistics over its life. It is needed because rows are freed and allocated
/// again, and because small counters wrap.
#[derive(Default)]
pub struct Collector {
    /// Latest reading of each cell, by processor.
    last: HashMap<u32, Vec<wire::cell>>,
    /// By row.
    open: HashMap<u32, RowStats>,
    finished: BTreeMap<RowName, RowStats>,
}

fn cell_from(bytes: &[u8]) -> wire::cell {
    let (cell, _) = wire::cell::read_from_prefix(bytes).expect("all bytes of a cell");
    cell
}

impl Gate {
    pub(super) fn row_name(&self, row: u32) -> RowName {
        let row = self.rows.read(row);
        let started_ns = row.started_ns;
        RowName { tgid: row.tgid, pid: row.pid, started_ns, command: wire::text(&row.comm) }
    }
}

impl Collector {
    /// Reads all rows of the session. This is to be called every few minutes, so that no counter
    /// wraps twice, and at the end.
    pub fn read(&mut self, gate: &Gate, session: u32) -> Result<()> {
        for row in session_rows(gate, session) {
            self.read_row(gate, row)?;
        }
        Ok(())
    }

    /// Reads rows of a session for the last time, and frees them or hands them over to their parent
    /// sessions. Rows that have threads again are left out.
    pub fn finish_rows(
        &mut self,
        gate: &Gate,
        _lock: &Lock,
        session: u32,
        rows: &BTreeSet<u32>,
    ) -> Result<()> {
        // A row whose last thread had ended may have got another thread meanwhile. The gate then
        // reports the row's end again.
        let is_finished = |row: &u32| gate.is_row_finished(session, *row);
        let rows: BTreeSet<_> = rows.iter().copied().filter(is_finished).collect();
        // Nothing counts in the rows below them either. Freeing these gives those other parents.
        let all = &gate.rows_below(&rows) | &rows;
        self.read_sites(gate, &all)?;
        self.read_causes(gate, &all)?;
        for row in &all {
            self.read_row(gate, *row)?;
            let entry = gate.rows.read(*row);
            let name = gate.row_name(*row);
            if let Some(mut stats) = self.open.remove(row) {
                (stats.began_ns, stats.ended_ns) = (entry.began_ns, entry.ended_ns);
                self.finished.entry(name).or_default().add(&stats);
            }
            for (_, cell) in gate.cells_of(*row) {
                self.last.remove(&cell);
            }
        }
        gate.free_rows(&rows);
        Ok(())
    }

    /// Adds the accounts of threads that have not ended. They are about to be detached.
    pub fn add_live(&mut self, threads: &[LiveThread]) {
        for thread in threads {
            let row = self.open.entry(thread.row).or_default();
            for (part, stats) in live_parts(thread) {
                row.of_cell(part).add(&stats);
            }
        }
    }

    /// Reads all rows, and returns all statistics since the session began. Rows of the same name
    /// are added up.
    pub fn stats_by_row(
        &mut self,
        gate: &Gate,
        session: u32,
    ) -> Result<BTreeMap<RowName, RowStats>> {
        self.read(gate, session)?;
        let rows = session_rows(gate, session);
        let mut all = self.finished.clone();
        self.read_sites(gate, &rows)?;
        self.read_causes(gate, &rows)?;
        for (row, stats) in &mut self.open {
            let entry = gate.rows.read(*row);
            stats.began_ns = entry.began_ns;
            stats.ended_ns = if entry.threads > 0 { u64::MAX } else { entry.ended_ns };
            all.entry(gate.row_name(*row)).or_default().add(stats);
        }
        Ok(all)
    }

    /// As [`Self::stats_by_row`], but only what was counted since the call before. The blocking
    /// sites are those since the session began.
    pub(super) fn take_stats(
        &mut self,
        gate: &Gate,
        session: u32,
    ) -> Result<BTreeMap<RowName, RowStats>> {
        let stats = self.stats_by_row(gate, session)?;
        self.finished.clear();
        self.open.clear();
        Ok(stats)
    }

    fn read_row(&mut self, gate: &Gate, row: u32) -> Result<()> {
        for (call, cell) in gate.cells_of(row) {
            let Some(values) = gate
                .maps
                .get("lens_cells")
                .lookup_percpu(&cell.to_ne_bytes(), MapFlags::ANY)
                .doing("reading the gate's counters")?
            else {
                continue;
            };
            let now: Vec<_> = values.iter().map(|bytes| cell_from(bytes)).collect();
            let last =
                self.last.entry(cell).or_insert_with(|| vec![wire::cell::default(); now.len()]);
            let stats = self.open.entry(row).or_default().of_cell(call);
            for (now, last) in now.iter().zip(last.iter()) {
                stats.add_since(now, last);
            }
            *last = now;
        }
        Ok(())
    }

    fn read_sites(&mut self, gate: &Gate, rows: &BTreeSet<u32>) -> Result<()> {
        let sites = gate.maps.get("lens_sites");
        for key in sites.keys() {
            let wire::site_key { address, call, row } =
                wire::site_key::read_from_bytes(&key).expect("all bytes of a key");
            if !rows.contains(&row) {
                continue;
            }
            let Some(value) = sites.lookup(&key, MapFlags::ANY).doing("reading blocking sites")?
            else {
                continue;
            };
            let wire::site_value { blocked_ns, sleeps } =
                wire::site_value::read_from_bytes(&value).expect("all bytes of a value");
            let site = SiteStats { blocked_ns, sleeps };
            self.open.entry(row).or_default().sites.insert((call, address), site);
        }
        Ok(())
    }

    fn read_causes(&mut self, gate: &Gate, rows: &BTreeSet<u32>) -> Result<()> {
        let causes = gate.maps.get("why_causes");
        for bytes in causes.keys() {
            let key = wire::why_key::read_from_bytes(&bytes).expect("all bytes of a key");
            if !rows.contains(&key.row) {
                continue;
            }
            let value = causes.lookup(&bytes, MapFlags::ANY).doing("reading causes of sleeps")?;
            let Some(value) = value else { continue };
            let value = wire::why_value::read_from_bytes(&value).expect("all bytes of a value");
            let row = self.open.entry(key.row).or_default();
            row.causes.insert(Cause::new(&key), CauseStats::new(&value));
        }
        Ok(())
    }
}
