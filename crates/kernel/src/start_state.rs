//! The standard descriptors and the dispositions of signals with which this process was started.
//! They are recorded before Rust's start-up changes them, so that the command gets the same ones,
//! and so that output to a closed stdout is not lost without a message.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

pub(crate) const STANDARD_DESCRIPTORS: [libc::c_int; 3] = [0, 1, 2];

/// Signals that this process needs to handle in its own way, with that way:
/// - SIGPIPE: Rust's start-up ignores it, and a write fails instead.
/// - SIGCHLD: if it is ignored, the kernel discards the exit status of the command (wait(2)).
/// - SIGXFSZ: a report that exceeds the limit of file sizes must fail by an error, and not end the
///   process (setrlimit(2)).
pub(crate) const OWN_SIGNALS: [(libc::c_int, libc::sighandler_t); 3] = [
    (libc::SIGPIPE, libc::SIG_IGN),
    (libc::SIGCHLD, libc::SIG_DFL),
    (libc::SIGXFSZ, libc::SIG_IGN),
];

/// The standard descriptors that were closed, as bits. Rust's start-up opens /dev/null in their
/// place.
static CLOSED: AtomicU8 = AtomicU8::new(0);
/// Those of [`OWN_SIGNALS`] that were ignored, as bits.
static IGNORED: AtomicU64 = AtomicU64::new(0);

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
    for (signal, own) in OWN_SIGNALS {
        // SAFETY: both are valid dispositions.
        if unsafe { libc::signal(signal, own) } == libc::SIG_IGN {
            IGNORED.fetch_or(1 << signal, Ordering::Relaxed);
        }
    }
}

/// Whether this process was started without one of its standard descriptors.
pub fn was_closed(standard_descriptor: libc::c_int) -> bool {
    CLOSED.load(Ordering::Relaxed) & (1 << standard_descriptor) != 0
}

/// Whether this process was started with one of [`OWN_SIGNALS`] ignored. `None` for other signals.
pub(crate) fn was_ignored(signal: libc::c_int) -> Option<bool> {
    let is_own = OWN_SIGNALS.iter().any(|(own, _)| *own == signal);
    is_own.then(|| IGNORED.load(Ordering::Relaxed) & (1 << signal) != 0)
}

/// Restores the dispositions of [`OWN_SIGNALS`]. Async-signal-safe.
pub(crate) fn restore_own_signals() {
    let ignored = IGNORED.load(Ordering::Relaxed);
    for (signal, _) in OWN_SIGNALS {
        let was_ignored = ignored & (1 << signal) != 0;
        // SAFETY: both are valid dispositions.
        unsafe { libc::signal(signal, if was_ignored { libc::SIG_IGN } else { libc::SIG_DFL }) };
    }
}
