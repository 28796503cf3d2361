//! A session: the tasks, options and extensions of one `run`, `lens` or `daemon`.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::successors;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::clock::now_ns;
use crate::error::{Error, ErrorContext, Result};
use crate::gate::{Gate, IteratorKind, Iterators, Lock, new_ring};
use crate::mapped_array::{atomic_field, field};
use crate::process::{is_own_pid_namespace, own_pid_namespace};
use crate::rows::session_rows;
use crate::{cpus, process, wire};

/// What a session applies to its tasks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SessionOptions {
    /// Bits of [`wire::gate_mask`].
    pub mask: u32,
    /// One of [`wire::per`]: what has a row of its own.
    pub per: u32,
    /// With `LENS_SLOW`: calls that take at least this long are recorded one by one.
    pub slower_ns: u64,
    /// With `GUARD`: how calls are tested, and the response.
    pub guard: wire::guard_parameters,
    /// Tasks can be attached, but nothing counts before [`Gate::begin`].
    pub awaits_begin: bool,
}

/// A session of this process. It lasts until [`Gate::end_session`], or until the process ends.
pub struct Session {
    /// The entry of the gate's table of sessions. An ended session's index is used again.
    pub index: u32,
    /// The buffer to which the gate writes the session's records.
    pub ring: MapHandle,
    /// The programs that iterate over tasks, with the generation that they were loaded for.
    iterators: Option<(u32, Iterators)>,
}

/// While this lives, new children of the calling thread belong to a session.
pub struct PendingChildren<'gate> {
    gate: &'gate Gate,
    key: Vec<u8>,
}

/// A gated thread that has not ended.
#[derive(Debug, Clone, Copy)]
pub struct LiveThread {
    /// Its index in the tables that have an entry for each thread.
    pub slot: u32,
    /// As this process's PID namespace numbers it.
    pub pid: u32,
    /// A lens watches the thread, and has seen the beginning of its call. Otherwise, `call` may be
    /// `None` although the thread is in a call.
    pub is_call_known: bool,
    /// The thread is in a call that does not count in this session, but in one around it.
    pub(crate) is_in_outer_call: bool,
    /// The thread was in a call when it began to count, and is still in it.
    pub(crate) is_in_unseen_call: bool,
    /// The call index and the time of entry, if a lens watches the thread and the thread is in a
    /// call. The time is in nanoseconds of CLOCK_MONOTONIC, or 0 if the call is not timed.
    pub call: Option<(u32, u64)>,
    /// Its row.
    pub(crate) row: u32,
    /// Its state in the lens, and its account.
    pub(crate) state: wire::thread_state,
    pub(crate) life: wire::lens_life,
}

#[cfg(test)]
impl LiveThread {
    pub(crate) fn of_test(
        call: Option<(u32, u64)>,
        state: wire::thread_state,
        life: wire::lens_life,
    ) -> Self {
        Self {
            slot: 1,
            pid: 2,
            is_call_known: true,
            is_in_outer_call: false,
            is_in_unseen_call: false,
            call,
            row: 3,
            state,
            life,
        }
    }
}

const BEGUN: u32 = wire::SESSION_BEGUN;

/// When a session has begun to count.
pub struct Beginning {
    /// In nanoseconds, as [`now_ns`].
    pub began_ns: u64,
    /// As in [`Gate::attach_tasks`].
    pub missed: u32,
}

/// A process, and what is to be done with it.
type TaskRequest = (u32, wire::attach_request);

/// A request to attach a process, which has an identity of 0 if it has none.
fn request_of(session: &Session, tgid: u32, identity: u64) -> TaskRequest {
    (tgid, wire::attach_request { session: session.index, is_owner: 0, identity })
}

/// The first `count` of these requests are in the gate's list, which all sessions share. They are
/// removed when this is dropped.
struct ListedRequests<'a> {
    map: &'a MapHandle,
    all: &'a [TaskRequest],
    count: usize,
}

