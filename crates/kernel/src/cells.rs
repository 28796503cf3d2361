//! Reads the gate's counters: a session's figures, over its life.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use libbpf_rs::{MapCore as _, MapFlags};

use crate::error::{Doing, Result};
use crate::figures::{GroupFigures, GroupName, Site};
use crate::gate::{Gate, Lock};
use crate::groups::session_groups;
use crate::wire;

/// Adds up a session's figures over its life: groups come and go, and small counters wrap.
#[derive(Default)]
pub struct Collector {
    /// Latest reading of each cell, per processor.
    last: HashMap<u32, Vec<wire::cell>>,
    open: HashMap<u32, GroupFigures>,
    finished: BTreeMap<GroupName, GroupFigures>,
}

fn cell_from(bytes: &[u8]) -> wire::cell {
    assert!(bytes.len() >= size_of::<wire::cell>(), "a cell of {} bytes", bytes.len());
    // SAFETY: long enough, and any bytes are a valid cell.
    unsafe { bytes.as_ptr().cast::<wire::cell>().read_unaligned() }
}

fn name_of(group: &wire::group) -> GroupName {
    let bytes: Vec<u8> = group.comm.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    GroupName { tgid: group.tgid, pid: group.pid, command: String::from_utf8_lossy(&bytes).into_owned() }
}

impl Collector {
    /// Reads everything the session's groups have; call it at the end, and every few minutes meanwhile.
    pub fn read(&mut self, gate: &Gate, session: u32) -> Result<()> {
        for group in session_groups(gate, session) {
            self.read_group(gate, group)?;
        }
        Ok(())
    }

    /// Reads groups for the last time and gives them back, to the gate or to the session they count in as well.
    pub fn finish_groups(&mut self, gate: &Gate, _lock: &Lock, groups: &BTreeSet<u32>) -> Result<()> {
        // One whose last thread had ended may have been given another meanwhile; it will be announced again.
        let groups = &groups.iter().copied().filter(|group| gate.is_over(*group)).collect();
        self.read_sites(gate, groups)?;
        for group in groups {
            self.read_group(gate, *group)?;
            let name = name_of(&gate.groups.read(*group));
            if let Some(figures) = self.open.remove(group) {
                self.finished.entry(name).or_default().add(&figures);
            }
            for (_, cell) in gate.cells_of(*group) {
                self.last.remove(&cell);
            }
        }
        gate.give_back(groups);
        Ok(())
    }

    /// All figures by name, most recent state; groups of the same name are added up.
    pub fn figures(&mut self, gate: &Gate, session: u32) -> Result<BTreeMap<GroupName, GroupFigures>> {
        self.read(gate, session)?;
        let groups = session_groups(gate, session);
        let mut all = self.finished.clone();
        self.read_sites(gate, &groups)?;
        for (group, figures) in &self.open {
            all.entry(name_of(&gate.groups.read(*group))).or_default().add(figures);
        }
        Ok(all)
    }

    fn read_group(&mut self, gate: &Gate, group: u32) -> Result<()> {
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
            let last = self.last.entry(cell).or_insert_with(|| vec![wire::cell::default(); now.len()]);
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
            let Some(value) = sites.lookup(&key, MapFlags::ANY).doing("reading its blocking sites")? else {
                continue;
            };
            let site = Site {
                blocked_ns: u64::from_ne_bytes(value[0..8].try_into().expect("8 bytes")),
                sleeps: u64::from_ne_bytes(value[8..16].try_into().expect("8 bytes")),
            };
            self.open.entry(group).or_default().sites.insert((call, address), site);
        }
        Ok(())
    }
}
