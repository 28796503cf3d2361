//! A session: the tasks, options and extensions of one `run`, `lens` or `daemon`.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::successors;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::error::{Error, ErrorContext, Result};
use crate::gate::{Gate, IteratorKind, Iterators, Lock, new_ring};
use crate::mapped_array::{atomic_field, field};
use crate::process::own_pid_namespace;
use crate::rows::session_rows;
use crate::{cpus, process, wire};

/// What a session asks for.
#[derive(Debug, Clone, Copy, Default)]
pub struct SessionOptions {
    /// Bits of [`wire::gate_mask`].
    pub mask: u32,
    /// One of [`wire::per`]: what gets a row of its own.
    pub per: u32,
    /// With `LENS_SLOW`: calls that take at least this long are reported one by one.
    pub slower_ns: u64,
    /// With `GUARD`: how calls are tested, and the response.
    pub guard: wire::guard_parameters,
}

pub struct Session {
    pub index: u32,
    pub base_group: u32,
    pub ring: MapHandle,
    /// With the generation that it is of.
    attach_iterator: Option<(u32, Iterators)>,
}

/// While it lives, children of the calling thread belong to a session.
pub struct PendingChildren<'gate> {
    gate: &'gate Gate,
    key: Vec<u8>,
}

/// A gated thread that is still there.
#[derive(Debug, Clone, Copy)]
pub struct LiveThread {
    /// Its index in the tables that have an entry for each thread.
    pub slot: u32,
    /// As this process's PID namespace numbers it.
    pub pid: u32,
    /// A lens has seen it enter or leave a call, so that it is in a call only if `call` says so.
    pub has_crossed: bool,
    /// Call index and time of entry (0: not timed), if a lens watches the thread and it is in a
    /// call.
    pub call: Option<(u32, u64)>,
}

fn base_group(session: u32) -> u32 {
    wire::ALLOCATABLE_ROWS + session
}

fn own_tid() -> u32 {
    // SAFETY: a plain query.
    unsafe { libc::gettid() as u32 }
}

/// Whether the session's owner lives. An owner in another PID namespace cannot be checked, and
/// counts as living.
fn is_owner_alive(session: &wire::session) -> bool {
    session.owner_namespace != own_pid_namespace() || process::exists(session.owner_pid)
}

impl Gate {
    /// Begins a session in a free entry, after clearing the sessions of killed processes.
    pub fn start_session(&self, lock: &Lock, options: &SessionOptions) -> Result<Session> {
        for index in 1..wire::SESSIONS {
            let session = self.sessions.read(index);
            if session.used != 0 && !is_owner_alive(&session) {
                self.clear_session(lock, index);
            }
        }
        let index = (1..wire::SESSIONS)
            .find(|index| {
                self.sessions.read(*index).used == 0 && self.is_row_free(base_group(*index))
            })
            .ok_or(Error::SessionsFull(wire::SESSIONS - 1))?;
        let latest =
            (1..wire::SESSIONS).map(|index| self.sessions.read(index).number).max().unwrap_or(0);
        self.clear_losses(index)?;
        let base_group = base_group(index);
        let live = wire::row { state: wire::ROW_LIVE, session: index, ..Default::default() };
        self.groups.write(base_group, live);
        let ring = new_ring()?;
        let ring_fd = ring.as_fd().as_raw_fd();
        self.maps
            .get("records")
            .update(&index.to_ne_bytes(), &ring_fd.to_ne_bytes(), MapFlags::ANY)
            .doing("installing a session's ring buffer")?;
        self.sessions.write(
            index,
            wire::session {
                used: 1,
                // What the gate does for all threads with services belongs to no session.
                mask: options.mask & !wire::SERVICE_FILES,
                per: options.per,
                base_row: base_group,
                slow_limit_ns: options.slower_ns,
                guard: options.guard,
                holds_generation: self.generation(),
                owner_pid: std::process::id(),
                owner_namespace: own_pid_namespace(),
                number: 1 + latest,
                ..Default::default()
            },
        );
        Ok(Session { index, base_group, ring, attach_iterator: None })
    }