impl ListedRequests<'_> {
    /// Lists the requests until the list is full.
    fn list(&mut self) -> Result<()> {
        for (tgid, request) in self.all {
            let listed = self.map.update(&tgid.to_ne_bytes(), request.as_bytes(), MapFlags::ANY);
            match listed {
                Ok(()) => self.count += 1,
                // E2BIG: the list is full.
                Err(error) if self.count > 0 && is_too_big(&error) => break,
                Err(error) => return Err(error).doing("listing the processes to gate"),
            }
        }
        Ok(())
    }
}

impl Drop for ListedRequests<'_> {
    fn drop(&mut self) {
        for (tgid, _) in &self.all[..self.count] {
            let _ = self.map.delete(&tgid.to_ne_bytes());
        }
    }
}

fn is_too_big(error: &libbpf_rs::Error) -> bool {
    error.kind() == libbpf_rs::ErrorKind::TooBig
}

fn base_row(session: u32) -> u32 {
    wire::ALLOCATABLE_ROWS + session
}

fn own_tid() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { libc::gettid() as u32 }
}

/// Whether the session's owner lives. An owner in another PID namespace cannot be checked, and
/// counts as living.
pub(crate) fn is_owner_alive(session: &wire::session) -> bool {
    !is_own_pid_namespace(session.owner_namespace) || process::is_alive(session.owner_pid)
}

impl Gate {
    /// Begins a session in a free entry, after clearing the sessions of killed processes.
    ///
    /// # Errors
    /// If all entries are in use, or memory for the ring buffer is short.
    pub fn start_session(&self, lock: &Lock, options: &SessionOptions) -> Result<Session> {
        self.clear_dead_sessions(lock);
        let index = (1..wire::SESSIONS)
            .find(|index| self.sessions.read(*index).used == 0 && self.take_row(base_row(*index)))
            .ok_or(Error::SessionsFull(wire::SESSIONS - 1))?;
        let latest =
            (1..wire::SESSIONS).map(|index| self.sessions.read(index).number).max().unwrap_or(0);
        self.clear_losses(index)?;
        let base_row = base_row(index);
        let live = wire::row {
            state: wire::ROW_LIVE,
            session: index,
            began_ns: now_ns(),
            ..Default::default()
        };
        self.rows.write(base_row, live);
        let has_flame = options.mask & (wire::LENS_FLAME | wire::LENS_FLAME_CPU) != 0;
        let ring = new_ring(if has_flame { wire::FLAME_RING_BYTES } else { wire::RING_BYTES })?;
        let ring_fd = ring.as_fd().as_raw_fd();
        self.maps
            .get("records")
            .update(&index.to_ne_bytes(), &ring_fd.to_ne_bytes(), MapFlags::ANY)
            .doing("installing a session's ring buffer")?;
        self.sessions.write(
            index,
            wire::session {
                used: 1,
                // The gate matches opened files for all threads, so this bit belongs to no session.
                mask: options.mask & !wire::SERVICE_FILES,
                per: options.per,
                base_row,
                slow_limit_ns: options.slower_ns,
                guard: options.guard,
                holds_generation: self.generation(),
                owner_pid: std::process::id(),
                owner_namespace: own_pid_namespace()?,
                number: 1 + latest,
                beginning: if options.awaits_begin { wire::SESSION_WAITS } else { BEGUN },
                ..Default::default()
            },
        );
        Ok(Session { index, ring, iterators: None })
    }

