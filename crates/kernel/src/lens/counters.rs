//! Reads the gate's counters, and adds them up to a session's statistics.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use libbpf_rs::{MapCore as _, MapFlags};
use zerocopy::FromBytes as _;

use crate::clock::now_ns;
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
    /// Of each thread that is about to be detached: its row, when its account was read, and the
    /// parts to which the time since belongs.
    lives: Vec<(u32, u64, Vec<u32>)>,
    inner_calls: u64,
}

/// How often rows are read at most when a session is detached, while threads of theirs end.
const DETACH_READINGS: u32 = 8;

fn note_row(stats: &mut RowStats, row: &wire::row) {
    stats.began_ns = row.began_ns;
    stats.ended_ns = if row.threads > 0 { u64::MAX } else { row.ended_ns };
    stats.is_partial = row.is_partial != 0;
}

fn cell_from(bytes: &[u8]) -> wire::cell {
    let (cell, _) = wire::cell::read_from_prefix(bytes).expect("all bytes of a cell");
    cell
}

impl Gate {
    /// The name of a row in a report of this session.
    pub(super) fn row_name(&self, session: u32, row: u32) -> RowName {
        let row = self.naming_row(session, row);
        let started_ns = row.started_ns;
        RowName { tgid: row.tgid, pid: row.pid, started_ns, command: wire::text(&row.comm) }
    }
}

impl Collector {
    /// Reads all rows of the session. This is to be called every few minutes, so that no counter
    /// wraps twice, and at the end.
    pub fn read(&mut self, gate: &Gate, session: u32) -> Result<()> {
        for row in session_rows(gate, session) {
            self.read_row(gate, session, row)?;
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
        self.read_files(gate, &all)?;
        self.read_causes(gate, &all)?;
        for row in &all {
            self.read_row(gate, session, *row)?;
            self.close_row(gate, session, *row);
        }
        gate.free_rows(&rows);
        Ok(())
    }

    /// Reads a session's threads that have not ended, which are about to be detached. Threads that
    /// other sessions have taken over go on counting in rows of those, so the session's share of
    /// these rows is read now. [`Self::stop`] is to follow.
    pub fn read_at_detach(
        &mut self,
        gate: &Gate,
        _lock: &Lock,
        session: u32,
    ) -> Result<Vec<LiveThread>> {
        let slots = |live: &[LiveThread]| -> BTreeSet<_> {
            live.iter().map(|thread| (thread.slot, thread.pid)).collect()
        };
        let mut live = gate.live_threads(session);
        let mut inner = BTreeSet::new();
        for _ in 0..DETACH_READINGS {
            inner = &session_rows(gate, session) - &gate.rows_of(session);
            if inner.is_empty() {
                break;
            }
            self.read_sites(gate, &inner)?;
            inner.iter().try_for_each(|row| self.read_row(gate, session, *row))?;
            // The counters are read first, so that no call counts beyond its thread's life. A
            // thread that has ended meanwhile is not among the threads, but in the counters.
            let before = std::mem::replace(&mut live, gate.live_threads(session));
            if slots(&before).is_subset(&slots(&live)) {
                break;
            }
        }
        for thread in &live {
            let now = now_ns();
            let Some(parts) = live_parts(thread, now) else { continue };
            let row = self.open.entry(thread.row).or_default();
            parts.iter().for_each(|(part, stats)| row.of_cell(*part).add(stats));
            self.lives.push((thread.row, now, parts.iter().map(|(part, _)| *part).collect()));
        }
        inner.extend(live.iter().map(|thread| thread.row));
        for row in &inner - &gate.rows_of(session) {
            self.close_row(gate, session, row);
        }
        Ok(live)
    }

    /// Extends the lives that [`Self::read_at_detach`] has read until their threads were detached:
    /// meanwhile, their calls still counted.
    pub fn stop(&mut self, ended_ns: u64) {
        for (row, read_ns, parts) in std::mem::take(&mut self.lives) {
            let Some(row) = self.open.get_mut(&row) else { continue };
            let more = ended_ns.saturating_sub(read_ns);
            for part in parts {
                let stats = row.of_cell(part);
                stats.wall_ns += more;
                match part {
                    wire::ACCOUNT_READY => stats.runqueue_ns += more,
                    wire::ACCOUNT_ASLEEP.. => stats.blocked_ns += more,
                    _ => {}
                }
            }
        }
    }

    /// Nothing more is read of a row.
    fn close_row(&mut self, gate: &Gate, session: u32, row: u32) {
        for (_, cell) in gate.cells_of(row) {
            self.last.remove(&cell);
        }
        if let Some(mut stats) = self.open.remove(&row) {
            note_row(&mut stats, &gate.rows.read(row));
            self.finished.entry(gate.row_name(session, row)).or_default().add(&stats);
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
        self.read_files(gate, &rows)?;
        self.read_causes(gate, &rows)?;
        for (row, stats) in &mut self.open {
            note_row(stats, &gate.rows.read(*row));
            all.entry(gate.row_name(session, *row)).or_default().add(stats);
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

    /// How many of the calls were made while another session had the threads. No trace or list of
    /// this session has them.
    pub fn inner_calls(&self) -> u64 {
        self.inner_calls
    }

    fn read_row(&mut self, gate: &Gate, session: u32, row: u32) -> Result<()> {
        let header = gate.rows.read(row);
        // The row of an inner session that has ended belongs to this one now.
        let is_inner = header.session != session || header.state == wire::ROW_DONE;
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
                if is_inner && call < wire::CALL_INDICES {
                    self.inner_calls += now.count - last.count;
                }
            }
            *last = now;
        }
        Ok(())
    }

    fn read_files(&mut self, gate: &Gate, rows: &BTreeSet<u32>) -> Result<()> {
        for (row, id, stats) in gate.files_of(rows)? {
            self.open.entry(row).or_default().files.insert(id, stats);
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
