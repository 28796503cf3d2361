//! Signals to Tollgate. While a command runs, they are passed on to it; otherwise they are a
//! request to end.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};

use crate::error::{ErrorContext, Result};
use crate::start_state::restore_own_signals;

/// The signals that are passed on to the command. They may be sent to Tollgate alone: when a
/// terminal is closed, for instance, only the session's leader gets a signal.
const HANDLED: [libc::c_int; 7] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGHUP,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
];

/// A terminal sends these to its whole foreground process group, so the command gets them from the
/// terminal.
const FROM_KEYBOARD: [libc::c_int; 2] = [libc::SIGINT, libc::SIGQUIT];

/// The signals by which a process is usually requested to end.
const TERMINATION: [libc::c_int; 4] = [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGTERM];

/// asm-generic/siginfo.h: sent by the kernel, not by a process.
const SI_KERNEL: libc::c_int = 0x80;

/// The command's process, or 0 if it has not started or has ended.
static COMMAND: AtomicI32 = AtomicI32::new(0);

/// Signals that arrived before the command started, one bit each. The command gets them when it
/// starts.
static PENDING: AtomicU64 = AtomicU64::new(0);

/// Whether one of [`TERMINATION`] has arrived since this was last read.
static TERMINATION_REQUESTED: AtomicBool = AtomicBool::new(false);

/// Whether a signal has requested the command's end, or Tollgate's, since the last call of this
/// function.
pub fn was_termination_requested() -> bool {
    TERMINATION_REQUESTED.swap(false, Ordering::SeqCst)
}

extern "C" fn forward(
    signal: libc::c_int,
    info: *const libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes `info`, which is valid as long as the handler runs (SA_SIGINFO).
    let by_kernel = unsafe { (*info).si_code } == SI_KERNEL;
    TERMINATION_REQUESTED.fetch_or(TERMINATION.contains(&signal), Ordering::SeqCst);
    match COMMAND.load(Ordering::SeqCst) {
        0 => {
            PENDING.fetch_or(1 << signal, Ordering::SeqCst);
        }
        _ if by_kernel && FROM_KEYBOARD.contains(&signal) => {}
        command => {
            // SAFETY: async-signal-safe. The command is not yet waited for, so the number is its
            // own.
            unsafe { libc::kill(command, signal) };
        }
    }
}

fn take_pending() -> impl Iterator<Item = libc::c_int> {
    let pending = PENDING.swap(0, Ordering::SeqCst);
    HANDLED.into_iter().filter(move |signal| pending & (1 << signal) != 0)
}

/// Sets the process that gets the signals from now on, and sends it those that are pending.
pub(crate) fn set_command(pid: libc::c_int) {
    COMMAND.store(pid, Ordering::SeqCst);
    for signal in take_pending() {
        // SAFETY: takes two numbers. The command is not yet waited for, so the number is its own.
        unsafe { libc::kill(pid, signal) };
    }
}

/// Stops passing signals on to the command. This must be called before the ended command is waited
/// for, because its number may be reused afterwards.
pub(crate) fn clear_command() {
    COMMAND.store(0, Ordering::SeqCst);
}

/// Ends this process by SIGINT, because SIGINT has ended its command: a shell ends a loop at Ctrl-C
/// only if the signal has ended what it ran. Returns only where the kernel discards the signal: in
/// the first process of a PID namespace.
pub fn end_by_interrupt() {
    // SAFETY: SIG_DFL is a valid disposition, the set is initialized before it is used, and a null
    // pointer means that the previous mask is of no interest.
    unsafe {
        libc::signal(libc::SIGINT, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::raise(libc::SIGINT);
    }
}

/// Sends a signal to the process group that `leader` has started. Failures are ignored: all its
/// processes may have ended.
pub fn signal_group(leader: u32, signal: libc::c_int) {
    // SAFETY: takes two numbers.
    unsafe { libc::kill(-(leader as libc::pid_t), signal) };
}

/// What Tollgate's parent had set for the signals that are passed on to the command.
#[derive(Debug, Clone, Copy)]
pub struct Dispositions {
    ignored: [bool; HANDLED.len()],
}

impl Dispositions {
    /// Begins to handle the signals in this process, except those that it ignores.
    pub fn take_over() -> Self {
        let ignored = HANDLED.map(|signal| {
            // SAFETY: an all-zero sigaction is a valid one; the handler is async-signal-safe and of
            // the kind that SA_SIGINFO asks for.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                let mut previous = action;
                action.sa_sigaction = forward as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
                libc::sigaction(signal, &action, &mut previous);
                let ignored = previous.sa_sigaction == libc::SIG_IGN;
                if ignored {
                    libc::signal(signal, libc::SIG_IGN);
                }
                ignored
            }
        });
        Self { ignored }
    }

    /// Restores the dispositions in this process, and sends it the pending signals. The child calls
    /// this before it executes the command, so everything here is async-signal-safe.
    pub(crate) fn restore(&self) {
        for (signal, ignored) in HANDLED.into_iter().zip(self.ignored) {
            let disposition = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
            // SAFETY: both are valid dispositions.
            unsafe { libc::signal(signal, disposition) };
        }
        restore_own_signals();
        for signal in take_pending() {
            // SAFETY: to this process itself.
            unsafe { libc::raise(signal) };
        }
    }
}

static INTERRUPT_FLAG: AtomicPtr<AtomicBool> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn note_interrupt(_signal: libc::c_int) {
    let flag = INTERRUPT_FLAG.load(Ordering::Relaxed);
    if !flag.is_null() {
        // SAFETY: it was stored from a 'static reference.
        unsafe { (*flag).store(true, Ordering::Relaxed) };
    }
}

/// Makes SIGINT, SIGTERM and SIGHUP set `flag`, instead of ending the process.
pub fn on_interrupt(flag: &'static AtomicBool) -> Result<()> {
    INTERRUPT_FLAG.store(std::ptr::from_ref(flag).cast_mut(), Ordering::Relaxed);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic.
        let previous =
            unsafe { libc::signal(signal, note_interrupt as *const () as libc::sighandler_t) };
        if previous == libc::SIG_ERR {
            return Err(io::Error::last_os_error()).doing("handle Ctrl-C");
        }
    }
    Ok(())
}
