//! Threads that the guard holds, and their release.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore as _, MapHandle};

use crate::clock::now_ns;
use crate::error::{ErrorContext, Result};
use crate::gate::Gate;
use crate::hold_table::unpin;
use crate::mapped_array::{MappedArray, atomic_field};
use crate::{process, wire};

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
    let place = threads.entry(slot);
    // SAFETY: a byte within the mapping, which both sides access as a whole.
    unsafe { AtomicU8::from_ptr(&raw mut (*place).__bindgen_anon_1.__bindgen_anon_1.held) }
}

fn is_held(threads: &MappedArray<wire::thread_state>, slot: u32) -> bool {
    held_flag(threads, slot).load(Ordering::SeqCst) != 0
}

fn held(threads: &MappedArray<wire::thread_state>, slots: u32, session: u32) -> Vec<HeldProcess> {
    let mut until = BTreeMap::new();
    for slot in 1..slots {
        if !is_held(threads, slot) {
            continue;
        }
        let thread = threads.read(slot);
        if thread.task != 0 && u32::from(thread.guard_session) == session {
            let HeldProcess { until_ns, .. } = until.entry(thread.tgid).or_insert(HeldProcess {
                tgid: thread.tgid,
                thread: thread.visible_pid,
                profile: thread.profile_slot.into(),
                until_ns: 0,
            });
            *until_ns = thread.held_until_ns.max(*until_ns);
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
fn reset_locality(threads: &MappedArray<wire::thread_state>, slots: u32, held: &HeldProcess) {
    for slot in (1..slots).filter(|slot| threads.read(*slot).tgid == held.tgid) {
        let place = threads.entry(slot);
        // SAFETY: aligned fields of the mapped entry. A thread that still makes calls, until it
        // stops at the next one, may write one of them again: then its reset is partial.
        unsafe {
            (&raw mut (*place).frame).write_volatile([0; 2]);
            (&raw mut (*place).max_lfc).write_volatile(0);
            // With the old window, the next calls would be anomalous.
            (&raw mut (*place).window).write_volatile(0);
            (&raw mut (*place).__bindgen_anon_1.__bindgen_anon_1.lfc).write_volatile(0);
        }
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
    sessions: &MappedArray<wire::session>,
    session: u32,
) -> usize {
    respond(sessions, session, wire::GUARD_OBSERVE);
    stop_guarding(threads, session);
    let held = held(threads, threads.entries(), session);
    release_processes(threads, threads.entries(), &held);
    undo_pending_stops(threads, threads.entries(), &held);
    held.len()
}

/// Makes a guard that continues hold no process from now on. Returns how many processes were held.
pub(crate) fn switch_off(
    threads: &MappedArray<wire::thread_state>,
    sessions: &MappedArray<wire::session>,
    session: u32,
) -> usize {
    respond(sessions, session, wire::GUARD_OBSERVE);
    atomic_field!(sessions, session, is_disabled).store(1, Ordering::SeqCst);
    crate::cpus::wait_for_all();
    let held = held(threads, threads.entries(), session);
    held.iter().for_each(|held| reset_locality(threads, threads.entries(), held));
    release_processes(threads, threads.entries(), &held);
    undo_pending_stops(threads, threads.entries(), &held);
    held.len()
}

fn respond(sessions: &MappedArray<wire::session>, session: u32, response: u32) {
    let place = sessions.entry(session);
    // SAFETY: an aligned field of the mapped entry, which the gate only reads.
    unsafe { (&raw mut (*place).guard.response).write_volatile(response) };
}

/// Makes the session's guard test no more calls.
fn stop_guarding(threads: &MappedArray<wire::thread_state>, session: u32) {
    for slot in 1..threads.entries() {
        let thread = threads.read(slot);
        if thread.task != 0 && u32::from(thread.guard_session) == session {
            atomic_field!(threads, slot, mask).fetch_and(!wire::GUARD, Ordering::SeqCst);
        }
    }
}

/// How long the watchdog sleeps at most.
const LOOK: Duration = Duration::from_secs(3600);
/// How long the gate of a killed process may still act: the kernel closes its links soon after.
const RELEASE_GRACE: Duration = Duration::from_secs(1);

/// Starts a process in the process group `group`. Its parent is the watchdog, which is in another
/// group of the same session. This keeps the kernel from treating the group as orphaned when the
/// guard's process is killed: the stopped processes of an orphaned group get SIGHUP (kernel/exit.c,
/// `kill_orphaned_pgrp`). It ends with the watchdog.
fn keep_group_from_orphaning(group: i32) -> Result<()> {
    let mut pipe = [0; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error()).doing("make a pipe");
    }
    // SAFETY: the watchdog has one thread; the child makes system calls only.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()).doing("start a process"),
        0 => {
            // SAFETY: plain calls on our own descriptors and process; the read ends with the
            // watchdog.
            unsafe {
                libc::close(pipe[1]);
                for signal in
                    [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGTSTP]
                {
                    libc::signal(signal, libc::SIG_IGN);
                }
                libc::setpgid(0, group);
                let mut byte = 0_u8;
                libc::read(pipe[0], (&raw mut byte).cast(), 1);
                libc::_exit(0)
            }
        }
        _ => Ok(()),
    }
}

/// What a watchdog needs to know of its guard: the process, its session, and the IDs of two of the
/// gate's maps.
#[derive(Debug, Clone, Copy)]
pub struct WatchdogTarget {
    pub owner: u32,
    pub session: u32,
    pub threads_map: u32,
    pub sessions_map: u32,
}

/// Above the descriptors of the gate: the kernel closes those of a killed process from the last to
/// the first (v6.18 kernel/task_work.c, `task_work_run`), and each link of the gate takes it a
/// while.
const LIVENESS_FD: i32 = 512;

/// A pipe that closes with this process: its first half then reads as ended. The end of the process
/// itself is seen only after its gate is gone.
pub fn liveness_pipe() -> Result<(OwnedFd, OwnedFd)> {
    let what = "make a pipe for the watchdog";
    let (near, far) = io::pipe().doing(what)?;
    // SAFETY: a plain call, which returns a new descriptor.
    let high = unsafe { libc::fcntl(far.as_raw_fd(), libc::F_DUPFD_CLOEXEC, LIVENESS_FD) };
    if high < 0 {
        // The process may have fewer descriptors.
        return Ok((near.into(), far.into()));
    }
    // SAFETY: as above.
    Ok((near.into(), unsafe { OwnedFd::from_raw_fd(high) }))
}

/// Started through /proc, it would be called "exe".
pub fn name_watchdog() {
    // SAFETY: a name of less than 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"tollgate-wdog".as_ptr()) };
}

/// The watchdog: reports that it is ready, waits for the end of the guard's process or of its
/// liveness pipe, which is the standard input, and then releases all processes that the guard
/// holds.
pub fn watch_owner(ward: WatchdogTarget, on_duty: impl FnOnce()) -> Result<()> {
    name_watchdog();
    // SAFETY: a plain query.
    keep_group_from_orphaning(unsafe { libc::getpgid(ward.owner as i32) })?;
    // It may have ended already, and its liveness pipe with it.
    let owner = process::open_pidfd(ward.owner).ok();
    let owner = owner.as_ref().map_or(libc::STDIN_FILENO, |owner| owner.as_raw_fd());
    let open = |id| MapHandle::from_map_id(id).doing("opening the gate's maps");
    let threads = MappedArray::<wire::thread_state>::new(&open(ward.threads_map)?, wire::THREADS)?;
    let sessions = MappedArray::<wire::session>::new(&open(ward.sessions_map)?, wire::SESSIONS)?;
    on_duty();
    while process::wait_for([libc::STDIN_FILENO, owner], LOOK) == [false, false] {}
    let began = Instant::now();
    // Until another Tollgate has cleared the session, which releases as well: its number may be
    // reused.
    while began.elapsed() < RELEASE_GRACE && sessions.read(ward.session).owner_pid == ward.owner {
        end_session_guard(&threads, &sessions, ward.session);
        sleep(Duration::from_millis(1));
    }
    unpin(ward.owner);
    Ok(())
}

impl Gate {
    /// What the watchdog of this process's guard needs to know.
    pub fn watchdog_target(&self, session: u32) -> Result<WatchdogTarget> {
        let id = |map| Ok(self.maps.get(map).info().doing("numbering its maps")?.info.id);
        let (threads_map, sessions_map) = (id(".bss.threads")?, id("sessions")?);
        Ok(WatchdogTarget { owner: std::process::id(), session, threads_map, sessions_map })
    }

    /// Processes held by the session's guard, each until the latest time of its threads.
    pub fn held(&self, session: u32) -> Vec<HeldProcess> {
        held(&self.threads, self.used_slots(), session)
    }

    /// Processes that the session guards and does not hold, with the profile slots of their
    /// programs.
    pub fn guarded_processes(&self, session: u32) -> BTreeMap<u32, u32> {
        let mut guarded = BTreeMap::new();
        for slot in 1..self.used_slots() {
            let thread = self.threads.read(slot);
            let is_own =
                u32::from(thread.guard_session) == session && thread.mask & wire::GUARD != 0;
            if thread.task != 0 && is_own {
                guarded.insert(thread.tgid, thread.profile_slot.into());
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
                && u32::from(thread.profile_slot) != wire::GUARD_PROFILE_UNSELECTED;
            thread.task != 0 && thread.tgid == tgid && is_guarded
        };
        let mut number = None;
        atomic_field!(self.header, 0, ever_held).store(1, Ordering::SeqCst);
        atomic_field!(self.sessions, session, held).fetch_add(1, Ordering::SeqCst);
        for slot in 1..self.used_slots() {
            let thread = self.threads.read(slot);
            if is_own(&thread) && u32::from(thread.guard_session) == session {
                let place = self.threads.entry(slot);
                // SAFETY: aligned fields of the mapped entry, which the gate reads where the flag
                // is set, or a signal is sent.
                unsafe {
                    (&raw mut (*place).held_until_ns).write_volatile(until_ns);
                    (&raw mut (*place).ever_held).write_volatile(1);
                }
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
        reset_locality(&self.threads, self.used_slots(), held);
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
        let place = self.sessions.entry(session);
        // SAFETY: an aligned field of the mapped entry, which the gate only reads.
        unsafe { (&raw mut (*place).guard.exempt_sid).write_volatile(spared_sid) };
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

    /// Ends the session's guard, and lets the processes run that it holds.
    pub(crate) fn release_all_held(&self, session: u32) {
        stop_guarding(&self.threads, session);
        crate::cpus::wait_for_all();
        self.release_held(session, &self.held(session));
        for slot in 1..self.threads.entries() {
            let thread = self.threads.read(slot);
            if u32::from(thread.guard_session) == session {
                let place = self.threads.entry(slot);
                // SAFETY: aligned fields of the mapped entry, which the gate does not use without
                // GUARD.
                unsafe {
                    (&raw mut (*place).profile_slot).write_volatile(0);
                    (&raw mut (*place).guard_session).write_volatile(0);
                }
            }
        }
        self.drop_profiles(session);
    }
}
