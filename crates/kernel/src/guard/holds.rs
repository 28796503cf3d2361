//! Threads that the guard holds, and their release.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::clock::now_ns;
use crate::gate::{Gate, KernelSide};
use crate::mapped_array::{MappedArray, atomic_field, field};
use crate::wire;

/// A process that is stopped until a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldProcess {
    /// In the initial PID namespace.
    pub tgid: u32,
    /// One of its threads, as this process's PID namespace numbers it.
    pub thread: u32,
    /// The profile slot of that thread's program.
    pub profile: u32,
    /// `u64::MAX`: until it is released.
    pub until_ns: u64,
}

fn held_flag(threads: &MappedArray<wire::thread_state>, slot: u32) -> &AtomicU8 {
    atomic_field!(threads, slot, guard.held)
}

fn is_held(threads: &MappedArray<wire::thread_state>, slot: u32) -> bool {
    held_flag(threads, slot).load(Ordering::SeqCst) != 0
}

fn held(
    threads: &MappedArray<wire::thread_state>,
    cold: &MappedArray<wire::guard_cold>,
    slots: u32,
    session: u32,
) -> Vec<HeldProcess> {
    let mut until = BTreeMap::new();
    for slot in 1..slots {
        if !is_held(threads, slot) {
            continue;
        }
        let thread = threads.read(slot);
        if thread.task != 0 && u32::from(thread.guard.session) == session {
            let HeldProcess { until_ns, .. } = until.entry(thread.tgid).or_insert(HeldProcess {
                tgid: thread.tgid,
                thread: thread.visible_pid,
                profile: thread.guard.profile_slot.into(),
                until_ns: 0,
            });
            *until_ns = cold.read(slot).held_until_ns.max(*until_ns);
        }
    }
    until.into_values().collect()
}

/// Sends the process a signal. The kernel takes the number of any of its threads. The thread that
/// was found held may have ended since, by an `exit` that it was held for: then another thread's
/// number serves.
fn send(
    threads: &MappedArray<wire::thread_state>,
    slots: u32,
    held: &HeldProcess,
    signal: i32,
) -> bool {
    // SAFETY: a plain signal; the thread's slot says that the process lives or has just ended.
    let is_sent = |thread: u32| unsafe { libc::kill(thread as i32, signal) == 0 };
    let mut others = (1..slots).map(|slot| threads.read(slot));
    is_sent(held.thread)
        || others.any(|thread| {
            thread.task != 0 && thread.tgid == held.tgid && is_sent(thread.visible_pid)
        })
}

fn held_slots(
    threads: &MappedArray<wire::thread_state>,
    slots: u32,
    held: &HeldProcess,
) -> impl Iterator<Item = u32> {
    (1..slots).filter(move |slot| is_held(threads, *slot) && threads.read(*slot).tgid == held.tgid)
}

/// Resets its threads' locality frames: what they did does not count against them any more.
fn reset_locality(
    threads: &MappedArray<wire::thread_state>,
    cold: &MappedArray<wire::guard_cold>,
    slots: u32,
    held: &HeldProcess,
) {
    for slot in (1..slots).filter(|slot| threads.read(*slot).tgid == held.tgid) {
        // A thread that still makes calls, until it stops at the next one, may write one of these
        // again: then its reset is partial.
        field!(cold, slot, frame).write([0; 2]);
        field!(cold, slot, max_lfc).write(0);
        // With the old window, the next calls would be anomalous.
        field!(threads, slot, guard.window).write(0);
        field!(threads, slot, guard.lfc).write(0);
    }
}

fn release_processes(threads: &MappedArray<wire::thread_state>, slots: u32, gone: &[HeldProcess]) {
    for held in gone {
        held_slots(threads, slots, held)
            .for_each(|slot| held_flag(threads, slot).store(0, Ordering::SeqCst));
        send(threads, slots, held, libc::SIGCONT);
    }
}

