//! Reads the gate's counters: a session's statistics over its life.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use libbpf_rs::{MapCore as _, MapFlags};
use zerocopy::FromBytes as _;

use crate::error::{ErrorContext, Result};
use crate::gate::{Gate, Lock};
use crate::lens::call_stats::{RowName, RowStats, SiteStats};
use crate::rows::session_rows;
use crate::wire;

/// Adds up a session's statistics over its life: rows are allocated and freed, and small counters
/// wrap.
#[derive(Default)]
pub struct Collector {
    /// Latest reading of each cell, per processor.
    last: HashMap<u32, Vec<wire::cell>>,
    open: HashMap<u32, RowStats>,
    finished: BTreeMap<RowName, RowStats>,
}

fn cell_from(bytes: &[u8]) -> wire::cell {
    let (cell, _) = wire::cell::read_from_prefix(bytes).expect("all bytes of a cell");
    cell
}

fn row_name(group: &wire::row) -> RowName {
    RowName { tgid: group.tgid, pid: group.pid, command: wire::text(&group.comm) }
}

impl Collector {
    /// Reads all rows of the session; to be called at the end, and every few minutes before.
    pub fn read(&mut self, gate: &Gate, session: u32) -> Result<()> {
        for group in session_rows(gate, session) {
            self.read_row(gate, group)?;
        }
        Ok(())
    }

    /// Reads rows for the last time, and frees them or hands them over to the session that they
    /// count in as well.
    pub fn finish_rows(&mut self, gate: &Gate, _lock: &Lock, groups: &BTreeSet<u32>) -> Result<()> {
        // A row whose last thread had ended may have got another one meanwhile; its end will be
        // reported again.
        let groups = &groups.iter().copied().filter(|group| gate.is_row_finished(*group)).collect();
        self.read_sites(gate, groups)?;
        for group in groups {
            self.read_row(gate, *group)?;
            let name = row_name(&gate.groups.read(*group));
            if let Some(figures) = self.open.remove(group) {
                self.finished.entry(name).or_default().add(&figures);
            }
            for (_, cell) in gate.cells_of(*group) {
                self.last.remove(&cell);
            }
        }
        gate.free_rows(groups);
        Ok(())
    }

    /// All statistics by name, as of now; rows of the same name are added up.
    pub fn stats_by_row(
        &mut self,
        gate: &Gate,
        session: u32,
    ) -> Result<BTreeMap<RowName, RowStats>> {
        self.read(gate, session)?;
        let groups = session_rows(gate, session);
        let mut all = self.finished.clone();
        self.read_sites(gate, &groups)?;
        for (group, figures) in &self.open {
            all.entry(row_name(&gate.groups.read(*group))).or_default().add(figures);
        }
        Ok(all)
    }

    fn read_row(&mut self, gate: &Gate, group: u32) -> Result<()> {
        for (call, cell) in gate.cells_of(group) {
            let Some(values) = gate
                .maps
                .get("lens_cells")
                .lookup_percpu(&cell.to_ne_bytes(), MapFlags::ANY)
                .doing("reading its counters")?
            else {
                continue;
            };
            let now: Vec<_> = values.iter().map(|bytes| cell_from(bytes)).collect();
            let last =
                self.last.entry(cell).or_insert_with(|| vec![wire::cell::default(); now.len()]);
            let figures = self.open.entry(group).or_default().calls.entry(call).or_default();
            for (now, last) in now.iter().zip(last.iter()) {
                figures.add_since(now, last);
            }
            *last = now;
        }
        Ok(())
    }

    fn read_sites(&mut self, gate: &Gate, groups: &BTreeSet<u32>) -> Result<()> {
        let sites = gate.maps.get("lens_sites");
        for key in sites.keys() {
            let wire::site_key { address, call, row } =
                wire::site_key::read_from_bytes(&key).expect("all bytes of a key");
            if !groups.contains(&row) {
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
}