    /// Makes children of the calling thread belong to `session` until the result is dropped. With
    /// `until_exec`, nothing counts before they call execve.
    pub fn pending_children(
        &self,
        session: &Session,
        until_exec: bool,
    ) -> Result<PendingChildren<'_>> {
        let key = wire::pending_child_key { namespace_inum: own_pid_namespace(), tid: own_tid() };
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
    /// namespace. Returns how many processors could not be visited: a thread that runs there
    /// without a break is seen only from its next context switch on. With `GUARD_SCOPED`, processes
    /// have these scopes' numbers, or none.
    pub fn attach_tasks(
        &self,
        session: &mut Session,
        tgids: &[u32],
        scopes: &BTreeMap<u32, u64>,
    ) -> Result<u32> {
        // A process is requested for one session at a time.
        let _lock = Lock::take()?;
        let adoptions = self.maps.get("attach_requests");
        for tgid in tgids {
            let scope = scopes.get(tgid).copied().unwrap_or(0);
            let adoption = wire::attach_request { session: session.index, unused: 0, scope };
            adoptions
                .update(&tgid.to_ne_bytes(), adoption.as_bytes(), MapFlags::ANY)
                .doing("listing the processes to gate")?;
        }
        // An older iterator does not know extensions that came later, and would take their tasks
        // from them.
        if session
            .attach_iterator
            .as_ref()
            .is_none_or(|(generation, _)| *generation != self.generation())
        {
            let adopter = self.load_iterators(&[IteratorKind::Adopt])?;
            session.attach_iterator = Some((self.generation(), adopter));
        }
        let (_, adopter) = session.attach_iterator.as_ref().expect("made above");
        adopter.run(IteratorKind::Adopt)?;
        // A thread that was being created during the first pass has a gated parent, or is found
        // now.
        adopter.run(IteratorKind::Adopt)?;
        for tgid in tgids {
            adoptions
                .delete(&tgid.to_ne_bytes())
                .doing("clearing the list of processes to gate")?;
        }
        Ok(cpus::visit_all())
    }

    /// Sets whether a session has plugins for its tasks alone. Its tasks then have these, and not
    /// those of an earlier session that they count in as well.
    pub fn set_own_plugins(&mut self, session: u32, has: bool) {
        if atomic_field!(self.sessions, session, has_own_plugins).swap(has.into(), Ordering::SeqCst)
            == has.into()
        {
            return;
        }
        self.assign_plugins(0);
        // A thread that was forked just now may have its parent's previous plugins: to wait for
        // such threads would take longer than a load.
        self.reassigns_plugins = true;
    }

    /// Assigns the plugins of each thread: those of the latest session that it counts in and that
    /// has its own, or else those of its own session, whose chain then continues with the plugins
    /// of the whole machine. The gate does the same (bpf/gate/tasks.bpf.h, inherits_plugins). No
    /// thread gets the plugins of the session `without`, which is ending; 0: none is.
    fn assign_plugins(&self, without: u32) {
        for slot in 1..self.threads.entries() {
            // Not the whole entry, 16,384 times during a load.
            let row = field!(self.threads, slot, row);
            let plugins = field!(self.threads, slot, plugin_session);
            loop {
                let counts_in = row.read();
                let around = self.enclosing_sessions(counts_in.into());
                let now = self.plugin_session_of(&around, without) as u16;
                if plugins.read() != now {
                    plugins.write(now);
                }
                // Another session may take the thread over meanwhile.
                if row.read() == counts_in {
                    break;
                }
            }
        }
    }

    fn plugin_session_of(&self, around: &[u32], without: u32) -> u32 {
        let around = || around.iter().copied().filter(|index| *index != without);
        let owning = around().filter(|index| self.sessions.read(*index).has_own_plugins != 0);
        let latest = owning.max_by_key(|index| self.sessions.read(*index).number);
        latest.or_else(|| around().next()).unwrap_or(0)
    }

    /// From now on, every new process whose parent is not gated belongs to `session` as well.
    pub fn gate_new_processes(&self, session: &Session) {
        atomic_field!(self.sessions, session.index, is_system_wide).store(1, Ordering::SeqCst);
        let everything = atomic_field!(self.header, 0, system_wide_session);
        // Services are of the whole machine: any session will do.
        if self.sessions.read(session.index).mask == wire::SERVICE {
            let _ =
                everything.compare_exchange(0, session.index, Ordering::SeqCst, Ordering::SeqCst);
        } else {
            everything.store(session.index, Ordering::SeqCst);
        }
    }