/// A SIGSTOP in reply to another process's SIGCONT (bpf/guard/sigcont.bpf.h) may have been on its
/// way to a process that was released. After this wait it has arrived, though it may not have taken
/// effect: SIGCONT undoes it.
fn undo_pending_stops(threads: &MappedArray<wire::thread_state>, slots: u32, gone: &[HeldProcess]) {
    if gone.is_empty() {
        return;
    }
    crate::cpus::wait_for_all();
    for held in gone.iter().filter(|held| held_slots(threads, slots, held).next().is_none()) {
        send(threads, slots, held, libc::SIGCONT);
    }
}

/// Ends the guard of a process that was killed: another Tollgate may keep the gate running, and
/// with it the guard. Returns how many processes were held.
pub(crate) fn end_session_guard(
    threads: &MappedArray<wire::thread_state>,
    cold: &MappedArray<wire::guard_cold>,
    sessions: &MappedArray<wire::session>,
    session: u32,
) -> usize {
    respond(sessions, session, wire::GUARD_OBSERVE);
    stop_guarding(threads, session);
    let held = held(threads, cold, threads.entries(), session);
    release_processes(threads, threads.entries(), &held);
    undo_pending_stops(threads, threads.entries(), &held);
    held.len()
}

/// Makes a guard that continues hold no process from now on. Returns how many processes were held.
pub(crate) fn switch_off(
    threads: &MappedArray<wire::thread_state>,
    cold: &MappedArray<wire::guard_cold>,
    sessions: &MappedArray<wire::session>,
    session: u32,
) -> usize {
    respond(sessions, session, wire::GUARD_OBSERVE);
    atomic_field!(sessions, session, is_disabled).store(1, Ordering::SeqCst);
    crate::cpus::wait_for_all();
    let held = held(threads, cold, threads.entries(), session);
    held.iter().for_each(|held| reset_locality(threads, cold, threads.entries(), held));
    release_processes(threads, threads.entries(), &held);
    undo_pending_stops(threads, threads.entries(), &held);
    held.len()
}

fn respond(sessions: &MappedArray<wire::session>, session: u32, response: u32) {
    field!(sessions, session, guard.response).write(response);
}

/// Makes the session's guard test no more calls.
fn stop_guarding(threads: &MappedArray<wire::thread_state>, session: u32) {
    for slot in 1..threads.entries() {
        let thread = threads.read(slot);
        if thread.task != 0 && u32::from(thread.guard.session) == session {
            atomic_field!(threads, slot, mask).fetch_and(!wire::GUARD, Ordering::SeqCst);
        }
    }
}

impl Gate {
    /// Processes held by the session's guard, each until the latest time of its threads.
    pub fn held(&self, session: u32) -> Vec<HeldProcess> {
        held(&self.threads, &self.guard_threads, self.used_slots(), session)
    }

    /// Processes that the session guards and does not hold, with the profile slots of their
    /// programs.
    pub fn guarded_processes(&self, session: u32) -> BTreeMap<u32, u32> {
        let mut guarded = BTreeMap::new();
        for slot in 1..self.used_slots() {
            let thread = self.threads.read(slot);
            let is_own =
                u32::from(thread.guard.session) == session && thread.mask & wire::GUARD != 0;
            if thread.task != 0 && is_own {
                guarded.insert(thread.tgid, thread.guard.profile_slot.into());
            }
        }
        self.held(session).iter().for_each(|held| {
            guarded.remove(&held.tgid);
        });
        guarded
    }

    /// The number of slots that were ever allocated.
    fn used_slots(&self) -> u32 {
        self.header.read(0).next_thread.min(self.threads.entries())
    }

    fn release_held(&self, session: u32, gone: &[HeldProcess]) {
        let slots = self.used_slots();
        release_processes(&self.threads, slots, gone);
        if !gone.is_empty()
            && atomic_field!(self.sessions, session, sigconts).swap(0, Ordering::SeqCst) != 0
        {
            undo_pending_stops(&self.threads, slots, gone);
        }
    }

    /// Continues the held processes when they are asked to end. They wake for that only: a process
    /// that handles the signal is stopped again at its next call.
    pub fn wake_for_termination(&self, session: u32) {
        for held in self.held(session) {
            send(&self.threads, self.used_slots(), &held, libc::SIGCONT);
        }
    }

