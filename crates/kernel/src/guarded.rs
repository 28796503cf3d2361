//! Threads that the guard holds, and letting them go.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore as _, MapHandle};

use crate::clock::now_ns;
use crate::error::{Doing, Result};
use crate::gate::Gate;
use crate::mapping::{Mapping, atomic_field};
use crate::pinned::unpin;
use crate::{process, wire};

/// A process that is stopped until a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// In the initial PID namespace.
    pub tgid: u32,
    /// One of its threads, as this process's PID namespace numbers it.
    pub thread: u32,
    /// That thread's program, by its place.
    pub profile: u32,
    /// `u64::MAX`: for good.
    pub until_ns: u64,
}

fn held_flag(threads: &Mapping<wire::thread_state>, slot: u32) -> &AtomicU8 {
    let place = threads.entry(slot);
    // SAFETY: a byte within the mapping, which both sides access as a whole.
    unsafe { AtomicU8::from_ptr(&raw mut (*place).__bindgen_anon_1.__bindgen_anon_1.held) }
}

fn is_held(threads: &Mapping<wire::thread_state>, slot: u32) -> bool {
    held_flag(threads, slot).load(Ordering::SeqCst) != 0
}

fn held(threads: &Mapping<wire::thread_state>, slots: u32, session: u32) -> Vec<Held> {
    let mut until = BTreeMap::new();
    for slot in 1..slots {
        if !is_held(threads, slot) {
            continue;
        }
        let thread = threads.read(slot);
        if thread.task != 0 && u32::from(thread.guard_session) == session {
            let Held { until_ns, .. } = until.entry(thread.tgid).or_insert(Held {
                tgid: thread.tgid,
                thread: thread.visible_pid,
                profile: thread.profile.into(),
                until_ns: 0,
            });
            *until_ns = thread.held_until_ns.max(*until_ns);
        }
    }
    until.into_values().collect()
}

/// Sends the process a signal. The kernel takes the number of any of its threads, and the thread that
/// was found held may have ended since, by an `exit` that it was held for: then another one's does.
fn send(threads: &Mapping<wire::thread_state>, slots: u32, held: &Held, signal: i32) -> bool {
    // SAFETY: a plain signal; the thread's slot says that the process lives or has just ended.
    let is_sent = |thread: u32| unsafe { libc::kill(thread as i32, signal) == 0 };
    let mut others = (1..slots).map(|slot| threads.read(slot));
    is_sent(held.thread)
        || others.any(|thread| thread.task != 0 && thread.tgid == held.tgid && is_sent(thread.visible_pid))
}

fn held_slots(threads: &Mapping<wire::thread_state>, slots: u32, held: &Held) -> impl Iterator<Item = u32> {
    (1..slots).filter(move |slot| is_held(threads, *slot) && threads.read(*slot).tgid == held.tgid)
}

/// What its threads did does not count against them any more.
fn forget_deeds(threads: &Mapping<wire::thread_state>, slots: u32, held: &Held) {
    for slot in (1..slots).filter(|slot| threads.read(*slot).tgid == held.tgid) {
        let place = threads.entry(slot);
        // SAFETY: aligned fields of the mapped entry. Where its thread makes calls, as it is to be stopped at the
        // next, it may write one of them again: then it is forgiven in part.
        unsafe {
            (&raw mut (*place).frame).write_volatile([0; 2]);
            (&raw mut (*place).lfc_most).write_volatile(0);
            // What it did would make the next calls unusual.
            (&raw mut (*place).window).write_volatile(0);
            (&raw mut (*place).__bindgen_anon_1.__bindgen_anon_1.lfc).write_volatile(0);
        }
    }
}

fn let_go(threads: &Mapping<wire::thread_state>, slots: u32, gone: &[Held]) {
    for held in gone {
        held_slots(threads, slots, held).for_each(|slot| held_flag(threads, slot).store(0, Ordering::SeqCst));
        send(threads, slots, held, libc::SIGCONT);
    }
}

