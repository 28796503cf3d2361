//! The standard descriptors and the handling of SIGPIPE with which this process was started. They
//! are recorded before Rust's start-up changes them, so that the command gets the same ones, and so
//! that output to a closed stdout is not lost without a message.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

pub(crate) const STANDARD_DESCRIPTORS: [libc::c_int; 3] = [0, 1, 2];

/// The standard descriptors that were closed, as bits. Rust's start-up opens /dev/null in their
/// place.
static CLOSED: AtomicU8 = AtomicU8::new(0);
/// Whether SIGPIPE was ignored. Rust's start-up ignores it.
static SIGPIPE_IGNORED: AtomicBool = AtomicBool::new(false);

#[used]
// SAFETY: the C start-up calls each function of this section before main; this one needs no
// runtime.
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = record_start_state;

extern "C" fn record_start_state() {
    for fd in STANDARD_DESCRIPTORS {
        // SAFETY: a plain query.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
    // SAFETY: an all-zero sigaction is a valid destination for the result; nothing is changed.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut action);
        SIGPIPE_IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
    }
}

/// Whether this process was started without one of its standard descriptors.
pub fn was_closed(standard_descriptor: libc::c_int) -> bool {
    CLOSED.load(Ordering::Relaxed) & (1 << standard_descriptor) != 0
}

/// Whether this process was started with SIGPIPE ignored.
pub(crate) fn sigpipe_was_ignored() -> bool {
    SIGPIPE_IGNORED.load(Ordering::Relaxed)
}
