//! What a session's guard does to threads in the gate: it holds and releases them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use super::hold_decisions::{
    ends_with, is_due, is_stopped_with_child, is_to_be_continued, to_be_repeated,
};
use crate::clock::{boot_ns, now_ns};
use crate::cpus;
use crate::gate::Gate;
use crate::mapped_array::{MappedArray, atomic_field, field};
use crate::{process, wire};

/// A hold that is over by this time was forgotten by the guard's process, which releases processes
/// within 100 ms.
const OVERDUE_NS: u64 = 500_000_000;
/// How often the watchdog checks the guard's process, and searches for processes that it has
/// forgotten.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(400);
/// How often the watchdog releases processes while the guard's process hangs: it does not know of
/// holds that begin meanwhile.
const STAND_IN_INTERVAL: Duration = Duration::from_millis(5);
/// How long the guard's process may take between two checks, and how exact the start of a thread is
/// in /proc.
const RELEASE_GRACE_NS: u64 = 1_000_000_000;

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
    /// It was requested to end, and is to be released so that it can.
    pub is_terminating: bool,
}

/// The holds of a session's guard, and how the guard responds. They are in tables of the gate. The
/// guard's own process, its watchdog and `guard off` change them.
pub struct Holds<'a> {
    pub(super) threads: &'a MappedArray<wire::thread_state>,
    pub(super) guard_threads: &'a MappedArray<wire::guard_cold>,
    sessions: &'a MappedArray<wire::session>,
    /// Says how many thread slots there are to search. Without it, all are searched.
    header: Option<&'a MappedArray<wire::gate_header>>,
    pub(super) session: u32,
    /// Threads that began later, by CLOCK_BOOTTIME, are others with the same numbers.
    ended_ns: Option<u64>,
}

/// The structure that rt_sigqueueinfo(2) takes (include/uapi/asm-generic/siginfo.h).
#[repr(C)]
struct QueuedSignal {
    signal: i32,
    errno: i32,
    code: i32,
    padding: i32,
    sender: i32,
    user: u32,
    value: u64,
    unused: [u64; 12],
}

/// Sends a signal to the process of a thread. The gate knows by its value that it comes from
/// Tollgate. Returns `false` if the thread has ended.
fn send_to(thread: u32, signal: i32) -> bool {
    let queued = QueuedSignal {
        signal,
        errno: 0,
        code: libc::SI_QUEUE,
        padding: 0,
        sender: std::process::id() as i32,
        user: 0,
        value: wire::GUARD_SIGNAL.into(),
        unused: [0; 12],
    };
    // SAFETY: takes two numbers, and reads a structure of the size that it expects.
    unsafe { libc::syscall(libc::SYS_rt_sigqueueinfo, thread, signal, &raw const queued) == 0 }
}

/// Whether the guard's process hangs, or is stopped. It tends its holds every 100 ms. It did so
/// last at `tended_ns`; 0: it has not begun.
fn hangs(tended_ns: u64, now_ns: u64) -> bool {
    tended_ns != 0 && now_ns.saturating_sub(tended_ns) > OVERDUE_NS
}

/// The end of a grace that begins now ([`wire::guard_cold`]).
fn grace_until() -> u32 {
    ((now_ns() + wire::GUARD_GRACE_NS) >> wire::GUARD_GRACE_SHIFT) as u32
}

impl<'a> Holds<'a> {
    /// The holds of a session's guard.
    pub fn new(gate: &'a Gate, session: u32) -> Self {
        let Gate { threads, guard_threads, sessions, header, .. } = gate;
        Self { threads, guard_threads, sessions, header: Some(header), session, ended_ns: None }
    }

    /// As [`Holds::new`], for a process that has only these tables of the gate.
    pub(crate) fn in_tables(
        threads: &'a MappedArray<wire::thread_state>,
        guard_threads: &'a MappedArray<wire::guard_cold>,
        sessions: &'a MappedArray<wire::session>,
        session: u32,
    ) -> Self {
        Self { threads, guard_threads, sessions, header: None, session, ended_ns: None }
    }

    /// Searches only the slots that this header says were ever allocated.
    pub(crate) fn with_header(self, header: &'a MappedArray<wire::gate_header>) -> Self {
        Self { header: Some(header), ..self }
    }

