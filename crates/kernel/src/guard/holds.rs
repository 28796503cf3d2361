//! What a session's guard does to threads in the gate: it holds and releases them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::clock::now_ns;
use crate::cpus;
use crate::gate::Gate;
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
    /// The end of the hold, in nanoseconds of CLOCK_MONOTONIC. It is `u64::MAX` if an operator has
    /// to release the process.
    pub until_ns: u64,
}

/// The holds of a session's guard, and how the guard responds. They are in tables of the gate. The
/// guard's own process, its watchdog and `guard off` change them.
pub struct Holds<'a> {
    threads: &'a MappedArray<wire::thread_state>,
    guard_threads: &'a MappedArray<wire::guard_cold>,
    sessions: &'a MappedArray<wire::session>,
    /// Says how many thread slots there are to search. Without it, all are searched.
    header: Option<&'a MappedArray<wire::gate_header>>,
    session: u32,
}

impl<'a> Holds<'a> {
    /// The holds of a session's guard.
    pub fn new(gate: &'a Gate, session: u32) -> Self {
        let Gate { threads, guard_threads, sessions, header, .. } = gate;
        Self { threads, guard_threads, sessions, header: Some(header), session }
    }

    /// As [`Holds::new`], for a process that has only these tables of the gate.
    pub(crate) fn in_tables(
        threads: &'a MappedArray<wire::thread_state>,
        guard_threads: &'a MappedArray<wire::guard_cold>,
        sessions: &'a MappedArray<wire::session>,
        session: u32,
    ) -> Self {
        Self { threads, guard_threads, sessions, header: None, session }
    }

    /// The thread slots that were ever allocated.
    fn slots(&self) -> std::ops::Range<u32> {
        let next = self.header.map_or(u32::MAX, |header| header.read(0).next_thread);
        1..next.min(self.threads.entries())
    }

    fn held_flag(&self, slot: u32) -> &AtomicU8 {
        atomic_field!(self.threads, slot, guard.held)
    }

    fn is_held(&self, slot: u32) -> bool {
        self.held_flag(slot).load(Ordering::SeqCst) != 0
    }

    /// The processes that are held now, each until the latest time of its threads.
    pub fn held(&self) -> Vec<HeldProcess> {
        let mut until = BTreeMap::new();
        for slot in self.slots() {
            if !self.is_held(slot) {
                continue;
            }
            let thread = self.threads.read(slot);
            if thread.task != 0 && u32::from(thread.guard.session) == self.session {
                let HeldProcess { until_ns, .. } =
                    until.entry(thread.tgid).or_insert(HeldProcess {
                        tgid: thread.tgid,
                        thread: thread.visible_pid,
                        profile: thread.guard.profile_slot.into(),
                        until_ns: 0,
                    });
                *until_ns = self.guard_threads.read(slot).held_until_ns.max(*until_ns);
            }
        }
        until.into_values().collect()
    }

    /// Sends the process a signal, by the number of one of its threads. If that thread was held at
    /// its `exit`, it may have ended since. Then the number of another thread is used.
    fn send(&self, held: &HeldProcess, signal: i32) -> bool {
        // SAFETY: takes two numbers. The thread's slot says that the process lives or has just
        // ended.
        let is_sent = |thread: u32| unsafe { libc::kill(thread as i32, signal) == 0 };
        let mut others = self.slots().map(|slot| self.threads.read(slot));
        is_sent(held.thread)
            || others.any(|thread| {
                thread.task != 0 && thread.tgid == held.tgid && is_sent(thread.visible_pid)
            })
    }

    fn held_slots(&self, held: &HeldProcess) -> impl Iterator<Item = u32> {
        let is_its = |slot: u32| self.threads.read(slot).tgid == held.tgid;
        self.slots().filter(move |slot| self.is_held(*slot) && is_its(*slot))
    }

