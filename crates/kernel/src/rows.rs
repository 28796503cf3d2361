//! Rows of a report: to which session each belongs, and how they are freed or handed over to a
//! parent session.

use std::collections::BTreeSet;
use std::iter::successors;
use std::sync::atomic::{AtomicU32, Ordering};

use libbpf_rs::{MapCore as _, MapFlags};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::cpus;
use crate::gate::{Gate, Lock, unreserved_cells};
use crate::mapped_array::{atomic_field, field};
use crate::wire;

/// The session's rows, and those of sessions that took tasks over from it.
pub fn session_rows(gate: &Gate, session: u32) -> BTreeSet<u32> {
    let rows: Vec<_> = (0..gate.rows.entries()).map(|index| gate.rows.read(index)).collect();
    (1..gate.rows.entries())
        .filter(|index| {
            let mut row = &rows[*index as usize];
            // Bounded by the size of the table, because parents that are written meanwhile might
            // form a cycle.
            for _ in 0..rows.len() {
                if row.state != wire::ROW_FREE && row.session == session {
                    return true;
                }
                // Finished rows that are being handed over also count in each parent session.
                if row.state == wire::ROW_FREE
                    || row.parent == 0
                    || row.parent as usize >= rows.len()
                {
                    return false;
                }
                row = &rows[row.parent as usize];
            }
            false
        })
        .collect()
}

/// Whether the last thread of a row has gone. A new row has none yet.
fn is_ended(row: &wire::row) -> bool {
    row.state == wire::ROW_LIVE && row.threads <= 0 && row.ended_ns != 0
}

impl Gate {
    fn cell_entry(&self, row: u32, call: u32) -> &AtomicU32 {
        atomic_field!(self.cell_index, row, cell[call as usize])
    }

    /// The cells of a row: (index of a call or of a part of the account, cell).
    pub(crate) fn cells_of(&self, row: u32) -> Vec<(u32, u32)> {
        (0..wire::CELL_INDICES)
            .filter_map(|call| {
                let entry = self.cell_entry(row, call).load(Ordering::Acquire);
                let cell = entry & wire::CELL_INDEX;
                (cell != 0).then_some((call, cell))
            })
            .collect()
    }

    /// Frees rows in which nothing counts any more, or hands them over to the sessions of their
    /// parent rows.
    pub(crate) fn free_rows(&self, rows: &BTreeSet<u32>) {
        let mut freed = BTreeSet::new();
        let has_threads = self.release_children(rows);
        if has_threads {
            // A thread that is ending may still have to leave the parent rows that it had before.
            cpus::wait_for_all();
        }
        for row in rows {
            match self.parent_of(*row) {
                Some(parent) => self.hand_over_row(*row, parent),
                None => {
                    freed.insert(*row);
                }
            }
        }
        let has_requests =
            |row: &u32| self.cells_of(*row).iter().any(|(index, _)| *index >= wire::REQUESTS_BEGIN);
        if freed.iter().any(has_requests) {
            self.forget_requests(&freed);
            // A request of one of the rows may be completing now.
            cpus::wait_for_all();
        }
        freed.iter().for_each(|row| self.free_row(*row));
        self.free_sites(&freed);
        self.free_files(&freed);
        self.free_causes(&freed);
    }

    /// The parent row of a row, if the parent row's session lives.
    pub(crate) fn parent_of(&self, row: u32) -> Option<u32> {
        let parent = self.rows.read(row).parent;
        let session = self.rows.read(parent).session;
        (parent != 0 && self.sessions.read(session).used != 0).then_some(parent)
    }

    /// The rows of this session.
    pub(crate) fn rows_of(&self, session: u32) -> BTreeSet<u32> {
        let is_own = |index: &u32| {
            let row = self.rows.read(*index);
            row.state != wire::ROW_FREE && row.session == session
        };
        (1..self.rows.entries()).filter(is_own).collect()
    }

