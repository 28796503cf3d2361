//! The watchdog of a guard: a separate process, which releases what the guard holds when the
//! guard's process is killed.

use std::io;
use std::os::fd::AsRawFd as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use libbpf_rs::MapHandle;

use crate::error::{ErrorContext, Result};
use crate::gate::Gate;
use crate::guard::hold_table::unpin;
use crate::guard::holds::{CHECK_INTERVAL, Holds};
use crate::mapped_array::MappedArray;
use crate::watchdog::name_watchdog;
use crate::{process, wire};

/// How long the gate of a killed process may still act until the kernel has closed its links.
const RELEASE_GRACE: Duration = Duration::from_secs(1);

/// Keeps a process group from becoming orphaned when the guard's process is killed, because the
/// kernel sends SIGHUP to the stopped processes of an orphaned group (kernel/exit.c,
/// `kill_orphaned_pgrp`). For this, it starts a process in the group. That process ends with the
/// watchdog, which is its parent and belongs to another group of the same session.
fn keep_group_from_orphaning(process_group: i32) -> Result<()> {
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
                libc::setpgid(0, process_group);
                let mut byte = 0_u8;
                libc::read(pipe[0], (&raw mut byte).cast(), 1);
                libc::_exit(0)
            }
        }
        _ => Ok(()),
    }
}

/// What a watchdog watches: the guard of a session.
#[derive(Debug, Clone, Copy)]
pub struct WatchdogTarget {
    /// The guard's process, as the watchdog's PID namespace numbers it.
    pub owner: u32,
    /// The number of its session.
    pub session: u32,
    /// The ID of the gate's map of threads.
    pub threads_map: u32,
    /// The ID of the gate's map with the guard's state of threads.
    pub guard_map: u32,
    /// The ID of the gate's map of sessions.
    pub sessions_map: u32,
    /// The ID of the gate's header.
    pub header_map: u32,
}

impl WatchdogTarget {
    /// The guard of this process in a session.
    pub fn new(gate: &Gate, session: u32) -> Result<Self> {
        let id = |map| gate.maps.id(map);
        Ok(Self {
            owner: std::process::id(),
            session,
            threads_map: id(".bss.threads")?,
            guard_map: id(".bss.guard")?,
            sessions_map: id("sessions")?,
            header_map: id(".bss.tollgate")?,
        })
    }
}

/// What the watchdog's process does. It calls `on_ready` when it watches the target. It waits until
/// the guard's process ends or closes the liveness pipe, which is the watchdog's standard input.
/// Then it releases all processes that the guard holds. While the guard's process hangs, it
/// releases them in time.
pub fn watch_owner(target: WatchdogTarget, on_ready: impl FnOnce()) -> Result<()> {
    let WatchdogTarget { owner, session, threads_map, guard_map, sessions_map, header_map } =
        target;
    name_watchdog();
    // SAFETY: takes and returns a number.
    keep_group_from_orphaning(unsafe { libc::getpgid(owner as i32) })?;
    // If the process has ended already, its liveness pipe is closed.
    let pidfd = process::open_pidfd(owner).ok();
    let end = pidfd.as_ref().map_or(libc::STDIN_FILENO, |pidfd| pidfd.as_raw_fd());
    let open = |id| MapHandle::from_map_id(id).doing("opening the gate's maps");
    let threads = MappedArray::<wire::thread_state>::new(&open(threads_map)?, wire::THREADS)?;
    let guard_threads = MappedArray::<wire::guard_cold>::new(&open(guard_map)?, wire::THREADS)?;
    let sessions = MappedArray::<wire::session>::new(&open(sessions_map)?, wire::SESSIONS)?;
    let header = MappedArray::<wire::gate_header>::new(&open(header_map)?, 1)?;
    let holds =
        || Holds::in_tables(&threads, &guard_threads, &sessions, session).with_header(&header);
    on_ready();
    let is_owned = || sessions.read(session).owner_pid == owner;
    let mut wait = Duration::ZERO;
    while process::wait_for([libc::STDIN_FILENO, end], wait) == [false, false] {
        wait = if is_owned() { holds().stand_in() } else { CHECK_INTERVAL };
    }
    let mut began = Instant::now();
    // Another Tollgate process may clear the session, which also releases its processes. From then
    // on, the number may be another session's.
    while began.elapsed() < RELEASE_GRACE && is_owned() {
        holds().end_guard();
        // The kernel may need longer than that until it has closed the links.
        if process::wait_for([end], Duration::from_millis(1)) == [false] {
            began = Instant::now();
        }
        sleep(Duration::from_millis(1));
    }
    unpin(owner);
    Ok(())
}
