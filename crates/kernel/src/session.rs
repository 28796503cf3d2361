//! A session: who watches which tasks, and for what.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter::successors;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use crate::error::{Doing, Error, Result};
use crate::gate::{Gate, Iterators, Lock, Over, new_ring};
use crate::groups::session_groups;
use crate::mapping::atomic_field;
use crate::{cpus, plugins, process, wire};

/// What a session wants.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Bits of [`wire::gate_mask`].
    pub mask: u32,
    /// One of [`wire::per`]: what gets a row of its own.
    pub per: u32,
    /// With `LENS_SLOW`: calls that take at least this long are reported one by one.
    pub slower_ns: u64,
    /// With `GUARD`: by what it judges, and what it does then.
    pub guard: wire::guard_parameters,
}

pub struct Session {
    pub index: u32,
    pub base_group: u32,
    pub ring: MapHandle,
    /// Of this generation.
    adopter: Option<(u32, Iterators)>,
}

/// While it lives, what the calling thread forks or clones belongs to a session.
pub struct Nursery<'gate> {
    gate: &'gate Gate,
    key: Vec<u8>,
}

/// A gated thread that is still there.
#[derive(Debug, Clone, Copy)]
pub struct LiveThread {
    /// As this process's PID namespace numbers it.
    pub pid: u32,
    /// A lens has seen it cross, so that it is in a call only if `call` says so.
    pub has_crossed: bool,
    /// Call slot and when it was entered (0: not timed), if a lens watches it and it is in a call.
    pub call: Option<(u32, u64)>,
}

/// Wire types without padding.
pub(crate) trait Plain: Copy {}
impl Plain for wire::nursery_key {}
impl Plain for wire::nursery {}
impl Plain for wire::guard_program {}
impl Plain for wire::adoption {}

pub(crate) fn as_bytes<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: every byte of a `Plain` value is initialised, and the slice does not outlive it.
    unsafe { std::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }
}

fn base_group(session: u32) -> u32 {
    wire::ROWS + session
}

fn own_tid() -> u32 {
    // SAFETY: a plain query.
    unsafe { libc::gettid() as u32 }
}

pub(crate) fn own_pid_namespace() -> u32 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino() as u32)
}

/// Whether the session's owner lives; that of another PID namespace cannot be asked for, and is taken to.
fn is_owned(session: &wire::session) -> bool {
    session.owner_namespace != own_pid_namespace() || process::exists(session.owner_pid)
}

impl Gate {
    /// Takes a free session. Those of processes that were killed are cleared away first.
    pub fn start_session(&self, lock: &Lock, options: &Options) -> Result<Session> {
        for index in 1..wire::SESSIONS {
            let session = self.sessions.read(index);
            if session.used != 0 && !is_owned(&session) {
                self.clear_session(lock, index);
            }
        }
        let index = (1..wire::SESSIONS)
            .find(|index| self.sessions.read(*index).used == 0 && self.group_is_free(base_group(*index)))
            .ok_or(Error::SessionsFull(wire::SESSIONS - 1))?;
        let latest = (1..wire::SESSIONS).map(|index| self.sessions.read(index).number).max().unwrap_or(0);
        self.clear_losses(index)?;
        let base_group = base_group(index);
        let live = wire::group { state: wire::GROUP_LIVE, session: index, ..Default::default() };
        self.groups.write(base_group, live);
        let ring = new_ring()?;
        let ring_fd = ring.as_fd().as_raw_fd();
        self.maps
            .get("records")
            .update(&index.to_ne_bytes(), &ring_fd.to_ne_bytes(), MapFlags::ANY)
            .doing("handing over a ring buffer")?;
        self.sessions.write(
            index,
            wire::session {
                used: 1,
                // What the gate does for all with services is nobody's own.
                mask: options.mask & !wire::SERVICE_FILES,
                per: options.per,
                base_group,
                slower_ns: options.slower_ns,
                guard: options.guard,
                holds_generation: self.generation(),
                owner_pid: std::process::id(),
                owner_namespace: own_pid_namespace(),
                number: 1 + latest,
                ..Default::default()
            },
        );
        Ok(Session { index, base_group, ring, adopter: None })
    }