    /// Sessions in which rows of this one count as well.
    pub(crate) fn parent_sessions(&self, session: u32) -> BTreeSet<u32> {
        let parents = self.rows_of(session).into_iter().filter_map(|row| self.parent_of(row));
        parents.map(|parent| self.rows.read(parent).session).collect()
    }

    /// Gives the rows below these another parent row, because these are about to go. Returns
    /// whether threads still count in one of them.
    pub(crate) fn release_children(&self, rows: &BTreeSet<u32>) -> bool {
        let mut has_threads = false;
        for index in 1..self.rows.entries() {
            let child = self.rows.read(index);
            if !rows.contains(&child.parent) {
                continue;
            }
            let is_over = self.rows.read(child.parent).threads <= 0;
            // The key names the old parent row, so no thread finds the row by it any more.
            self.forget_key(index, &child);
            let outer = successors(Some(child.parent), |row| self.parent_of(*row));
            let parent = outer.take(rows.len() + 1).find(|row| !rows.contains(row)).unwrap_or(0);
            atomic_field!(self.rows, index, parent).store(parent, Ordering::SeqCst);
            has_threads |= child.threads > 0;
            // The gate does not report the end of a command's row.
            if is_over && index < wire::ALLOCATABLE_ROWS && is_ended(&child) {
                atomic_field!(self.rows, index, state).store(wire::ROW_DONE, Ordering::SeqCst);
            }
        }
        has_threads
    }

    /// Removes the entry by which tasks find a row that they share.
    fn forget_key(&self, index: u32, row: &wire::row) {
        let shared = self.maps.get("shared_rows");
        let key = wire::row_key { session: row.session, parent: row.parent, name: row.key };
        // Since this row has ended, the key may have got another one.
        let found = shared.lookup(key.as_bytes(), MapFlags::ANY);
        if found.is_ok_and(|found| found.is_some_and(|found| found == index.to_ne_bytes())) {
            let _ = shared.delete(key.as_bytes());
        }
    }

    /// The rows of other sessions whose threads also counted in one of these.
    pub(crate) fn rows_below(&self, rows: &BTreeSet<u32>) -> BTreeSet<u32> {
        let all: Vec<_> = (0..self.rows.entries()).map(|index| self.rows.read(index)).collect();
        let is_below = |index: &u32| {
            let parent = |index: &u32| all.get(*index as usize).map(|row| row.parent);
            // Bounded as in session_rows().
            let parents = successors(parent(index), parent).take(all.len());
            parents.take_while(|index| *index != 0).any(|index| rows.contains(&index))
        };
        (1..self.rows.entries()).filter(is_below).collect()
    }

    /// Hands a row's statistics over to the session of its parent row.
    fn hand_over_row(&self, row: u32, parent: u32) {
        let per = |row: u32| self.sessions.read(self.rows.read(row).session).per;
        if per(row) != per(parent) {
            let wire::row { pid, tgid, started_ns, comm, .. } = self.rows.read(parent);
            field!(self.rows, row, pid).write(pid);
            field!(self.rows, row, tgid).write(tgid);
            field!(self.rows, row, started_ns).write(started_ns);
            field!(self.rows, row, comm).write(comm);
        }
        let parent = self.rows.read(parent);
        // With this order of writes, a concurrent reader always finds the row in each parent
        // session in which the row counts. Nothing is added to the row's counts any more.
        field!(self.rows, row, session).write(parent.session);
        field!(self.rows, row, parent).write(parent.parent);
        field!(self.rows, row, state).write(wire::ROW_DONE);
    }

