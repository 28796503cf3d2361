//! The watchdog of a guard: a separate process, which releases what the guard holds when the
//! guard's process is killed.

use std::io;
use std::os::fd::AsRawFd as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore as _, MapHandle};

use crate::error::{ErrorContext, Result};
use crate::gate::Gate;
use crate::guard::hold_table::unpin;
use crate::guard::holds::end_session_guard;
use crate::mapped_array::MappedArray;
use crate::watchdog::name_watchdog;
use crate::{process, wire};

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

/// What a watchdog needs to know of its guard: the process, its session, and the IDs of three maps
/// of the gate.
#[derive(Debug, Clone, Copy)]
pub struct WatchdogTarget {
    pub owner: u32,
    pub session: u32,
    pub threads_map: u32,
    pub guard_map: u32,
    pub sessions_map: u32,
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
    let cold = MappedArray::<wire::guard_cold>::new(&open(ward.guard_map)?, wire::THREADS)?;
    let sessions = MappedArray::<wire::session>::new(&open(ward.sessions_map)?, wire::SESSIONS)?;
    on_duty();
    while process::wait_for([libc::STDIN_FILENO, owner], LOOK) == [false, false] {}
    let began = Instant::now();
    // Until another Tollgate has cleared the session, which releases as well: its number may be
    // reused.
    while began.elapsed() < RELEASE_GRACE && sessions.read(ward.session).owner_pid == ward.owner {
        end_session_guard(&threads, &cold, &sessions, ward.session);
        sleep(Duration::from_millis(1));
    }
    unpin(ward.owner);
    Ok(())
}

impl Gate {
    /// What the watchdog of this process's guard needs to know.
    pub fn watchdog_target(&self, session: u32) -> Result<WatchdogTarget> {
        let id = |map| Ok(self.maps.get(map).info().doing("numbering its maps")?.info.id);
        Ok(WatchdogTarget {
            owner: std::process::id(),
            session,
            threads_map: id(".bss.threads")?,
            guard_map: id(".bss.guard")?,
            sessions_map: id("sessions")?,
        })
    }
}