    /// The session gates no new processes any more; another one that wants to gates them again.
    fn hand_over_system_wide(&self, session: u32) {
        let wants = |index: u32| atomic_field!(self.sessions, index, is_system_wide);
        wants(session).store(0, Ordering::SeqCst);
        let heir = (1..wire::SESSIONS)
            .find(|index| self.is_open(*index) && wants(*index).load(Ordering::SeqCst) != 0);
        let everything = atomic_field!(self.header, 0, system_wide_session);
        let heir = heir.unwrap_or(0);
        let _ = everything.compare_exchange(session, heir, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Whether any thread is left that counts in the session, also if it belongs to another session
    /// now.
    pub fn has_threads(&self, session: u32) -> bool {
        // Threads first: a thread that is being taken over has its new row only once that row is
        // known.
        let threads = (1..self.threads.entries()).map(|slot| self.threads.read(slot));
        let theirs: BTreeSet<_> = threads
            .filter(|thread| thread.task != 0 && thread.mask != 0)
            .map(|thread| u32::from(thread.row))
            .collect();
        !session_rows(self, session).is_disjoint(&theirs)
    }

    /// Threads of the session that still exist.
    pub fn live_threads(&self, session: u32) -> Vec<LiveThread> {
        (1..self.threads.entries())
            .map(|slot| (slot, self.threads.read(slot)))
            .filter(|(_, thread)| {
                thread.task != 0 && thread.mask != 0 && u32::from(thread.session) == session
            })
            .map(|(slot, thread)| {
                // Without a lens, the gate need not see where calls end.
                let is_watched = thread.mask & wire::LENS != 0;
                let is_in_call = is_watched && u32::from(thread.in_call) == wire::IN_CALL;
                LiveThread {
                    slot,
                    pid: thread.visible_pid,
                    has_crossed: is_watched && thread.generation != 0,
                    call: is_in_call.then_some((u32::from(thread.call), thread.lens.entered_ns)),
                }
            })
            .collect()
    }

    /// Detaches all threads of a session: they return to the session that they were taken over
    /// from, or are free.
    pub fn detach_tasks(&self, _lock: &Lock, session: u32) {
        self.hand_over_system_wide(session);
        self.extensions.iter().for_each(|extension| extension.release(self, session));
        for slot in 1..self.threads.entries() {
            let thread = self.threads.read(slot);
            if thread.task == 0 {
                continue;
            }
            let group = u32::from(thread.row);
            let is_its = u32::from(thread.session) == session;
            let heir = if is_its { self.groups.read(group).parent } else { group };
            let around = self.enclosing_sessions(heir);
            if !is_its && !around.contains(&session) {
                continue;
            }
            if is_its {
                let (group, heir) = around.first().map_or((0, 0), |session| (heir, *session));
                // The gate only reads these, and the parent session reads the counts in either row
                // (see `counters`). No later session of this number takes the thread for its own.
                field!(self.threads, slot, row).write(group as u16);
                field!(self.threads, slot, session).write(heir as u16);
            }
            // The guard of a third session stays, and services are of the whole machine.
            const OTHERS: u32 = wire::GUARD | wire::SERVICE;
            let mask = atomic_field!(self.threads, slot, mask);
            match self.mask_of(&around, session) {
                Some(applies) => {
                    let others = mask.load(Ordering::SeqCst) & OTHERS;
                    mask.store(applies & !OTHERS | others, Ordering::SeqCst);
                }
                None => {
                    mask.fetch_and(wire::SERVICE, Ordering::SeqCst);
                }
            }
        }
        self.assign_plugins(session);
        cpus::wait_for_all();
        // For threads that were just being created.
        self.assign_plugins(session);
    }

    /// Drops the plugins of sessions whose owners were killed.
    fn drop_dead_owners_plugins(&mut self) {
        for index in 1..wire::SESSIONS {
            let session = self.sessions.read(index);
            let is_left =
                session.used != 0 && session.has_own_plugins != 0 && !is_owner_alive(&session);
            if is_left
                && atomic_field!(self.sessions, index, has_own_plugins).swap(0, Ordering::SeqCst)
                    != 0
            {
                self.assign_plugins(index);
                self.reassigns_plugins = true;
            }
        }
    }

    /// The sessions that a row's threads count in: its own, then the one that it took them over
    /// from, and so on.
    fn enclosing_sessions(&self, group: u32) -> Vec<u32> {
        let parent = |group: &u32| Some(self.groups.read(*group).parent);
        let groups = successors(Some(group), parent).take_while(|group| *group != 0);
        let sessions = groups.map(|group| self.groups.read(group).session);
        sessions.take_while(|session| self.sessions.read(*session).used != 0).collect()
    }

    /// What applies to the threads of the first of these sessions once one of them has ended, as in
    /// the gate (bpf/gate/tasks.bpf.h, apply_session).
    fn mask_of(&self, around: &[u32], without: u32) -> Option<u32> {
        let mut mask = None;
        for index in around.iter().filter(|index| **index != without) {
            let session = self.sessions.read(*index);
            let counted = match mask {
                None => session.mask,
                Some(inner) if inner & wire::LENS != 0 => {
                    session.mask & (wire::LENS | wire::LENS_SITES)
                }
                Some(_) => session.mask & (wire::LENS | wire::LENS_SITES | wire::LENS_SAMPLE),
            };
            mask = Some(mask.unwrap_or(0) | counted);
        }
        mask
    }

    /// Changes what applies to the session's threads, which are asleep meanwhile.
    pub fn set_mask(&self, session: &Session, value: u32) {
        for slot in 1..self.threads.entries() {
            let thread = self.threads.read(slot);
            if thread.task != 0 && u32::from(thread.session) == session.index {
                // A call that began under another mask is dropped.
                field!(self.threads, slot, in_call).write(0);
                field!(self.threads, slot, lens.off_ns).write(0);
                field!(self.threads, slot, lens.has_site).write(0);
                field!(self.threads, slot, lens.is_off_cpu).write(0);
                atomic_field!(self.threads, slot, mask).store(value, Ordering::SeqCst);
            }
        }
    }

    /// Ends a session whose statistics have been read.
    pub fn end_session(&self, session: &Session) -> Result<()> {
        self.clear_session(&Lock::take()?, session.index);
        Ok(())
    }

    fn clear_session(&self, lock: &Lock, index: u32) {
        self.extensions.iter().for_each(|extension| extension.clear(self));
        let _ = self.hand_over_losses(index);
        self.detach_tasks(lock, index);
        self.free_rows(&self.rows_of(index));
        // Nothing can be done about a map that refuses: the next session reuses the entry anyway.
        let _ = self.maps.get("records").delete(&index.to_ne_bytes());
        self.remove_rows(index);
        self.remove_pending_children(index);
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
        let nurseries = self.maps.get("pending_children");
        let keys: Vec<_> = nurseries.keys().collect();
        for key in keys {
            let Ok(Some(value)) = nurseries.lookup(&key, MapFlags::ANY) else { continue };
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

    /// Whether a living process has a session.
    pub fn in_use(&self) -> bool {
        (1..wire::SESSIONS).any(|index| self.is_open(index))
    }

    /// Whether any other session is open.
    pub fn is_shared(&self, own: &Session) -> bool {
        (1..wire::SESSIONS).any(|index| index != own.index && self.is_open(index))
    }

    pub(crate) fn is_open(&self, index: u32) -> bool {
        let session = self.sessions.read(index);
        session.used != 0 && is_owner_alive(&session)
    }

    /// Follows a change of generation and records it, so that the holder of the newer one may
    /// leave.
    pub fn tend_session(&mut self, session: &Session) -> Result<bool> {
        let acts = self.tend()?;
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
        Ok(acts)
    }

    /// Whether a living process holds a later generation than this one, and is to make that active.
    pub(crate) fn is_newer_generation_held(&self) -> bool {
        (1..wire::SESSIONS).any(|index| {
            let session = self.sessions.read(index);
            session.used != 0
                && session.holds_generation > self.generation()
                && session.owner_namespace == own_pid_namespace()
                && process::is_alive(session.owner_pid)
        })
    }

    /// Whether every other process has followed to this process's generation, or to a later one.
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
