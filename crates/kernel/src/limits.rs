//! The limits and timers that this process has inherited. They are meant for the command, and must
//! not end or hinder Tollgate while it measures the command and reports.

use std::mem::zeroed;

/// What can end a process, or make its calls fail (setrlimit(2)).
const RESOURCES: [libc::__rlimit_resource_t; 5] =
    [libc::RLIMIT_CPU, libc::RLIMIT_FSIZE, libc::RLIMIT_DATA, libc::RLIMIT_AS, libc::RLIMIT_NOFILE];

/// These survive execve (execve(2)), but not fork.
const TIMERS: [libc::c_int; 3] = [libc::ITIMER_REAL, libc::ITIMER_VIRTUAL, libc::ITIMER_PROF];

/// The limit to the stack of the first thread, in bytes.
pub fn stack_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid destination.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) } == 0;
    if is_known { limit.rlim_cur } else { libc::RLIM_INFINITY }
}

/// The limits and timers of before.
pub(crate) struct Inherited {
    limits: [Option<libc::rlimit>; RESOURCES.len()],
    timers: [libc::itimerval; TIMERS.len()],
}

impl Inherited {
    /// Raises the limits of this process as far as it may, and stops its timers.
    pub(crate) fn take_over() -> Self {
        // SAFETY: all-zero timers are valid; each is written by the call or stays zero.
        let timers = TIMERS.map(|timer| unsafe {
            let (stopped, mut before): (libc::itimerval, libc::itimerval) = (zeroed(), zeroed());
            setitimer(timer, &stopped, &mut before);
            before
        });
        Self { limits: RESOURCES.map(raise), timers }
    }

    /// Gives this process the limits and timers of before. Async-signal-safe.
    pub(crate) fn restore(&self) {
        for (resource, limit) in RESOURCES.into_iter().zip(&self.limits) {
            if let Some(limit) = limit {
                // SAFETY: a valid limit.
                unsafe { libc::setrlimit(resource, limit) };
            }
        }
        for (timer, before) in TIMERS.into_iter().zip(&self.timers) {
            // SAFETY: a valid timer; the state before is not asked for.
            unsafe { setitimer(timer, before, std::ptr::null_mut()) };
        }
    }
}

/// Raises a limit, beyond the hard one if the process may do that. Returns the old one, or `None`
/// if nothing has changed.
fn raise(resource: libc::__rlimit_resource_t) -> Option<libc::rlimit> {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid destination.
    if unsafe { libc::getrlimit(resource, &mut before) } != 0 {
        return None;
    }
    let infinite = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    let up_to_hard = libc::rlimit { rlim_cur: before.rlim_max, ..before };
    // SAFETY: valid limits. A refused call changes nothing.
    let is_raised =
        [infinite, up_to_hard].iter().any(|limit| unsafe { libc::setrlimit(resource, limit) } == 0);
    is_raised.then_some(before)
}

/// # Safety
/// `before` must be NULL or valid.
unsafe fn setitimer(
    timer: libc::c_int,
    to: &libc::itimerval,
    before: *mut libc::itimerval,
) -> libc::c_long {
    // SAFETY: a plain system call; `before` is as the caller promises. The libc crate has no
    // function for it.
    unsafe { libc::syscall(libc::SYS_setitimer, timer, std::ptr::from_ref(to), before) }
}