/// A SIGSTOP against somebody else's SIGCONT (bpf/guard_continue.bpf.h) may have been on its way to who was let go. It has
/// come after this wait, though it may not have been acted on: SIGCONT takes it back.
fn undo_late_stops(threads: &Mapping<wire::thread_state>, slots: u32, gone: &[Held]) {
    if gone.is_empty() {
        return;
    }
    crate::cpus::wait_for_all();
    for held in gone.iter().filter(|held| held_slots(threads, slots, held).next().is_none()) {
        send(threads, slots, held, libc::SIGCONT);
    }
}

/// Ends the guard of a process that was killed: another Tollgate may keep the gate, and so it, at work. Returns how
/// many processes were held.
pub(crate) fn end_guard(
    threads: &Mapping<wire::thread_state>,
    sessions: &Mapping<wire::session>,
    session: u32,
) -> usize {
    respond(sessions, session, wire::GUARD_OBSERVE);
    unguard(threads, session);
    let held = held(threads, threads.entries(), session);
    let_go(threads, threads.entries(), &held);
    undo_late_stops(threads, threads.entries(), &held);
    held.len()
}

/// A guard that goes on holds nobody any more. Returns how many processes were held.
pub(crate) fn switch_off(
    threads: &Mapping<wire::thread_state>,
    sessions: &Mapping<wire::session>,
    session: u32,
) -> usize {
    respond(sessions, session, wire::GUARD_OBSERVE);
    atomic_field!(sessions, session, is_off).store(1, Ordering::SeqCst);
    crate::cpus::wait_for_all();
    let held = held(threads, threads.entries(), session);
    held.iter().for_each(|held| forget_deeds(threads, threads.entries(), held));
    let_go(threads, threads.entries(), &held);
    undo_late_stops(threads, threads.entries(), &held);
    held.len()
}

fn respond(sessions: &Mapping<wire::session>, session: u32, response: u32) {
    let place = sessions.entry(session);
    // SAFETY: an aligned field of the mapped entry, which the gate only reads.
    unsafe { (&raw mut (*place).guard.response).write_volatile(response) };
}

/// The session's guard judges nobody any more.
fn unguard(threads: &Mapping<wire::thread_state>, session: u32) {
    for slot in 1..threads.entries() {
        let thread = threads.read(slot);
        if thread.task != 0 && u32::from(thread.guard_session) == session {
            atomic_field!(threads, slot, mask).fetch_and(!wire::GUARD, Ordering::SeqCst);
        }
    }
}

/// How often the warden wakes for nothing.
const LOOK: Duration = Duration::from_secs(3600);
/// How long the gate of a process that was killed may go on acting: the kernel closes its links soon after.
const AFTERMATH: Duration = Duration::from_secs(1);

