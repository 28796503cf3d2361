//! The figures: what the gate counted, per group and call.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};

use libbpf_rs::{MapCore as _, MapFlags};

use crate::error::{Doing, Result};
use crate::gate::{Gate, Lock, cells_for_all};
use crate::mapping::atomic_field;
use crate::wire;

/// What is known of one call, in one group or in several together. Times in nanoseconds.
#[derive(Debug, Clone)]
pub struct CallFigures {
    pub count: u64,
    pub denied: u64,
    pub unfinished: u64,
    pub wall_ns: u64,
    pub blocked_ns: u64,
    pub runqueue_ns: u64,
    pub max_ns: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub sampled: u64,
    pub sampled_ns: u64,
    pub sampled_ns2: u64,
    pub skipped: u64,
    /// By error slot: see [`errno_of_slot`].
    pub errors: [u64; wire::ERRNO_SLOTS as usize],
    pub histogram: Box<[u64; wire::HISTOGRAM_BUCKETS as usize]>,
}

impl Default for CallFigures {
    fn default() -> Self {
        Self {
            count: 0,
            denied: 0,
            unfinished: 0,
            wall_ns: 0,
            blocked_ns: 0,
            runqueue_ns: 0,
            max_ns: 0,
            minor_faults: 0,
            major_faults: 0,
            sampled: 0,
            sampled_ns: 0,
            sampled_ns2: 0,
            skipped: 0,
            errors: [0; wire::ERRNO_SLOTS as usize],
            histogram: Box::new([0; wire::HISTOGRAM_BUCKETS as usize]),
        }
    }
}

/// The errno that an error slot stands for; 0: one beyond the known range.
pub fn errno_of_slot(slot: usize) -> i32 {
    if slot < wire::ERRNO_PLAIN as usize {
        slot as i32
    } else {
        (slot as u32 - wire::ERRNO_PLAIN + wire::ERRNO_RESTART_FIRST) as i32
    }
}

impl CallFigures {
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.denied += other.denied;
        self.unfinished += other.unfinished;
        self.wall_ns += other.wall_ns;
        self.blocked_ns += other.blocked_ns;
        self.runqueue_ns += other.runqueue_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
        self.minor_faults += other.minor_faults;
        self.major_faults += other.major_faults;
        self.sampled += other.sampled;
        self.sampled_ns += other.sampled_ns;
        self.sampled_ns2 += other.sampled_ns2;
        self.skipped += other.skipped;
        add_each(&mut self.errors, &other.errors);
        add_each(&mut *self.histogram, &*other.histogram);
    }

    /// Adds what one processor counted since `last`. Only the small counters may have wrapped.
    fn add_since(&mut self, now: &wire::cell, last: &wire::cell) {
        self.count += now.count - last.count;
        self.denied += now.denied - last.denied;
        self.unfinished += now.unfinished - last.unfinished;
        self.wall_ns += now.wall_ns - last.wall_ns;
        self.blocked_ns += now.blocked_ns - last.blocked_ns;
        self.runqueue_ns += now.runqueue_ns - last.runqueue_ns;
        self.max_ns = self.max_ns.max(now.max_ns);
        self.minor_faults += now.minor_faults - last.minor_faults;
        self.major_faults += now.major_faults - last.major_faults;
        self.sampled += now.sampled - last.sampled;
        self.sampled_ns += now.sampled_ns - last.sampled_ns;
        self.sampled_ns2 += now.sampled_ns2 - last.sampled_ns2;
        self.skipped += now.skipped - last.skipped;
        add_wrapped(&mut self.errors, &now.errors, &last.errors);
        add_wrapped(&mut *self.histogram, &now.histogram, &last.histogram);
    }
}

fn add_each(sums: &mut [u64], more: &[u64]) {
    for (sum, value) in sums.iter_mut().zip(more) {
        *sum += value;
    }
}

fn add_wrapped(sums: &mut [u64], now: &[u32], last: &[u32]) {
    for ((sum, now), last) in sums.iter_mut().zip(now).zip(last) {
        *sum += u64::from(now.wrapping_sub(*last));
    }
}

/// Whose figures they are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupName {
    pub tgid: u32,
    pub pid: u32,
    pub command: String,
}

/// A blocking site's part in one call.
#[derive(Debug, Clone, Copy, Default)]
pub struct Site {
    pub blocked_ns: u64,
    pub sleeps: u64,
}

/// The figures of one group.
#[derive(Debug, Default, Clone)]
pub struct GroupFigures {
    pub calls: BTreeMap<u32, CallFigures>,
    /// By call slot and kernel address.
    pub sites: BTreeMap<(u32, u64), Site>,
}

impl GroupFigures {
    pub fn add(&mut self, other: &Self) {
        for (call, figures) in &other.calls {
            self.calls.entry(*call).or_default().add(figures);
        }
        for (key, site) in &other.sites {
            let sum = self.sites.entry(*key).or_default();
            sum.blocked_ns += site.blocked_ns;
            sum.sleeps += site.sleeps;
        }
    }
}

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
    fn cells_of(&self, group: u32) -> Vec<(u32, u32)> {
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
    fn is_over(&self, group: u32) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_counters_may_wrap_between_readings() {
        let mut last = wire::cell::default();
        let mut now = wire::cell::default();
        last.histogram[3] = u32::MAX - 1;
        now.histogram[3] = 5;
        now.count = 7;
        let mut figures = CallFigures::default();
        figures.add_since(&now, &last);
        assert_eq!(figures.histogram[3], 7);
        assert_eq!(figures.count, 7);
    }

    #[test]
    fn error_slots_stand_for_errors() {
        assert_eq!(errno_of_slot(2), 2);
        assert_eq!(errno_of_slot(133), 133);
        assert_eq!(errno_of_slot(134), 512);
        assert_eq!(errno_of_slot(138), 516);
    }

    #[test]
    fn the_histogram_has_the_layout_of_stats() {
        assert_eq!(wire::HISTOGRAM_BUCKETS as usize, stats::histogram::BUCKETS);
        assert_eq!(wire::SMALL_VALUES as usize, stats::histogram::SMALL.len());
        const { assert!(calls::LIMIT <= wire::CALL_UNKNOWN) };
    }
}
