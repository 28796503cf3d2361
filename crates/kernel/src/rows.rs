//! Rows of a report: which session each belongs to, and how they are freed or handed over to a
//! parent session.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use libbpf_rs::{MapCore as _, MapFlags};
use zerocopy::FromBytes as _;

use crate::cpus;
use crate::gate::{Gate, unreserved_cells};
use crate::mapped_array::{atomic_field, field};
use crate::wire;

/// The session's rows, and those of sessions that took tasks over from it.
pub fn session_rows(gate: &Gate, session: u32) -> BTreeSet<u32> {
    let groups: Vec<_> = (0..gate.groups.entries()).map(|index| gate.groups.read(index)).collect();
    (1..gate.groups.entries())
        .filter(|index| {
            let mut group = &groups[*index as usize];
            // As long as the table: a chain of parents cannot be longer, whatever is being written
            // meanwhile.
            for _ in 0..groups.len() {
                if group.state != wire::ROW_FREE && group.session == session {
                    return true;
                }
                // A finished row may be on its way up: it counts in each session above.
                if group.state == wire::ROW_FREE
                    || group.parent == 0
                    || group.parent as usize >= groups.len()
                {
                    return false;
                }
                group = &groups[group.parent as usize];
            }
            false
        })
        .collect()
}

impl Gate {
    fn cell_entry(&self, group: u32, call: u32) -> &AtomicU32 {
        atomic_field!(self.cell_of, group, cell[call as usize])
    }

    /// The cells of a row: (call index, cell).
    pub(crate) fn cells_of(&self, group: u32) -> Vec<(u32, u32)> {
        (0..wire::CALL_INDICES)
            .filter_map(|call| {
                let entry = self.cell_entry(group, call).load(Ordering::Acquire);
                let cell = entry & wire::CELL_INDEX;
                (cell != 0).then_some((call, cell))
            })
            .collect()
    }

    /// Frees rows in which nothing counts any more, or hands them over.
    pub(crate) fn free_rows(&self, groups: &BTreeSet<u32>) {
        let mut freed = BTreeSet::new();
        for group in groups {
            let heir = self.parent_of(*group);
            self.reparent_children(*group, heir.unwrap_or(0));
            match heir {
                Some(heir) => self.hand_over_row(*group, heir),
                None => {
                    self.free_row(*group);
                    freed.insert(*group);
                }
            }
        }
        self.free_sites(&freed);
    }

    /// The parent row of a row, if its session lives.
    fn parent_of(&self, group: u32) -> Option<u32> {
        let parent = self.groups.read(group).parent;
        let session = self.groups.read(parent).session;
        (parent != 0 && self.sessions.read(session).used != 0).then_some(parent)
    }

    /// The rows of this session.
    pub(crate) fn rows_of(&self, session: u32) -> BTreeSet<u32> {
        let is_own = |index: &u32| {
            let group = self.groups.read(*index);
            group.state != wire::ROW_FREE && group.session == session
        };
        (1..self.groups.entries()).filter(is_own).collect()
    }

    /// Sessions in which rows of this one count as well.
    pub(crate) fn parent_sessions(&self, session: u32) -> BTreeSet<u32> {
        let heirs = self.rows_of(session).into_iter().filter_map(|group| self.parent_of(group));
        heirs.map(|heir| self.groups.read(heir).session).collect()
    }

    /// Gives the rows below a row its own parent row: the row itself is about to go.
    fn reparent_children(&self, group: u32, heir: u32) {
        for child in 1..self.groups.entries() {
            if self.groups.read(child).parent == group {
                atomic_field!(self.groups, child, parent).store(heir, Ordering::SeqCst);
            }
        }
    }

    /// Hands a row's statistics over to the session of its parent row.
    fn hand_over_row(&self, group: u32, heir: u32) {
        let heir = self.groups.read(heir);
        // In this order: a reader meanwhile still finds it below the sessions that it counts in.
        // Nothing counts in it any more.
        field!(self.groups, group, session).write(heir.session);
        field!(self.groups, group, parent).write(heir.parent);
        field!(self.groups, group, state).write(wire::ROW_DONE);
    }

    /// Whether nothing counts in the row any more.
    pub(crate) fn is_row_finished(&self, group: u32) -> bool {
        let group = self.groups.read(group);
        group.state == wire::ROW_DONE || group.threads <= 0
    }

    /// False as long as another session has to read what counted there.
    pub(crate) fn is_row_free(&self, group: u32) -> bool {
        self.groups.read(group).state == wire::ROW_FREE
    }

    /// Rows that other sessions have handed over to this one.
    pub fn rows_handed_over(&self, session: u32) -> BTreeSet<u32> {
        let is_done = |group: &u32| self.groups.read(*group).state == wire::ROW_DONE;
        self.rows_of(session).into_iter().filter(is_done).collect()
    }

    /// Frees a row. Nothing may count in it any more.
    fn free_row(&self, group: u32) {
        let cells = self.maps.get("lens_cells");
        let zero = vec![vec![0; size_of::<wire::cell>()]; cpus::possible()];
        for (call, cell) in self.cells_of(group) {
            self.cell_entry(group, call).store(0, Ordering::Release);
            if cells.update_percpu(&cell.to_ne_bytes(), &zero, MapFlags::ANY).is_ok() {
                let list = if cell < unreserved_cells() {
                    "lens_free_cells"
                } else {
                    "lens_free_reserved_cells"
                };
                // The queue cannot be full: it has room for every cell.
                let _ = self.maps.get(list).update(&[], &cell.to_ne_bytes(), MapFlags::ANY);
            }
        }
        self.groups.write(group, wire::row::default());
        if group < wire::ALLOCATABLE_ROWS {
            let _ = self.maps.get("free_rows").update(&[], &group.to_ne_bytes(), MapFlags::ANY);
        }
    }

    /// Removes the blocking sites of rows that were freed.
    fn free_sites(&self, groups: &BTreeSet<u32>) {
        let sites = self.maps.get("lens_sites");
        let stale: Vec<_> = sites
            .keys()
            .filter(|key| {
                wire::site_key::read_from_bytes(key).is_ok_and(|key| groups.contains(&key.row))
            })
            .collect();
        for key in stale {
            // If another process deletes meanwhile, the walk over the keys begins again: a key may
            // come twice.
            let _ = sites.delete(&key);
        }
    }
}
