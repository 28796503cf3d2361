//! What a process inherits through execve and fork, besides its descriptors.

use std::mem::zeroed;

use crate::arguments::Arguments;
use crate::failure::Outcome;
use crate::output::print_line;

const SIGNALS: [libc::c_int; 4] = [libc::SIGPIPE, libc::SIGCHLD, libc::SIGXFSZ, libc::SIGALRM];
const LIMITS: [libc::__rlimit_resource_t; 5] =
    [libc::RLIMIT_CPU, libc::RLIMIT_FSIZE, libc::RLIMIT_DATA, libc::RLIMIT_AS, libc::RLIMIT_NOFILE];

pub fn inherited(arguments: Arguments) -> Outcome {
    arguments.end()?;
    let ignored = SIGNALS.map(|signal| {
        // SAFETY: an all-zero action is a valid destination; nothing is changed.
        let mut action: libc::sigaction = unsafe { zeroed() };
        // SAFETY: as above.
        unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
        action.sa_sigaction == libc::SIG_IGN
    });
    let limits = LIMITS.map(|resource| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a valid destination.
        unsafe { libc::getrlimit(resource, &mut limit) };
        (limit.rlim_cur, limit.rlim_max)
    });
    // SAFETY: an all-zero timer is valid.
    let mut timer: libc::itimerval = unsafe { zeroed() };
    // SAFETY: a plain system call with a valid destination.
    unsafe { libc::syscall(libc::SYS_getitimer, libc::ITIMER_REAL, &raw mut timer) };
    let is_timed = timer.it_value.tv_sec > 0;
    print_line(&format!("ignored {ignored:?}, limits {limits:?}, timer {is_timed}"))
}