    /// Holds all threads of a process that the session guards until a time (`u64::MAX`: until it is
    /// released). Returns `false` if the session guards none.
    pub fn hold(&self, session: u32, tgid: u32, until_ns: u64) -> bool {
        let is_own = |thread: &wire::thread_state| {
            let is_guarded = thread.mask & wire::GUARD != 0
                && u32::from(thread.guard.profile_slot) != wire::GUARD_PROFILE_UNSELECTED;
            thread.task != 0 && thread.tgid == tgid && is_guarded
        };
        let mut number = None;
        atomic_field!(self.header, 0, ever_held).store(1, Ordering::SeqCst);
        atomic_field!(self.sessions, session, held).fetch_add(1, Ordering::SeqCst);
        for slot in 1..self.used_slots() {
            let thread = self.threads.read(slot);
            if is_own(&thread) && u32::from(thread.guard.session) == session {
                // The gate reads these where the flag is set, or a signal is sent.
                field!(self.guard_threads, slot, held_until_ns).write(until_ns);
                field!(self.guard_threads, slot, ever_held).write(1);
                held_flag(&self.threads, slot).store(1, Ordering::SeqCst);
                number = Some(thread.visible_pid);
            }
        }
        number.is_some_and(|thread| {
            let held = HeldProcess { tgid, thread, profile: 0, until_ns };
            send(&self.threads, self.used_slots(), &held, libc::SIGSTOP)
        })
    }

    /// Resets what its threads did, and lets the process run again.
    pub fn release_and_reset(&self, session: u32, held: &HeldProcess) {
        reset_locality(&self.threads, &self.guard_threads, self.used_slots(), held);
        self.release_held(session, &[*held]);
    }

    /// Sets the response of the session's guard, one of [`wire::guard_response`]. When this
    /// returns, no thread goes by the previous one.
    pub fn set_response(&self, session: u32, response: u32) {
        respond(&self.sessions, session, response);
        crate::cpus::wait_for_all();
    }

    /// Whether another process has switched the session's guard off since the last call.
    pub fn was_switched_off(&self, session: u32) -> bool {
        atomic_field!(self.sessions, session, is_disabled).swap(0, Ordering::SeqCst) != 0
    }

    /// From now on, processes of this POSIX session are only observed.
    pub fn set_exempt_session(&self, session: u32, spared_sid: u32) {
        field!(self.sessions, session, guard.exempt_sid).write(spared_sid);
    }

    /// Releases the processes whose time has come. Returns the next time, if any is still held.
    pub fn release_expired(&self, session: u32) -> Option<u64> {
        let now = now_ns();
        // A hold that begins meanwhile may count twice until the next poll.
        let since = atomic_field!(self.sessions, session, holds_begun).load(Ordering::SeqCst);
        atomic_field!(self.sessions, session, held).fetch_add(since, Ordering::SeqCst);
        atomic_field!(self.sessions, session, holds_begun).fetch_sub(since, Ordering::SeqCst);
        let held = self.held(session);
        atomic_field!(self.sessions, session, held).store(held.len() as u32, Ordering::SeqCst);
        let (due, later): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|held| held.until_ns <= now);
        self.release_held(session, &due);
        later.iter().map(|held| held.until_ns).min()
    }
}

/// Ends the session's guard, and lets the processes run that it holds.
fn release_all(gate: &Gate, session: u32) {
    stop_guarding(&gate.threads, session);
    crate::cpus::wait_for_all();
    gate.release_held(session, &gate.held(session));
    for slot in 1..gate.threads.entries() {
        let thread = gate.threads.read(slot);
        if u32::from(thread.guard.session) == session {
            // The gate does not use these without GUARD.
            field!(gate.threads, slot, guard.profile_slot).write(0);
            field!(gate.threads, slot, guard.session).write(0);
        }
    }
    gate.drop_profiles(session);
}

/// The guard's part of the life of sessions.
pub struct HoldsKernelSide;

impl KernelSide for HoldsKernelSide {
    fn release(&self, gate: &Gate, session: u32) {
        // This waits for all processors, which a session without a guard need not do.
        if gate.sessions.read(session).mask & wire::GUARD != 0 {
            release_all(gate, session);
        }
    }
}