    /// The row that names the threads of a row in a report of this session. Tasks that another
    /// session has taken over are in rows of that session, which may be for something else.
    pub(crate) fn naming_row(&self, session: u32, row: u32) -> wire::row {
        let per = |row: &wire::row| self.sessions.read(row.session).per;
        let wanted = self.sessions.read(session).per;
        // Bounded as in session_rows().
        let outer = successors(Some(row), |row| Some(self.rows.read(*row).parent));
        let outer = outer.take(self.rows.entries() as usize).take_while(|row| *row != 0);
        let mut rows = outer.map(|row| self.rows.read(row));
        let found = rows.find(|row| row.session == session || per(row) == wanted);
        found.unwrap_or_else(|| self.rows.read(row))
    }

    /// Whether the row is one of this session, and nothing counts in it any more.
    pub(crate) fn is_row_finished(&self, session: u32, row: u32) -> bool {
        let row = self.rows.read(row);
        row.session == session && (row.state == wire::ROW_DONE || is_ended(&row))
    }

    /// Frees rows that have ended, in a session that does not read them.
    pub fn free_ended_rows(&self, _lock: &Lock, session: u32, rows: &BTreeSet<u32>) {
        let is_finished = |row: &u32| self.is_row_finished(session, *row);
        self.free_rows(&rows.iter().copied().filter(is_finished).collect());
    }

    /// Takes a base row for a session that starts. Returns `false` as long as another session uses
    /// it or has to read it.
    pub(crate) fn take_row(&self, row: u32) -> bool {
        let state = atomic_field!(self.rows, row, state);
        let (free, live) = (wire::ROW_FREE, wire::ROW_LIVE);
        state.compare_exchange(free, live, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// The rows that other sessions have handed over to this one, and that it has to read and free.
    pub fn rows_handed_over(&self, session: u32) -> BTreeSet<u32> {
        let is_done = |row: &u32| self.rows.read(*row).state == wire::ROW_DONE;
        self.rows_of(session).into_iter().filter(is_done).collect()
    }

    /// Frees a row. Nothing may count in it any more.
    fn free_row(&self, row: u32) {
        let cells = self.maps.get("lens_cells");
        let zero = vec![vec![0; size_of::<wire::cell>()]; cpus::possible()];
        for (call, cell) in self.cells_of(row) {
            self.cell_entry(row, call).store(0, Ordering::Release);
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
        self.forget_key(row, &self.rows.read(row));
        self.rows.write(row, wire::row::default());
        if row < wire::ALLOCATABLE_ROWS {
            let _ = self.maps.get("free_rows").update(&[], &row.to_ne_bytes(), MapFlags::ANY);
        }
    }

    /// Removes the requests of rows that are about to be freed. They count nowhere any more.
    fn forget_requests(&self, rows: &BTreeSet<u32>) {
        let requests = self.maps.get("lens_requests");
        for key in requests.keys() {
            let Ok(Some(found)) = requests.lookup(&key, MapFlags::ANY) else { continue };
            let is_of_rows = |request: wire::request| rows.contains(&u32::from(request.row));
            if wire::request::read_from_bytes(&found).is_ok_and(is_of_rows) {
                let _ = requests.delete(&key);
            }
        }
    }

    /// Removes the blocking sites of rows that were freed.
    fn free_sites(&self, rows: &BTreeSet<u32>) {
        let sites = self.maps.get("lens_sites");
        let stale: Vec<_> = sites
            .keys()
            .filter(|key| {
                wire::site_key::read_from_bytes(key).is_ok_and(|key| rows.contains(&key.row))
            })
            .collect();
        for key in stale {
            // The same key may be listed twice, because the iteration begins again if another
            // process deletes entries meanwhile.
            let _ = sites.delete(&key);
        }
    }

    /// Removes the causes of sleeps of rows that were freed.
    fn free_causes(&self, rows: &BTreeSet<u32>) {
        let causes = self.maps.get("why_causes");
        let is_of_rows = |key: &Vec<u8>| {
            wire::why_key::read_from_bytes(key).is_ok_and(|key| rows.contains(&key.row))
        };
        for key in causes.keys().filter(is_of_rows).collect::<Vec<_>>() {
            // As in free_sites().
            let _ = causes.delete(&key);
        }
    }
}