    /// Children of the calling thread belong to `session` until the nursery is dropped. With
    /// `until_exec`, nothing counts before they call execve.
    pub fn nursery(&self, session: &Session, until_exec: bool) -> Result<Nursery<'_>> {
        let key = wire::nursery_key { namespace_inum: own_pid_namespace(), tid: own_tid() };
        let value = wire::nursery { session: session.index, until_exec: until_exec.into() };
        let key = as_bytes(&key).to_vec();
        self.maps
            .get("nurseries")
            .update(&key, as_bytes(&value), MapFlags::ANY)
            .doing("announcing a new process")?;
        atomic_field!(self.header, 0, nurseries).fetch_add(1, Ordering::SeqCst);
        Ok(Nursery { gate: self, key })
    }

    /// Takes in all threads of running processes, named as this process's PID namespace names them.
    /// Returns how many processors could not be visited: a thread running there without a break is seen
    /// only from its next context switch on. With `GUARD_SCOPED`, processes have these scopes' numbers, or none.
    pub fn adopt(&self, session: &mut Session, tgids: &[u32], scopes: &BTreeMap<u32, u64>) -> Result<u32> {
        // A process is named for one session at a time.
        let _lock = Lock::take()?;
        let adoptions = self.maps.get("adoptions");
        for tgid in tgids {
            let scope = scopes.get(tgid).copied().unwrap_or(0);
            let adoption = wire::adoption { session: session.index, unused: 0, scope };
            adoptions
                .update(&tgid.to_ne_bytes(), as_bytes(&adoption), MapFlags::ANY)
                .doing("naming the processes to take in")?;
        }
        // An older one does not know of extensions that came later, and would take their tasks from them.
        if session.adopter.as_ref().is_none_or(|(generation, _)| *generation != self.generation()) {
            let adopter = Iterators::new(&self.maps, self.enabled(), self.generation(), &[Over::Adopt])?;
            session.adopter = Some((self.generation(), adopter));
        }
        let (_, adopter) = session.adopter.as_ref().expect("made above");
        adopter.run(Over::Adopt)?;
        // A thread that was being made during the first pass has a gated parent or is found now.
        adopter.run(Over::Adopt)?;
        for tgid in tgids {
            adoptions.delete(&tgid.to_ne_bytes()).doing("forgetting the processes taken in")?;
        }
        Ok(cpus::visit_all())
    }

    /// Whether a session has plugins for its tasks alone, which then have these, and not those of an earlier session that they
    /// count in as well.
    pub fn has_own_plugins(&mut self, session: u32, has: bool) {
        if atomic_field!(self.sessions, session, own_plugins).swap(has.into(), Ordering::SeqCst) == has.into()
        {
            return;
        }
        self.give_plugins(0);
        // Who was forked just then may have what its parent had before: waiting for that takes longer than a load.
        self.gives_again = true;
    }

    /// Each thread has the plugins of the latest of the sessions that it counts in and that have some; or those of its own
    /// session, whose list then goes on to everybody's. As the gate has it (bpf/tasks.bpf.h, keeps_plugins). Nobody has those
    /// of the session that is `without`, as that is ending; 0: none is.
    fn give_plugins(&self, without: u32) {
        for slot in 1..self.threads.entries() {
            let place = self.threads.entry(slot);
            // Not all of it, 16,384 times on the way of a load.
            // SAFETY: aligned fields of the mapped entry, each read and written as a whole.
            unsafe {
                let (group, plugins) = (&raw const (*place).group, &raw mut (*place).plugin_session);
                loop {
                    let counts_in = group.read_volatile();
                    let now = self.plugins_of(&self.around(counts_in.into()), without) as u16;
                    if plugins.read_volatile() != now {
                        plugins.write_volatile(now);
                    }
                    // Another session may take it in meanwhile.
                    if group.read_volatile() == counts_in {
                        break;
                    }
                }
            }
        }
    }

    fn plugins_of(&self, around: &[u32], without: u32) -> u32 {
        let around = || around.iter().copied().filter(|index| *index != without);
        let owning = around().filter(|index| self.sessions.read(*index).own_plugins != 0);
        let latest = owning.max_by_key(|index| self.sessions.read(*index).number);
        latest.or_else(|| around().next()).unwrap_or(0)
    }

    /// From now on also every new process whose parent is not gated belongs to `session`.
    pub fn gate_everything_new(&self, session: &Session) {
        atomic_field!(self.sessions, session.index, wants_everything).store(1, Ordering::SeqCst);
        let everything = atomic_field!(self.header, 0, everything);
        // Services are there in every session.
        if self.sessions.read(session.index).mask == wire::SERVICE {
            let _ = everything.compare_exchange(0, session.index, Ordering::SeqCst, Ordering::SeqCst);
        } else {
            everything.store(session.index, Ordering::SeqCst);
        }
    }

    /// The session gates new processes no more, but another one that wants to does again.
    fn leave_everything(&self, session: u32) {
        let wants = |index: u32| atomic_field!(self.sessions, index, wants_everything);
        wants(session).store(0, Ordering::SeqCst);
        let heir = (1..wire::SESSIONS)
            .find(|index| self.is_open(*index) && wants(*index).load(Ordering::SeqCst) != 0);
        let everything = atomic_field!(self.header, 0, everything);
        let heir = heir.unwrap_or(0);
        let _ = everything.compare_exchange(session, heir, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Whether any thread is left that counts in the session, also if another session watches it now.
    pub fn has_threads(&self, session: u32) -> bool {
        // Threads first: a thread that is being taken over has its new group only once that is known.
        let threads = (1..self.threads.entries()).map(|slot| self.threads.read(slot));
        let theirs: BTreeSet<_> = threads
            .filter(|thread| thread.task != 0 && thread.mask != 0)
            .map(|thread| u32::from(thread.group))
            .collect();
        !session_groups(self, session).is_disjoint(&theirs)
    }

    /// Threads of the session that still exist.
    pub fn live_threads(&self, session: u32) -> Vec<LiveThread> {
        (1..self.threads.entries())
            .map(|slot| self.threads.read(slot))
            .filter(|thread| thread.task != 0 && thread.mask != 0 && u32::from(thread.session) == session)
            .map(|thread| {
                // Without one, the gate need not see where calls end.
                let is_watched = thread.mask & wire::LENS != 0;
                let is_in_call = is_watched && u32::from(thread.in_call) == wire::IN_CALL;
                LiveThread {
                    pid: thread.visible_pid,
                    has_crossed: is_watched && thread.generation != 0,
                    call: is_in_call.then_some((u32::from(thread.call), thread.entered_ns)),
                }
            })
            .collect()
    }

    /// Lets all threads of a session go: back to the session they were taken over from, or free.
    pub fn release(&self, _lock: &Lock, session: u32) {
        self.leave_everything(session);
        self.end_services(session);
        // It waits for all processors, which a session that guards nobody need not.
        if self.sessions.read(session).mask & wire::GUARD != 0 {
            self.let_all_go(session);
        }
        for slot in 1..self.threads.entries() {
            let thread = self.threads.read(slot);
            if thread.task == 0 {
                continue;
            }
            let group = u32::from(thread.group);
            let is_its = u32::from(thread.session) == session;
            let heir = if is_its { self.groups.read(group).parent } else { group };
            let around = self.around(heir);
            if !is_its && !around.contains(&session) {
                continue;
            }
            if is_its {
                let place = self.threads.entry(slot);
                let (group, heir) = around.first().map_or((0, 0), |session| (heir, *session));
                // SAFETY: aligned fields of the mapped entry, each written as a whole; the gate only reads them, and counts in
                // either group are read by the heir (see `cells`). No later session of this number takes it for its own.
                unsafe {
                    (&raw mut (*place).group).write_volatile(group as u16);
                    (&raw mut (*place).session).write_volatile(heir as u16);
                }
            }
            // A guard that is neither's stays, and services are everybody's.
            const OTHERS: u32 = wire::GUARD | wire::SERVICE;
            let mask = atomic_field!(self.threads, slot, mask);
            match self.applies(&around, session) {
                Some(applies) => {
                    let others = mask.load(Ordering::SeqCst) & OTHERS;
                    mask.store(applies & !OTHERS | others, Ordering::SeqCst);
                }
                None => {
                    mask.fetch_and(wire::SERVICE, Ordering::SeqCst);
                }
            }
        }
        self.give_plugins(session);
        cpus::wait_for_all();
        // Those that were just being made.
        self.give_plugins(session);
    }

    /// Those of sessions whose owners were killed.
    fn leave_killed_plugins(&mut self) {
        for index in 1..wire::SESSIONS {
            let session = self.sessions.read(index);
            let is_left = session.used != 0 && session.own_plugins != 0 && !is_owned(&session);
            if is_left && atomic_field!(self.sessions, index, own_plugins).swap(0, Ordering::SeqCst) != 0 {
                self.give_plugins(index);
                self.gives_again = true;
            }
        }
    }

    /// The sessions that a group's threads count in: its own, then that which it took them over from, and so on.
    fn around(&self, group: u32) -> Vec<u32> {
        let parent = |group: &u32| Some(self.groups.read(*group).parent);
        let groups = successors(Some(group), parent).take_while(|group| *group != 0);
        let sessions = groups.map(|group| self.groups.read(group).session);
        sessions.take_while(|session| self.sessions.read(*session).used != 0).collect()
    }

    /// What applies to the threads of the first of these sessions, as the gate has it (bpf/tasks.bpf.h, guard_take), once one of
    /// them is over.
    fn applies(&self, around: &[u32], without: u32) -> Option<u32> {
        let mut mask = None;
        for index in around.iter().filter(|index| **index != without) {
            let session = self.sessions.read(*index);
            let counted = match mask {
                None => session.mask,
                Some(inner) if inner & wire::LENS != 0 => session.mask & (wire::LENS | wire::LENS_SITES),
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
                let place = self.threads.entry(slot);
                // SAFETY: aligned fields of the mapped entry. A call begun under another mask is forgotten.
                unsafe {
                    (&raw mut (*place).in_call).write_volatile(0);
                    (&raw mut (*place).off_ns).write_volatile(0);
                    (&raw mut (*place).left_ns).write_volatile(0);
                    (&raw mut (*place).site).write_volatile(0);
                }
                atomic_field!(self.threads, slot, mask).store(value, Ordering::SeqCst);
            }
        }
    }

    /// Ends a session whose figures have been read.
    pub fn end_session(&self, session: &Session) -> Result<()> {
        self.clear_session(&Lock::take()?, session.index);
        Ok(())
    }

    fn clear_session(&self, lock: &Lock, index: u32) {
        // Nobody is left to tell, if the map refuses. A killed owner's plugins are not the next one's.
        let _ = plugins::sweep(self);
        let _ = self.leave_losses(index);
        self.release(lock, index);
        self.give_back(&self.groups_of(index));
        // Nothing can be done about a map that refuses: the slot is reused by the next session anyway.
        let _ = self.maps.get("records").delete(&index.to_ne_bytes());
        self.forget_rows(index);
        self.forget_nurseries(index);
        self.sessions.write(index, wire::session::default());
    }

    fn forget_rows(&self, session: u32) {
        let rows = self.maps.get("shared_rows");
        let keys: Vec<_> = rows.keys().filter(|key| key[..4] == session.to_ne_bytes()).collect();
        for key in keys {
            let _ = rows.delete(&key);
        }
    }

    /// Left behind by an owner that was killed in one.
    fn forget_nurseries(&self, session: u32) {
        let nurseries = self.maps.get("nurseries");
        let keys: Vec<_> = nurseries.keys().collect();
        for key in keys {
            let owner = nurseries.lookup(&key, MapFlags::ANY);
            if owner.is_ok_and(|value| value.is_some_and(|value| value[..4] == session.to_ne_bytes())) {
                self.forget_nursery(&key);
            }
        }
    }

    fn forget_nursery(&self, key: &[u8]) {
        if self.maps.get("nurseries").delete(key).is_ok() {
            atomic_field!(self.header, 0, nurseries).fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether a living process has a session.
    pub fn in_use(&self) -> bool {
        (1..wire::SESSIONS).any(|index| self.is_open(index))
    }

    /// Is anybody else's session open?
    pub fn is_shared(&self, own: &Session) -> bool {
        (1..wire::SESSIONS).any(|index| index != own.index && self.is_open(index))
    }

    pub(crate) fn is_open(&self, index: u32) -> bool {
        let session = self.sessions.read(index);
        session.used != 0 && is_owned(&session)
    }

    /// Follows a change of generation and says so, so that the newer keeper may leave.
    pub fn tend_session(&mut self, session: &Session) -> Result<bool> {
        let acts = self.tend()?;
        let services = atomic_field!(self.header, 0, services).load(Ordering::SeqCst);
        if services != 0 && services != session.index && !self.is_open(services) {
            // Its daemon was killed.
            let _lock = Lock::take()?;
            if !self.is_open(services) {
                self.end_services(services);
            }
        }
        if self.enabled() & wire::PLUGIN != 0 {
            plugins::sweep(self)?;
            self.leave_killed_plugins();
            if std::mem::take(&mut self.gives_again) {
                self.give_plugins(0);
            }
        }
        atomic_field!(self.sessions, session.index, holds_generation)
            .store(self.generation(), Ordering::SeqCst);
        Ok(acts)
    }

    /// Whether a living process holds a later generation than this one, and is to put that one back.
    pub(crate) fn is_later_held(&self) -> bool {
        (1..wire::SESSIONS).any(|index| {
            let session = self.sessions.read(index);
            session.used != 0
                && session.holds_generation > self.generation()
                && session.owner_namespace == own_pid_namespace()
                && process::lives(session.owner_pid)
        })
    }

    /// Has every other process followed to this process's generation, or to a later one?
    pub fn all_follow(&self, own: Option<u32>) -> bool {
        (1..wire::SESSIONS).all(|index| {
            let session = self.sessions.read(index);
            Some(index) == own
                || session.used == 0
                || session.holds_generation >= self.generation()
                || !is_owned(&session)
        })
    }
}

impl Drop for Nursery<'_> {
    fn drop(&mut self) {
        self.gate.forget_nursery(&self.key);
    }
}
