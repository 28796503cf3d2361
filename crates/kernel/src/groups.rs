//! Groups, the rows of a report: whose they are, and how they are given back or left to an heir.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use libbpf_rs::{MapCore as _, MapFlags};

use crate::gate::{Gate, cells_for_all};
use crate::mapping::atomic_field;
use crate::wire;

/// The session's groups, and those of sessions that took tasks over from it.
pub fn session_groups(gate: &Gate, session: u32) -> BTreeSet<u32> {
    let groups: Vec<_> = (0..gate.groups.entries()).map(|index| gate.groups.read(index)).collect();
    (1..gate.groups.entries())
        .filter(|index| {
            let mut group = &groups[*index as usize];
            // As long as the table: a chain cannot be longer, whatever is being written meanwhile.
            for _ in 0..groups.len() {
                if group.state != wire::GROUP_FREE && group.session == session {
                    return true;
                }
                // One that is done may be on its way up: it counts in each session above.
                if group.state == wire::GROUP_FREE
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
        let table = self.cell_of.entry(group);
        // SAFETY: an aligned u32 within the mapping (the index is checked), which both sides access atomically.
        unsafe { AtomicU32::from_ptr(&raw mut (*table).cell[call as usize]) }
    }

    /// The cells of a group: (call slot, cell).
    pub(crate) fn cells_of(&self, group: u32) -> Vec<(u32, u32)> {
        (0..wire::CALL_SLOTS)
            .filter_map(|call| {
                let entry = self.cell_entry(group, call).load(Ordering::Acquire);
                let cell = entry & wire::CELL_INDEX;
                (cell != 0).then_some((call, cell))
            })
            .collect()
    }

    /// Gives groups back in which nothing counts any more.
    pub(crate) fn give_back(&self, groups: &BTreeSet<u32>) {
        let mut freed = BTreeSet::new();
        for group in groups {
            let heir = self.heir_of(*group);
            self.move_children(*group, heir.unwrap_or(0));
            match heir {
                Some(heir) => self.hand_over(*group, heir),
                None => {
                    self.free_group(*group);
                    freed.insert(*group);
                }
            }
        }
        self.free_sites(&freed);
    }

    /// The group that a group counts in as well, if its session lives.
    fn heir_of(&self, group: u32) -> Option<u32> {
        let parent = self.groups.read(group).parent;
        let session = self.groups.read(parent).session;
        (parent != 0 && self.sessions.read(session).used != 0).then_some(parent)
    }

    /// Groups whose session this is.
    pub(crate) fn groups_of(&self, session: u32) -> BTreeSet<u32> {
        let is_own = |index: &u32| {
            let group = self.groups.read(*index);
            group.state != wire::GROUP_FREE && group.session == session
        };
        (1..self.groups.entries()).filter(is_own).collect()
    }

    /// Sessions in which groups of this one count as well.
    pub(crate) fn heirs_of(&self, session: u32) -> BTreeSet<u32> {
        let heirs = self.groups_of(session).into_iter().filter_map(|group| self.heir_of(group));
        heirs.map(|heir| self.groups.read(heir).session).collect()
    }

    /// What counted in a group as well now counts in its heir: the group itself is about to go.
    fn move_children(&self, group: u32, heir: u32) {
        for child in 1..self.groups.entries() {
            if self.groups.read(child).parent == group {
                atomic_field!(self.groups, child, parent).store(heir, Ordering::SeqCst);
            }
        }
    }

    /// Leaves a group's figures to the session of its heir.
    fn hand_over(&self, group: u32, heir: u32) {
        let heir = self.groups.read(heir);
        let place = self.groups.entry(group);
        // SAFETY: aligned fields of the mapped entry, each written as a whole; nothing counts in it any more.
        unsafe {
            // In this order: whoever looks meanwhile still finds it below the sessions it counts in.
            (&raw mut (*place).session).write_volatile(heir.session);
            (&raw mut (*place).parent).write_volatile(heir.parent);
            (&raw mut (*place).state).write_volatile(wire::GROUP_DONE);
        }
    }

    /// Whether nothing counts in the group any more.
    pub(crate) fn is_over(&self, group: u32) -> bool {
        let group = self.groups.read(group);
        group.state == wire::GROUP_DONE || group.threads <= 0
    }

    /// False as long as somebody else has to read what counted there.
    pub(crate) fn group_is_free(&self, group: u32) -> bool {
        self.groups.read(group).state == wire::GROUP_FREE
    }

    /// Groups that others have left to this session.
    pub fn groups_handed_over(&self, session: u32) -> BTreeSet<u32> {
        let is_done = |group: &u32| self.groups.read(*group).state == wire::GROUP_DONE;
        self.groups_of(session).into_iter().filter(is_done).collect()
    }

    /// Nothing may count in the group any more.
    fn free_group(&self, group: u32) {
        let cells = self.maps.get("cells");
        let zero = vec![vec![0; size_of::<wire::cell>()]; crate::cpus::possible()];
        for (call, cell) in self.cells_of(group) {
            self.cell_entry(group, call).store(0, Ordering::Release);
            if cells.update_percpu(&cell.to_ne_bytes(), &zero, MapFlags::ANY).is_ok() {
                let list = if cell < cells_for_all() { "free_cells" } else { "free_kept_cells" };
                // A full queue cannot be: it has room for every cell.
                let _ = self.maps.get(list).update(&[], &cell.to_ne_bytes(), MapFlags::ANY);
            }
        }
        self.groups.write(group, wire::group::default());
        if group < wire::ROWS {
            let _ = self.maps.get("free_groups").update(&[], &group.to_ne_bytes(), MapFlags::ANY);
        }
    }

    /// Forgets the blocking sites of groups that were given back.
    fn free_sites(&self, groups: &BTreeSet<u32>) {
        let sites = self.maps.get("sites");
        let stale: Vec<_> = sites
            .keys()
            .filter(|key| groups.contains(&u32::from_ne_bytes(key[12..16].try_into().expect("4 bytes"))))
            .collect();
        for key in stale {
            // Where another process deletes meanwhile, the walk over the keys begins anew: one may come twice.
            let _ = sites.delete(&key);
        }
    }
}
