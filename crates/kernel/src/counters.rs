//! Reads the gate's counters: a session's statistics over its life.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use libbpf_rs::{MapCore as _, MapFlags};

use crate::call_stats::{RowName, RowStats, SiteStats};
use crate::error::{ErrorContext, Result};
use crate::gate::{Gate, Lock};
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
    assert!(bytes.len() >= size_of::<wire::cell>(), "a cell of {} bytes", bytes.len());
    // SAFETY: long enough, and any bytes are a valid cell.
    unsafe { bytes.as_ptr().cast::<wire::cell>().read_unaligned() }
}

fn row_name(group: &wire::group) -> RowName {
    let bytes: Vec<u8> = group.comm.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    RowName {
        tgid: group.tgid,
        pid: group.pid,
        command: String::from_utf8_lossy(&bytes).into_owned(),
    }
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
                .get("cells")
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
        let sites = gate.maps.get("sites");
        for key in sites.keys() {
            let address = u64::from_ne_bytes(key[0..8].try_into().expect("8 bytes"));
            let call = u32::from_ne_bytes(key[8..12].try_into().expect("4 bytes"));
            let group = u32::from_ne_bytes(key[12..16].try_into().expect("4 bytes"));
            if !groups.contains(&group) {
                continue;
            }
            let Some(value) = sites.lookup(&key, MapFlags::ANY).doing("reading blocking sites")?
            else {
                continue;
            };
            let site = SiteStats {
                blocked_ns: u64::from_ne_bytes(value[0..8].try_into().expect("8 bytes")),
                sleeps: u64::from_ne_bytes(value[8..16].try_into().expect("8 bytes")),
            };
            self.open.entry(group).or_default().sites.insert((call, address), site);
        }
        Ok(())
    }
}