    /// Until the result is dropped, new children of the calling thread belong to `session`. With
    /// `until_exec`, what a child does before it calls execve is not counted.
    pub fn pending_children(
        &self,
        session: &Session,
        until_exec: bool,
    ) -> Result<PendingChildren<'_>> {
        let key = wire::pending_child_key { namespace_inum: own_pid_namespace()?, tid: own_tid() };
        let value = wire::pending_child { session: session.index, until_exec: until_exec.into() };
        let key = key.as_bytes().to_vec();
        self.maps
            .get("pending_children")
            .update(&key, value.as_bytes(), MapFlags::ANY)
            .doing("registering the next child process")?;
        atomic_field!(self.header, 0, pending_children_count).fetch_add(1, Ordering::SeqCst);
        Ok(PendingChildren { gate: self, key })
    }

    /// Attaches all threads of running processes, which are numbered as in this process's PID
    /// namespace. With `GUARD_SCOPED`, `identities` has the hashes of the identities of those
    /// processes that have one. Returns the number of processors that could not be visited: a
    /// thread that runs there without a break is seen only from its next context switch on.
    pub fn attach_tasks(
        &self,
        session: &mut Session,
        tgids: &[u32],
        identities: &BTreeMap<u32, u64>,
    ) -> Result<u32> {
        let identity = |tgid: &u32| identities.get(tgid).copied().unwrap_or(0);
        let requests: Vec<_> =
            tgids.iter().map(|tgid| request_of(session, *tgid, identity(tgid))).collect();
        self.request_attachments(&Lock::take()?, session, &requests)?;
        Ok(cpus::visit_all())
    }

    /// Gives the session the numbers of its owner, this process, which it does not gate.
    pub(crate) fn note_owner(&self, session: &mut Session) -> Result<()> {
        let request = wire::attach_request { session: session.index, is_owner: 1, identity: 0 };
        self.request_attachments(&Lock::take()?, session, &[(std::process::id(), request)])
    }

    fn request_attachments(
        &self,
        lock: &Lock,
        session: &mut Session,
        all: &[TaskRequest],
    ) -> Result<()> {
        let index = session.index;
        self.with_requests(lock, session, all, |iterator| self.attach_requested(iterator, index))
    }

    /// Attaches the tasks of the processes that are listed now.
    fn attach_requested(&self, iterator: &Iterators, session: u32) -> Result<()> {
        let attaches_again = atomic_field!(self.sessions, session, attaches_again);
        attaches_again.store(1, Ordering::SeqCst);
        let first = iterator.run(IteratorKind::Attach);
        attaches_again.store(0, Ordering::SeqCst);
        first?;
        // A thread that was being created during the first pass may have been missed. Either it
        // inherits the session from its parent, which was gated by then, or the second pass finds
        // it.
        iterator.run(IteratorKind::Attach).map(drop)
    }

    /// Lists processes to attach, as many as there is room for at a time, and runs passes of the
    /// iterator that attaches them. Without processes, there is one round.
    fn with_requests(
        &self,
        lock: &Lock,
        session: &mut Session,
        all: &[TaskRequest],
        mut passes: impl FnMut(&Iterators) -> Result<()>,
    ) -> Result<()> {
        // An iterator of an older generation lacks the extensions that were enabled later. Those
        // extensions would lose the tasks that it attaches.
        let is_current = |(generation, _): &(u32, _)| *generation == self.generation();
        if !session.iterators.as_ref().is_some_and(is_current) {
            let kinds: &[_] = match self.enabled() & wire::LENS {
                0 => &[IteratorKind::Attach],
                _ => &[IteratorKind::Attach, IteratorKind::Ticks],
            };
            session.iterators = Some((self.generation(), self.load_iterators(kinds)?));
        }
        let (_, iterators) = session.iterators.as_ref().expect("loaded above");
        self.remove_left_requests(lock, session.index);
        let map = self.maps.get("attach_requests");
        let mut rest = all;
        loop {
            let mut listed = ListedRequests { map, count: 0, all: rest };
            listed.list()?;
            rest = &rest[listed.count..];
            passes(iterators)?;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// Adds the kernel's ticks to the accounts of threads that have not ended, if the session has
    /// attached tasks.
    pub fn add_ticks(&self, _lock: &Lock, session: &Session) -> Result<()> {
        let Some((_, iterators)) = &session.iterators else { return Ok(()) };
        iterators.run(IteratorKind::Ticks).map(drop)
    }

    /// Removes the requests that killed processes have left. The requests of a living session are
    /// those of a process with another lock, in a container for instance.
    fn remove_left_requests(&self, _lock: &Lock, own: u32) {
        let requests = self.maps.get("attach_requests");
        let keys: Vec<_> = requests.keys().collect();
        for key in keys {
            let Ok(Some(value)) = requests.lookup(&key, MapFlags::ANY) else { continue };
            let request = wire::attach_request::read_from_bytes(&value);
            if request.is_ok_and(|of| of.session == own || !self.is_open(of.session)) {
                let _ = requests.delete(&key);
            }
        }
    }

    /// Begins to count in a session with [`SessionOptions::awaits_begin`]. `shared`: processes that
    /// also count in another session, which could not be attached before.
    pub fn begin(&self, session: &mut Session, shared: &[u32]) -> Result<Beginning> {
        let index = session.index;
        let beginning = atomic_field!(self.sessions, index, beginning);
        if beginning.load(Ordering::SeqCst) == BEGUN {
            return Ok(Beginning { began_ns: now_ns(), missed: 0 });
        }
        let requests: Vec<_> = shared.iter().map(|tgid| request_of(session, *tgid, 0)).collect();
        let mut began_ns = 0;
        self.with_requests(&Lock::take()?, session, &requests, |iterator| {
            if began_ns != 0 {
                return self.attach_requested(iterator, index);
            }
            began_ns = now_ns();
            beginning.store(wire::SESSION_BEGINS, Ordering::SeqCst);
            iterator.run(IteratorKind::Attach)?;
            beginning.store(BEGUN, Ordering::SeqCst);
            self.apply_begun(index);
            cpus::wait_for_all();
            // A thread that was being created meanwhile may still await the beginning, or count in
            // the other session alone.
            self.apply_begun(index);
            if shared.is_empty() { Ok(()) } else { iterator.run(IteratorKind::Attach).map(drop) }
        })?;
        let missed = if shared.is_empty() { 0 } else { cpus::visit_all() };
        Ok(Beginning { began_ns, missed })
    }

    /// Gives the threads that were attached before the session has begun their masks.
    fn apply_begun(&self, session: u32) {
        for slot in 1..self.threads.entries() {
            let thread = self.threads.read(slot);
            if thread.task == 0 || thread.mask & wire::AWAITS_BEGIN == 0 {
                continue;
            }
            let sessions = self.enclosing_sessions(u32::from(thread.row));
            if sessions.contains(&session) {
                let mask = atomic_field!(self.threads, slot, mask);
                let applies = self.mask_of(&sessions, 0).unwrap_or_default();
                mask.fetch_or(applies, Ordering::SeqCst);
                mask.fetch_and(!(wire::AWAITS_BEGIN & !applies), Ordering::SeqCst);
            }
        }
    }

    /// From now on, every new process whose parent is not gated belongs to `session`.
    pub fn gate_new_processes(&self, session: &Session) {
        atomic_field!(self.sessions, session.index, is_system_wide).store(1, Ordering::SeqCst);
        let current = atomic_field!(self.header, 0, system_wide_session);
        // Services apply to the whole machine, whichever session gates the new processes.
        if self.sessions.read(session.index).mask == wire::SERVICE {
            let _ = current.compare_exchange(0, session.index, Ordering::SeqCst, Ordering::SeqCst);
        } else {
            current.store(session.index, Ordering::SeqCst);
        }
    }

    /// Stops the session from gating new processes. Another system-wide session gates them from
    /// then on, if there is one.
    fn hand_over_system_wide(&self, session: u32) {
        let is_system_wide = |index: u32| atomic_field!(self.sessions, index, is_system_wide);
        is_system_wide(session).store(0, Ordering::SeqCst);
        let next = (1..wire::SESSIONS).find(|index| {
            self.is_open(*index) && is_system_wide(*index).load(Ordering::SeqCst) != 0
        });
        let next = next.unwrap_or(0);
        let current = atomic_field!(self.header, 0, system_wide_session);
        let _ = current.compare_exchange(session, next, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Whether any thread still counts in the session, even if it belongs to another session now.
    pub fn has_threads(&self, session: u32) -> bool {
        // The threads are read before the rows, because a thread that is taken over gets its new
        // row after that row has got its parent.
        let threads = (1..self.threads.entries()).map(|slot| self.threads.read(slot));
        let in_use: BTreeSet<_> = threads
            .filter(|thread| thread.task != 0 && thread.mask != 0)
            .map(|thread| u32::from(thread.row))
            .collect();
        !session_rows(self, session).is_disjoint(&in_use)
    }

    /// The threads that count in the session now and have not ended. They may belong to a session
    /// that has taken them over.
    pub fn live_threads(&self, session: u32) -> Vec<LiveThread> {
        (1..self.threads.entries())
            .map(|slot| (slot, self.threads.read(slot)))
            .filter(|(_, thread)| {
                thread.task != 0
                    && thread.mask != 0
                    && self.enclosing_sessions(u32::from(thread.row)).contains(&session)
            })
            .map(|(slot, thread)| {
                // Without a lens, the gate may not note where a call ends.
                let is_watched = thread.mask & wire::LENS != 0;
                let life = self.lens_lives.read(slot);
                let state = u32::from(thread.in_call);
                let is_outer = state == wire::IN_OUTER_CALL
                    && !self.enclosing_sessions(u32::from(life.outer_row)).contains(&session);
                let is_in_call = is_watched && matches!(state, wire::IN_CALL | wire::IN_OUTER_CALL);
                let entered_ns = if is_outer { 0 } else { thread.lens.entered_ns };
                let is_unseen = thread.generation == 0
                    && u32::from(life.beginning) & wire::LIFE_BEGAN_IN_CALL != 0
                    || state == wire::IN_CALL_BEFORE_LENS;
                LiveThread {
                    slot,
                    pid: thread.visible_pid,
                    is_call_known: is_watched && !is_unseen && state != wire::BEFORE_CALL,
                    is_in_outer_call: is_outer,
                    is_in_unseen_call: is_unseen,
                    call: is_in_call.then_some((u32::from(thread.call), entered_ns)),
                    row: u32::from(thread.row),
                    state: thread,
                    life,
                }
            })
            .collect()
    }

    /// Detaches all threads of a session. They return to the session from which they were taken
    /// over, or to none. Returns the time ([`now_ns`]) from which on nothing counts.
    pub fn detach_tasks(&self, _lock: &Lock, session: u32) -> u64 {
        self.hand_over_system_wide(session);
        self.extensions.iter().for_each(|extension| extension.release(self, session));
        for slot in 1..self.threads.entries() {
            let thread = self.threads.read(slot);
            if thread.task == 0 {
                continue;
            }
            let row = u32::from(thread.row);
            let is_its = u32::from(thread.session) == session;
            let row = if is_its { self.rows.read(row).parent } else { row };
            let sessions = self.enclosing_sessions(row);
            if !is_its && !sessions.contains(&session) {
                continue;
            }
            if is_its {
                let (row, parent) = sessions.first().map_or((0, 0), |parent| (row, *parent));
                // A call that began in the parent row is one of the thread's own row from now on.
                let outer_row = u32::from(self.lens_lives.read(slot).outer_row);
                if outer_row != 0 && !self.outer_rows(row).skip(1).any(|outer| outer == outer_row) {
                    let _ = atomic_field!(self.threads, slot, in_call).compare_exchange(
                        wire::IN_OUTER_CALL as u8,
                        wire::IN_CALL as u8,
                        Ordering::SeqCst,
                        Ordering::SeqCst,
                    );
                }
                // The gate only reads these fields. The parent session reads the counts in the old
                // and in the new row (see lens/counters.rs). A later session with the number of
                // this one does not count the thread as its own.
                field!(self.threads, slot, row).write(row as u16);
                field!(self.threads, slot, session).write(parent as u16);
            }
            // A call that began in a row of this session counts in the next outer one, if any.
            let outer_row = u32::from(self.lens_lives.read(slot).outer_row);
            if !is_its && self.rows.read(outer_row).session == session {
                let next = self.parent_of(outer_row).unwrap_or(0);
                field!(self.lens_lives, slot, outer_row).write(next as u16);
            }
            // A third session may guard the thread, and services apply to the whole machine.
            const OTHERS: u32 = wire::GUARD | wire::SERVICE;
            let mask = atomic_field!(self.threads, slot, mask);
            match self.mask_of(&sessions, session) {
                Some(applies) => {
                    let others = mask.load(Ordering::SeqCst) & OTHERS;
                    mask.store(applies & !OTHERS | others, Ordering::SeqCst);
                }
                None => {
                    mask.fetch_and(wire::SERVICE, Ordering::SeqCst);
                }
            }
        }
        let ended_ns = now_ns();
        let _ = self.keep_inner_losses(session);
        // What the threads of inner sessions do from now on does not count here any more.
        self.release_children(&self.rows_of(session));
        self.assign_plugins(session);
        cpus::wait_for_all();
        // A thread that was being created meanwhile may have inherited the session's plugins.
        self.assign_plugins(session);
        ended_ns
    }

    /// The sessions that a row's threads count in: the row's own session, then the session from
    /// which that one took them over, and so on.
    pub(crate) fn enclosing_sessions(&self, row: u32) -> Vec<u32> {
        let sessions = self.outer_rows(row).map(|row| self.rows.read(row).session);
        sessions.take_while(|session| self.sessions.read(*session).used != 0).collect()
    }

    /// A row, its parent row, and so on.
    fn outer_rows(&self, row: u32) -> impl Iterator<Item = u32> {
        let parent = |row: &u32| Some(self.rows.read(*row).parent);
        successors(Some(row), parent).take_while(|row| *row != 0)
    }

    /// The mask of threads that count in `sessions`, the innermost first, once the session
    /// `without` has ended. `None` if no session is left. The gate does the same (`apply_session`
    /// in bpf/gate/tasks.bpf.h).
    fn mask_of(&self, sessions: &[u32], without: u32) -> Option<u32> {
        let mut mask = None;
        for index in sessions.iter().filter(|index| **index != without) {
            let session = self.sessions.read(*index);
            let counted = match mask {
                _ if session.beginning != BEGUN => wire::AWAITS_BEGIN,
                None => session.mask,
                Some(inner) => {
                    let sample = if inner & wire::LENS != 0 { 0 } else { wire::LENS_SAMPLE };
                    let options = wire::LENS_SITES | wire::LENS_FILES | wire::LENS_WHY;
                    let lens = wire::LENS | options | sample;
                    session.mask & (lens | wire::PACE)
                }
            };
            mask = Some(mask.unwrap_or(0) | counted);
        }
        mask
    }

    /// Sets the mask of the session's threads to these bits of [`wire::gate_mask`]. The threads
    /// must be asleep meanwhile.
    pub fn set_mask(&self, session: &Session, value: u32) {
        for slot in 1..self.threads.entries() {
            let thread = self.threads.read(slot);
            if thread.task != 0 && u32::from(thread.session) == session.index {
                // A call that began under another mask is not counted.
                field!(self.threads, slot, in_call).write(0);
                field!(self.threads, slot, lens.off_ns).write(0);
                field!(self.threads, slot, lens.has_site).write(0);
                field!(self.threads, slot, lens.is_off_cpu).write(0);
                atomic_field!(self.threads, slot, mask).store(value, Ordering::SeqCst);
            }
        }
    }

    /// Ends a session, and frees its rows. Statistics that were not read by then are lost.
    pub fn end_session(&self, session: &Session) -> Result<()> {
        self.clear_session(&Lock::take()?, session.index);
        Ok(())
    }

    fn clear_session(&self, lock: &Lock, index: u32) {
        self.extensions.iter().for_each(|extension| extension.clear(self));
        let _ = self.hand_over_losses(index);
        self.detach_tasks(lock, index);
        self.free_rows(&self.rows_of(index));
        // A failure needs no handling: the next session of this number overwrites the entry.
        let _ = self.maps.get("records").delete(&index.to_ne_bytes());
        self.remove_rows(index);
        self.remove_pending_children(index);
        self.forget_cgroups(index);
        self.sessions.write(index, wire::session::default());
    }

    fn remove_rows(&self, session: u32) {
        let rows = self.maps.get("shared_rows");
        let is_its = |key: &Vec<u8>| {
            wire::row_key::read_from_bytes(key).is_ok_and(|key| key.session == session)
        };
        let keys: Vec<_> = rows.keys().filter(is_its).collect();
        for key in keys {
            let _ = rows.delete(&key);
        }
    }

    /// Removes the entries of an owner that was killed while it had pending children.
    fn remove_pending_children(&self, session: u32) {
        let pending = self.maps.get("pending_children");
        let keys: Vec<_> = pending.keys().collect();
        for key in keys {
            let Ok(Some(value)) = pending.lookup(&key, MapFlags::ANY) else { continue };
            let child = wire::pending_child::read_from_bytes(&value);
            if child.is_ok_and(|child| child.session == session) {
                self.remove_pending_child(&key);
            }
        }
    }

    fn remove_pending_child(&self, key: &[u8]) {
        if self.maps.get("pending_children").delete(key).is_ok() {
            atomic_field!(self.header, 0, pending_children_count).fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn is_dead(&self, index: u32) -> bool {
        let session = self.sessions.read(index);
        session.used != 0 && !is_owner_alive(&session)
    }

    /// Whether the process of any session was killed.
    pub fn has_dead_sessions(&self) -> bool {
        (1..wire::SESSIONS).any(|index| self.is_dead(index))
    }

    /// Ends the sessions of killed processes.
    pub fn clear_dead_sessions(&self, lock: &Lock) {
        let dead = (1..wire::SESSIONS).filter(|index| self.is_dead(*index));
        dead.for_each(|index| self.clear_session(lock, index));
    }

    /// Whether a living process has a session.
    pub(crate) fn in_use(&self) -> bool {
        (1..wire::SESSIONS).any(|index| self.is_open(index))
    }

    /// Whether a living process has a session other than this one.
    pub fn is_shared(&self, own: &Session) -> bool {
        (1..wire::SESSIONS).any(|index| index != own.index && self.is_open(index))
    }

    /// The other sessions, by [`wire::session::number`]. `true`: it guards processes, or gates new
    /// ones, and this session may have none of them.
    pub fn other_sessions(&self, own: &Session) -> BTreeMap<u64, bool> {
        let others = (1..wire::SESSIONS).filter(|index| *index != own.index);
        let sessions = others.map(|index| self.sessions.read(index));
        let used = sessions.filter(|session| session.used != 0);
        used.map(|session| {
            (session.number, session.mask & wire::GUARD != 0 || session.is_system_wide != 0)
        })
        .collect()
    }

    /// Whether a living process has the session of this number.
    pub(crate) fn is_open(&self, index: u32) -> bool {
        let session = self.sessions.read(index);
        session.used != 0 && is_owner_alive(&session)
    }

    /// Follows a change of generation, and records this in the session, so that the holder of the
    /// newer generation may end. Also cleans up after killed processes. To be called a few times a
    /// second. Returns `false` once for each gap, as [`Gate::tend`].
    pub fn tend_session(&mut self, session: &Session) -> Result<bool> {
        let was_active = self.tend()?;
        for extension in self.extensions {
            extension.tend(self, session.index)?;
        }
        if self.enabled() & wire::PLUGIN != 0 {
            self.drop_dead_owners_plugins();
            if std::mem::take(&mut self.reassigns_plugins) {
                self.assign_plugins(0);
            }
        }
        atomic_field!(self.sessions, session.index, holds_generation)
            .store(self.generation(), Ordering::SeqCst);
        Ok(was_active)
    }

    /// Whether a living process holds a later generation than this process. Then that process has
    /// to roll back, and not this one.
    pub(crate) fn is_newer_generation_held(&self) -> bool {
        (1..wire::SESSIONS).any(|index| {
            let session = self.sessions.read(index);
            session.used != 0
                && session.holds_generation > self.generation()
                && is_own_pid_namespace(session.owner_namespace)
                && process::is_alive(session.owner_pid)
        })
    }

    /// Whether the owners of all sessions other than `own` hold this process's generation or a
    /// later one.
    pub fn have_all_followed(&self, own: Option<u32>) -> bool {
        (1..wire::SESSIONS).all(|index| {
            let session = self.sessions.read(index);
            Some(index) == own
                || session.used == 0
                || session.holds_generation >= self.generation()
                || !is_owner_alive(&session)
        })
    }
}

impl Drop for PendingChildren<'_> {
    fn drop(&mut self) {
        self.gate.remove_pending_child(&self.key);
    }
}