    /// For a gate that has ended. It did not see its threads end, and their numbers may be those of
    /// other threads now.
    pub(crate) fn of_ended_gate(self) -> Self {
        let ended_ns = self.sessions.read(self.session).guard_tended_ns + RELEASE_GRACE_NS;
        Self { ended_ns: Some(ended_ns), ..self }
    }

    /// The thread slots that were ever allocated.
    pub(super) fn slots(&self) -> std::ops::Range<u32> {
        let next = self.header.map_or(u32::MAX, |header| header.read(0).next_thread);
        1..next.min(self.threads.entries())
    }

    fn held_flag(&self, slot: u32) -> &AtomicU8 {
        atomic_field!(self.threads, slot, guard.held)
    }

    pub(super) fn is_held(&self, slot: u32) -> bool {
        self.held_flag(slot).load(Ordering::SeqCst) != 0
    }

    /// Whether the thread of a slot is guarded by this session, and exists.
    pub(super) fn is_own(&self, thread: &wire::thread_state) -> bool {
        thread.task != 0
            && u32::from(thread.guard.session) == self.session
            && self.ended_ns.is_none_or(|ended_ns| {
                process::began_ns(thread.visible_pid).is_some_and(|began_ns| began_ns <= ended_ns)
            })
    }

    /// The processes that are held now, each until the latest time of its threads.
    pub fn held(&self) -> Vec<HeldProcess> {
        let mut until = BTreeMap::new();
        for slot in self.slots() {
            if !self.is_held(slot) {
                continue;
            }
            let thread = self.threads.read(slot);
            if self.is_own(&thread) {
                let held = until.entry(thread.tgid).or_insert(HeldProcess {
                    tgid: thread.tgid,
                    thread: thread.visible_pid,
                    profile: thread.guard.profile_slot.into(),
                    until_ns: 0,
                    is_terminating: false,
                });
                let cold = self.guard_threads.read(slot);
                held.until_ns = cold.held_until_ns.max(held.until_ns);
                held.is_terminating |= cold.grace_until != 0;
            }
        }
        until.into_values().collect()
    }

    /// Sends the process a signal, by the number of one of its threads. If that thread was held at
    /// its `exit`, it may have ended since. Then the number of another thread is used.
    fn send(&self, held: &HeldProcess, signal: i32) -> bool {
        let mut others = self.slots().map(|slot| self.threads.read(slot));
        send_to(held.thread, signal)
            || others.any(|thread| {
                self.is_own(&thread)
                    && thread.tgid == held.tgid
                    && send_to(thread.visible_pid, signal)
            })
    }

    fn slots_of(&self, tgid: u32) -> impl Iterator<Item = u32> {
        self.slots().filter(move |slot| {
            let thread = self.threads.read(*slot);
            thread.task != 0 && thread.tgid == tgid
        })
    }

    /// The signal by which another process has stopped this one; 0: none.
    pub(super) fn foreign_stop(&self, tgid: u32) -> u8 {
        let stops = self.slots_of(tgid).map(|slot| self.guard_threads.read(slot));
        stops.map(|cold| cold.foreign_stop).max().unwrap_or(0)
    }

    /// Ends a stop by the guard, but not one by another process.
    pub(super) fn continue_process(&self, held: &HeldProcess) {
        let foreign_stop = self.foreign_stop(held.tgid);
        if !is_to_be_continued(foreign_stop) {
            return;
        }
        if is_stopped_with_child(foreign_stop) {
            // Not after the SIGCONT, because the process may stop itself again then.
            for slot in self.slots_of(held.tgid) {
                atomic_field!(self.guard_threads, slot, foreign_stop)
                    .fetch_and(!(wire::FOREIGN_STOP_WITH_CHILD as u8), Ordering::SeqCst);
            }
        }
        self.send(held, libc::SIGCONT);
        while let Some(signal) = to_be_repeated(self.foreign_stop(held.tgid)) {
            self.send(held, signal);
            // If the process was continued meanwhile, the repeated signal came too late.
            if self.foreign_stop(held.tgid) != 0 {
                return;
            }
            self.send(held, libc::SIGCONT);
        }
    }

    /// Whether the gate has ever held a thread, in any session.
    pub(super) fn was_any_held(&self) -> bool {
        self.header.is_none_or(|header| header.read(0).ever_held != 0)
    }