    /// Resets the locality frames of a process's threads, so that earlier anomalies do not count
    /// against them any more.
    fn reset_locality(&self, held: &HeldProcess) {
        for slot in self.slots().filter(|slot| self.threads.read(*slot).tgid == held.tgid) {
            // A thread that has not stopped yet may make another call and write one of these fields
            // again. Then its reset is partial.
            field!(self.guard_threads, slot, frame).write([0; 2]);
            field!(self.guard_threads, slot, max_lfc).write(0);
            // With the old window, the next calls would be anomalous.
            field!(self.threads, slot, guard.window).write(0);
            field!(self.threads, slot, guard.lfc).write(0);
        }
    }

    fn release(&self, processes: &[HeldProcess]) {
        for held in processes {
            self.held_slots(held).for_each(|slot| self.held_flag(slot).store(0, Ordering::SeqCst));
            self.send(held, libc::SIGCONT);
        }
    }

    /// Undoes stops that may still arrive at released processes. When another process sends a held
    /// process SIGCONT, the gate sends it SIGSTOP again (bpf/guard/sigcont.bpf.h). After the wait,
    /// such a SIGSTOP has arrived, though it may not have taken effect, and SIGCONT removes it.
    fn undo_pending_stops(&self, released: &[HeldProcess]) {
        if released.is_empty() {
            return;
        }
        cpus::wait_for_all();
        for held in released.iter().filter(|held| self.held_slots(held).next().is_none()) {
            self.send(held, libc::SIGCONT);
        }
    }

    /// Releases processes of a guard that continues.
    fn release_held(&self, processes: &[HeldProcess]) {
        self.release(processes);
        if !processes.is_empty()
            && atomic_field!(self.sessions, self.session, sigconts).swap(0, Ordering::SeqCst) != 0
        {
            self.undo_pending_stops(processes);
        }
    }

    /// Ends a guard whose process was killed. Without this, the guard would go on in a gate that
    /// another Tollgate process keeps attached. Returns how many processes were held.
    pub(crate) fn end_guard(&self) -> usize {
        self.write_response(wire::GUARD_OBSERVE);
        self.stop_guarding();
        let held = self.held();
        self.release(&held);
        self.undo_pending_stops(&held);
        held.len()
    }

    /// Ends the session's guard, and releases all processes that it holds.
    pub(crate) fn release_all(&self) {
        self.stop_guarding();
        cpus::wait_for_all();
        self.release_held(&self.held());
        for slot in 1..self.threads.entries() {
            let thread = self.threads.read(slot);
            if u32::from(thread.guard.session) == self.session {
                // The gate does not use these fields without GUARD.
                field!(self.threads, slot, guard.profile_slot).write(0);
                field!(self.threads, slot, guard.session).write(0);
            }
        }
    }

    /// Makes a running guard stop holding processes, without ending the guard. Returns how many
    /// processes were held.
    pub(crate) fn switch_off(&self) -> usize {
        self.write_response(wire::GUARD_OBSERVE);
        atomic_field!(self.sessions, self.session, is_disabled).store(1, Ordering::SeqCst);
        cpus::wait_for_all();
        let held = self.held();
        held.iter().for_each(|held| self.reset_locality(held));
        self.release(&held);
        self.undo_pending_stops(&held);
        held.len()
    }

    fn write_response(&self, response: u32) {
        field!(self.sessions, self.session, guard.response).write(response);
    }

    /// Makes the session's guard test no more calls.
    fn stop_guarding(&self) {
        for slot in 1..self.threads.entries() {
            let thread = self.threads.read(slot);
            if thread.task != 0 && u32::from(thread.guard.session) == self.session {
                atomic_field!(self.threads, slot, mask).fetch_and(!wire::GUARD, Ordering::SeqCst);
            }
        }
    }

    /// Processes that the session guards and does not hold, with the profile slots of their
    /// programs.
    pub fn guarded_processes(&self) -> BTreeMap<u32, u32> {
        let mut guarded = BTreeMap::new();
        for slot in self.slots() {
            let thread = self.threads.read(slot);
            let is_own =
                u32::from(thread.guard.session) == self.session && thread.mask & wire::GUARD != 0;
            if thread.task != 0 && is_own {
                guarded.insert(thread.tgid, thread.guard.profile_slot.into());
            }
        }
        self.held().iter().for_each(|held| {
            guarded.remove(&held.tgid);
        });
        guarded
    }