/// A process in the process group `group` whose parent is the warden, which is in another group of the same
/// session, keeps the kernel from taking the group for an orphaned one when the guard's process is killed: the stopped
/// processes of such a group get SIGHUP (kernel/exit.c, `kill_orphaned_pgrp`). It ends with the warden.
fn hold_group(group: i32) -> Result<()> {
    let mut pipe = [0; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error()).doing("make a pipe");
    }
    // SAFETY: the warden has one thread; the child makes system calls only.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()).doing("start a process"),
        0 => {
            // SAFETY: plain calls on our own descriptors and process; the read ends with the warden.
            unsafe {
                libc::close(pipe[1]);
                for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGTSTP] {
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

/// What a warden needs to know of its guard: the process, its session, and the numbers of two of the gate's maps.
#[derive(Debug, Clone, Copy)]
pub struct Ward {
    pub owner: u32,
    pub session: u32,
    pub threads_map: u32,
    pub sessions_map: u32,
}

/// Above the descriptors of the gate: the kernel closes those of a process that was killed from the last to the first
/// (v6.18 kernel/task_work.c, `task_work_run`), and each link of the gate takes it a while.
const LIFELINE: i32 = 512;

/// A pipe that ends with this process: who reads the first half then finds nothing. The process itself is seen to
/// end only after its gate is gone.
pub fn lifeline() -> Result<(OwnedFd, OwnedFd)> {
    let what = "make a pipe for the warden";
    let (near, far) = io::pipe().doing(what)?;
    // SAFETY: a plain call, which gives us a descriptor of our own.
    let high = unsafe { libc::fcntl(far.as_raw_fd(), libc::F_DUPFD_CLOEXEC, LIFELINE) };
    if high < 0 {
        // Fewer are allowed.
        return Ok((near.into(), far.into()));
    }
    // SAFETY: as above.
    Ok((near.into(), unsafe { OwnedFd::from_raw_fd(high) }))
}

/// Started by way of /proc, it would be called "exe".
pub fn name_warden() {
    // SAFETY: a name of less than 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"tollgate-warden".as_ptr()) };
}

/// The warden: says when it is on duty, waits for the end of the guard's process or of its lifeline, which is the
/// standard input, and then lets go all whom the guard holds.
pub fn let_go_after(ward: Ward, on_duty: impl FnOnce()) -> Result<()> {
    name_warden();
    // SAFETY: a plain query.
    hold_group(unsafe { libc::getpgid(ward.owner as i32) })?;
    // It may have ended already, and so its lifeline.
    let owner = process::open_pidfd(ward.owner).ok();
    let owner = owner.as_ref().map_or(libc::STDIN_FILENO, |owner| owner.as_raw_fd());
    let open = |id| MapHandle::from_map_id(id).doing("opening the gate's maps");
    let threads = Mapping::<wire::thread_state>::new(&open(ward.threads_map)?, wire::THREADS)?;
    let sessions = Mapping::<wire::session>::new(&open(ward.sessions_map)?, wire::SESSIONS)?;
    on_duty();
    while process::wait_for([libc::STDIN_FILENO, owner], LOOK) == [false, false] {}
    let began = Instant::now();
    // Until another Tollgate has cleared the session away, which lets go as well: its number may be used again.
    while began.elapsed() < AFTERMATH && sessions.read(ward.session).owner_pid == ward.owner {
        end_guard(&threads, &sessions, ward.session);
        sleep(Duration::from_millis(1));
    }
    unpin(ward.owner);
    Ok(())
}

impl Gate {
    /// For the warden of this process's guard.
    pub fn ward(&self, session: u32) -> Result<Ward> {
        let id = |map| Ok(self.maps.get(map).info().doing("numbering its maps")?.info.id);
        let (threads_map, sessions_map) = (id(".bss.threads")?, id("sessions")?);
        Ok(Ward { owner: std::process::id(), session, threads_map, sessions_map })
    }

    /// Processes held by the session's guard, each until the latest time of its threads.
    pub fn held(&self, session: u32) -> Vec<Held> {
        held(&self.threads, self.used_slots(), session)
    }

    /// Processes that the session guards and does not hold, with their programs' places.
    pub fn guarded(&self, session: u32) -> BTreeMap<u32, u32> {
        let mut guarded = BTreeMap::new();
        for slot in 1..self.used_slots() {
            let thread = self.threads.read(slot);
            let is_own = u32::from(thread.guard_session) == session && thread.mask & wire::GUARD != 0;
            if thread.task != 0 && is_own {
                guarded.insert(thread.tgid, thread.profile.into());
            }
        }
        self.held(session).iter().for_each(|held| {
            guarded.remove(&held.tgid);
        });
        guarded
    }

    /// Slots that were ever taken.
    fn used_slots(&self) -> u32 {
        self.header.read(0).next_thread.min(self.threads.entries())
    }

    fn let_go(&self, session: u32, gone: &[Held]) {
        let slots = self.used_slots();
        let_go(&self.threads, slots, gone);
        if !gone.is_empty() && atomic_field!(self.sessions, session, continued).swap(0, Ordering::SeqCst) != 0
        {
            undo_late_stops(&self.threads, slots, gone);
        }
    }

    /// Somebody asks the held to end. They wake for that only: whoever handles the signal is stopped again at its next
    /// call.
    pub fn wake_held(&self, session: u32) {
        for held in self.held(session) {
            send(&self.threads, self.used_slots(), &held, libc::SIGCONT);
        }
    }

    /// Holds all threads of a process that the session guards until a time, `u64::MAX`: until somebody lets it go; false:
    /// it guards none.
    pub fn hold(&self, session: u32, tgid: u32, until_ns: u64) -> bool {
        let is_own = |thread: &wire::thread_state| {
            let is_guarded =
                thread.mask & wire::GUARD != 0 && u32::from(thread.profile) != wire::GUARD_NOT_CHOSEN;
            thread.task != 0 && thread.tgid == tgid && is_guarded
        };
        let mut number = None;
        atomic_field!(self.header, 0, was_held).store(1, Ordering::SeqCst);
        atomic_field!(self.sessions, session, held).fetch_add(1, Ordering::SeqCst);
        for slot in 1..self.used_slots() {
            let thread = self.threads.read(slot);
            if is_own(&thread) && u32::from(thread.guard_session) == session {
                let place = self.threads.entry(slot);
                // SAFETY: aligned fields of the mapped entry, which the gate reads where the flag is set, or a signal is sent.
                unsafe {
                    (&raw mut (*place).held_until_ns).write_volatile(until_ns);
                    (&raw mut (*place).was_held).write_volatile(1);
                }
                held_flag(&self.threads, slot).store(1, Ordering::SeqCst);
                number = Some(thread.visible_pid);
            }
        }
        number.is_some_and(|thread| {
            let held = Held { tgid, thread, profile: 0, until_ns };
            send(&self.threads, self.used_slots(), &held, libc::SIGSTOP)
        })
    }

    /// What its threads did does not count against them any more, and the process runs again.
    pub fn forgive(&self, session: u32, held: &Held) {
        forget_deeds(&self.threads, self.used_slots(), held);
        self.let_go(session, &[*held]);
    }

    /// What the session's guard does from now on: one of [`wire::guard_response`]. Nobody goes by the one before when
    /// this returns.
    pub fn respond(&self, session: u32, response: u32) {
        respond(&self.sessions, session, response);
        crate::cpus::wait_for_all();
    }

    /// Whether somebody else has switched the session's guard off, since the last time that this was asked.
    pub fn was_switched_off(&self, session: u32) -> bool {
        atomic_field!(self.sessions, session, is_off).swap(0, Ordering::SeqCst) != 0
    }

    /// Processes of this POSIX session are observed only, from now on.
    pub fn spare_session(&self, session: u32, spared_sid: u32) {
        let place = self.sessions.entry(session);
        // SAFETY: an aligned field of the mapped entry, which the gate only reads.
        unsafe { (&raw mut (*place).guard.spared_sid).write_volatile(spared_sid) };
    }

    /// Lets go whom the session holds and whose time has come. Returns the next time, if any is still held.
    pub fn let_go_in_time(&self, session: u32) -> Option<u64> {
        let now = now_ns();
        // A hold that begins meanwhile may count twice until the next look.
        let since = atomic_field!(self.sessions, session, holds_since).load(Ordering::SeqCst);
        atomic_field!(self.sessions, session, held).fetch_add(since, Ordering::SeqCst);
        atomic_field!(self.sessions, session, holds_since).fetch_sub(since, Ordering::SeqCst);
        let held = self.held(session);
        atomic_field!(self.sessions, session, held).store(held.len() as u32, Ordering::SeqCst);
        let (due, later): (Vec<_>, Vec<_>) = held.into_iter().partition(|held| held.until_ns <= now);
        self.let_go(session, &due);
        later.iter().map(|held| held.until_ns).min()
    }

    /// The session guards nobody any more, and whom it holds runs again.
    pub(crate) fn let_all_go(&self, session: u32) {
        unguard(&self.threads, session);
        crate::cpus::wait_for_all();
        self.let_go(session, &self.held(session));
        for slot in 1..self.threads.entries() {
            let thread = self.threads.read(slot);
            if u32::from(thread.guard_session) == session {
                let place = self.threads.entry(slot);
                // SAFETY: aligned fields of the mapped entry, which the gate does not use without GUARD.
                unsafe {
                    (&raw mut (*place).profile).write_volatile(0);
                    (&raw mut (*place).guard_session).write_volatile(0);
                }
            }
        }
        self.drop_profiles(session);
    }
}