    pub(super) fn held_slots(&self, held: &HeldProcess) -> impl Iterator<Item = u32> {
        self.slots().filter(move |slot| {
            // The slot of a thread that has ended keeps its flag until it is allocated again.
            let is_its =
                |thread: &wire::thread_state| thread.tgid == held.tgid && self.is_own(thread);
            self.is_held(*slot) && is_its(&self.threads.read(*slot))
        })
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
            for slot in self.held_slots(held).collect::<Vec<_>>() {
                let until_ns = self.guard_threads.read(slot).held_until_ns;
                if !ends_with(until_ns, held.until_ns, held.is_terminating) {
                    continue;
                }
                if held.is_terminating {
                    // The time begins again, in case this process comes late.
                    field!(self.guard_threads, slot, grace_until).write(grace_until());
                }
                self.held_flag(slot).store(0, Ordering::SeqCst);
            }
            self.continue_released(held);
        }
    }

    /// Continues a process that is not held any more. If it has stopped itself with a child, the
    /// sweep does so when the child runs.
    fn continue_released(&self, held: &HeldProcess) {
        let waits = is_stopped_with_child(self.foreign_stop(held.tgid)) && !held.is_terminating;
        if self.held_slots(held).next().is_none() && !waits {
            self.continue_process(held);
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
        released.iter().for_each(|held| self.continue_released(held));
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
        self.continue_left_stopped();
        held.len()
    }

    /// Ends the session's guard, and releases all processes that it holds.
    pub(crate) fn release_all(&self) {
        self.stop_guarding();
        cpus::wait_for_all();
        let held = self.held();
        self.release(&held);
        self.undo_pending_stops(&held);
        self.continue_left_stopped_at_end();
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

    /// A process of this session, or one of those that are about to join it, which another session
    /// guards, and the process of that session. It stays with that session. `is_meant`: whether
    /// this session is to guard a process.
    pub fn guarded_by_another(
        &self,
        joining: &[u32],
        is_meant: impl Fn(u32) -> bool,
    ) -> Option<(u32, u32)> {
        self.slots().map(|slot| self.threads.read(slot)).find_map(|thread| {
            // A new thread has no guard for a moment.
            let is_guarded = thread.task != 0
                && thread.mask & wire::GUARD != 0
                && thread.guard.session != 0
                && u32::from(thread.guard.profile_slot) != wire::GUARD_PROFILE_UNSELECTED;
            let session = u32::from(thread.guard.session);
            let joins = u32::from(thread.session) == self.session || joining.contains(&thread.tgid);
            (is_guarded && session != self.session && joins && is_meant(thread.tgid))
                .then(|| (thread.tgid, self.sessions.read(session).owner_pid))
        })
    }

    /// Lets all processes of the session run for [`wire::GUARD_GRACE_NS`], so that they can end.
    /// Returns how many were held.
    pub fn begin_grace(&self) -> usize {
        for slot in self.slots().filter(|slot| self.is_own(&self.threads.read(*slot))) {
            atomic_field!(self.guard_threads, slot, grace_until)
                .store(grace_until(), Ordering::SeqCst);
        }
        let held = self.held();
        self.release_held(&held);
        held.len()
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

    /// How many SIGCONTs others have sent to processes that were held, and the process that got the
    /// latest one, if it still exists.
    pub fn foreign_continues(&self) -> (u64, Option<u32>) {
        let session = self.sessions.read(self.session);
        (session.foreign_continues, process::process_of_thread(session.foreign_continued))
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

    /// Releases the processes whose time has come, and those that were requested to end. Returns
    /// them, and the next such time (nanoseconds of CLOCK_MONOTONIC), if any process is still held.
    pub fn release_due(&self) -> (Vec<HeldProcess>, Option<u64>) {
        field!(self.sessions, self.session, guard_tended_ns).write(boot_ns());
        self.release_due_now()
    }

    /// What [`Self::release_due`] does, in the place of the guard's process.
    fn release_due_now(&self) -> (Vec<HeldProcess>, Option<u64>) {
        let now = now_ns();
        let (sessions, session) = (self.sessions, self.session);
        // A hold that begins meanwhile may count twice until the next poll.
        let since = atomic_field!(sessions, session, holds_begun).load(Ordering::SeqCst);
        atomic_field!(sessions, session, held).fetch_add(since, Ordering::SeqCst);
        // Never below 0, if the watchdog and the guard's process do this at the same moment.
        let without = |begun: u32| Some(begun.saturating_sub(since));
        let begun = atomic_field!(sessions, session, holds_begun);
        let _ = begun.fetch_update(Ordering::SeqCst, Ordering::SeqCst, without);
        let held = self.held();
        atomic_field!(sessions, session, held).store(held.len() as u32, Ordering::SeqCst);
        let (due, later): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|held| is_due(held.until_ns, held.is_terminating, now));
        self.release_held(&due);
        let next = later.iter().map(|held| held.until_ns).min();
        (due, next)
    }

    /// Does what the guard's process should do, if that has released nothing for a while because it
    /// is stopped, or hangs. Returns the time until the next call.
    pub(crate) fn stand_in(&self) -> Duration {
        let tended_ns = self.sessions.read(self.session).guard_tended_ns;
        if !hangs(tended_ns, boot_ns()) {
            self.release_overdue();
            return CHECK_INTERVAL;
        }
        let (_, next_ns) = self.release_due_now();
        self.continue_left_stopped();
        let left = next_ns.map_or(u64::MAX, |next_ns| next_ns.saturating_sub(now_ns()));
        STAND_IN_INTERVAL.min(Duration::from_nanos(left))
    }

    /// Releases processes that the guard's process has forgotten.
    fn release_overdue(&self) {
        let latest = now_ns().saturating_sub(OVERDUE_NS);
        let mut overdue = self.held();
        overdue.retain(|held| held.until_ns <= latest);
        self.release(&overdue);
        self.undo_pending_stops(&overdue);
        self.continue_left_stopped();
    }
}

/// Whether a guard of any session has stopped this process (as this process's PID namespace numbers
/// it), or may have: no other process has certainly stopped it.
pub fn is_stopped_by_guard(gate: &Gate, pid: u32) -> bool {
    // The number of the session does not matter here.
    let holds = Holds::new(gate, 0);
    let mut threads = holds.slots().map(|slot| gate.threads.read(slot));
    let leader = threads.find(|thread| thread.task != 0 && thread.visible_pid == pid);
    let Some(tgid) = leader.map(|leader| leader.tgid) else { return false };
    let is_guarded = |slot| gate.threads.read(slot).mask & wire::GUARD != 0;
    holds.slots_of(tgid).any(|slot| holds.is_held(slot))
        || holds.slots_of(tgid).any(is_guarded) && is_to_be_continued(holds.foreign_stop(tgid))
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
    let mut held = None;
    atomic_field!(gate.header, 0, ever_held).store(1, Ordering::SeqCst);
    atomic_field!(gate.sessions, session, held).fetch_add(1, Ordering::SeqCst);
    for slot in holds.slots() {
        let thread = gate.threads.read(slot);
        if is_own(&thread) && u32::from(thread.guard.session) == session {
            // The gate reads these fields if the flag is set, or when a signal is sent.
            field!(gate.guard_threads, slot, grace_until).write(0);
            field!(gate.guard_threads, slot, held_until_ns).write(until_ns);
            field!(gate.guard_threads, slot, ever_held).write(1);
            holds.held_flag(slot).store(1, Ordering::SeqCst);
            let (thread, profile) = (thread.visible_pid, 0);
            held = Some(HeldProcess { tgid, thread, profile, until_ns, is_terminating: false });
        }
    }
    let Some(held) = held else { return false };
    let is_sent = holds.send(&held, libc::SIGSTOP);
    // `guard off` may have released the process before this SIGSTOP, and the threads that have the
    // flag may have ended. Then nobody holds the process.
    if holds.held_slots(&held).next().is_none() {
        holds.continue_process(&held);
    }
    is_sent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_notices_a_hang_within_a_second() {
        let tended_ns = 1_000_000_000_000;
        assert!(!hangs(0, tended_ns), "the guard is still starting");
        assert!(!hangs(tended_ns, tended_ns + 300_000_000), "three intervals of the runner");
        let noticed = Duration::from_secs(1) - CHECK_INTERVAL;
        assert!(hangs(tended_ns, tended_ns + noticed.as_nanos() as u64));
        // The clock was read before the guard's process wrote its time.
        assert!(!hangs(tended_ns, tended_ns - 1));
    }
}