    /// Lets the held processes run when they are requested to end, so that the signal can end them.
    /// A process that handles the signal is stopped again at its next call.
    pub fn wake_for_termination(&self) {
        for held in self.held() {
            self.send(&held, libc::SIGCONT);
        }
    }

    /// Releases a process, and resets its threads' locality frames.
    pub fn release_and_reset(&self, held: &HeldProcess) {
        self.reset_locality(held);
        self.release_held(&[*held]);
    }

    /// Sets the guard's response, one of [`wire::guard_response`]. When this returns, no thread
    /// uses the previous response any more.
    pub fn set_response(&self, response: u32) {
        self.write_response(response);
        cpus::wait_for_all();
    }

    /// Whether another process has switched the guard off since the last call.
    pub fn was_switched_off(&self) -> bool {
        atomic_field!(self.sessions, self.session, is_disabled).swap(0, Ordering::SeqCst) != 0
    }

    /// Exempts the processes of a POSIX session (as the initial PID namespace numbers it) from now
    /// on. The session that was exempt before is no longer exempt.
    pub fn set_exempt_session(&self, sid: u32) {
        field!(self.sessions, self.session, guard.exempt_sid).write(sid);
    }

    /// Releases the processes whose time has come. Returns the next such time (nanoseconds of
    /// CLOCK_MONOTONIC), if any process is still held.
    pub fn release_expired(&self) -> Option<u64> {
        let now = now_ns();
        let (sessions, session) = (self.sessions, self.session);
        // A hold that begins meanwhile may count twice until the next poll.
        let since = atomic_field!(sessions, session, holds_begun).load(Ordering::SeqCst);
        atomic_field!(sessions, session, held).fetch_add(since, Ordering::SeqCst);
        atomic_field!(sessions, session, holds_begun).fetch_sub(since, Ordering::SeqCst);
        let held = self.held();
        atomic_field!(sessions, session, held).store(held.len() as u32, Ordering::SeqCst);
        let (due, later): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|held| held.until_ns <= now);
        self.release_held(&due);
        later.iter().map(|held| held.until_ns).min()
    }
}

/// Makes the session's guard hold all threads of a process (`tgid` in the initial PID namespace)
/// until a time, in nanoseconds of CLOCK_MONOTONIC. With `u64::MAX`, the process is held until it
/// is released. Returns `false` if the session guards none of its threads.
pub fn hold(gate: &Gate, session: u32, tgid: u32, until_ns: u64) -> bool {
    let holds = Holds::new(gate, session);
    let is_own = |thread: &wire::thread_state| {
        let is_guarded = thread.mask & wire::GUARD != 0
            && u32::from(thread.guard.profile_slot) != wire::GUARD_PROFILE_UNSELECTED;
        thread.task != 0 && thread.tgid == tgid && is_guarded
    };
    let mut number = None;
    atomic_field!(gate.header, 0, ever_held).store(1, Ordering::SeqCst);
    atomic_field!(gate.sessions, session, held).fetch_add(1, Ordering::SeqCst);
    for slot in holds.slots() {
        let thread = gate.threads.read(slot);
        if is_own(&thread) && u32::from(thread.guard.session) == session {
            // The gate reads these fields if the flag is set, or when a signal is sent.
            field!(gate.guard_threads, slot, held_until_ns).write(until_ns);
            field!(gate.guard_threads, slot, ever_held).write(1);
            holds.held_flag(slot).store(1, Ordering::SeqCst);
            number = Some(thread.visible_pid);
        }
    }
    number.is_some_and(|thread| {
        holds.send(&HeldProcess { tgid, thread, profile: 0, until_ns }, libc::SIGSTOP)
    })
}
