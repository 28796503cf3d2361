//! Signals to Tollgate: the command's while there is one, a request to end otherwise.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};

use crate::error::{Doing, Result};
use crate::start::sigpipe_was_ignored;

/// Ctrl-C and Ctrl-\ go to the whole foreground group: the command decides what they mean, Tollgate still reports.
/// Those that programs are usually told something by are passed on, as they may be sent to Tollgate alone (a
/// terminal that goes tells only the session's leader). SIGPIPE is Rust's: see start.rs.
const HANDLED: [libc::c_int; 7] =
    [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2, libc::SIGPIPE];

const PASSED_ON: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];

/// The command's number; 0: there is none yet, or no more.
static COMMAND: AtomicI32 = AtomicI32::new(0);

/// Signals that came before there was a command, a bit each: they are for it.
static HELD: AtomicU64 = AtomicU64::new(0);

extern "C" fn pass_on(signal: libc::c_int) {
    match COMMAND.load(Ordering::SeqCst) {
        0 => {
            HELD.fetch_or(1 << signal, Ordering::SeqCst);
        }
        command if PASSED_ON.contains(&signal) => {
            // SAFETY: async-signal-safe. The command is not yet waited for, so the number is its own.
            unsafe { libc::kill(command, signal) };
        }
        _ => {}
    }
}

fn take_held() -> impl Iterator<Item = libc::c_int> {
    let held = HELD.swap(0, Ordering::SeqCst);
    HANDLED.into_iter().filter(move |signal| held & (1 << signal) != 0)
}

/// Who gets them from now on.
pub fn set_command(pid: libc::c_int) {
    COMMAND.store(pid, Ordering::SeqCst);
    for signal in take_held() {
        // SAFETY: as above.
        unsafe { libc::kill(pid, signal) };
    }
}

/// The command has ended, and is about to be waited for.
pub fn no_command() {
    COMMAND.store(0, Ordering::SeqCst);
}

/// The signals that mean something else to Tollgate while the command runs, as they were before.
#[derive(Debug, Clone, Copy)]
pub struct Dispositions {
    ignored: [bool; HANDLED.len()],
}

impl Dispositions {
    /// Takes them over in this process.
    pub fn take_over() -> Self {
        let ignored = HANDLED.map(|signal| {
            if signal == libc::SIGPIPE {
                return sigpipe_was_ignored();
            }
            // SAFETY: valid dispositions for these signals; the handler is async-signal-safe.
            unsafe {
                let before = libc::signal(signal, pass_on as *const () as libc::sighandler_t);
                if before == libc::SIG_IGN {
                    libc::signal(signal, libc::SIG_IGN);
                }
                before == libc::SIG_IGN
            }
        });
        Self { ignored }
    }

    /// In the command's process, before it executes: async-signal-safe.
    pub fn restore(&self) {
        for (signal, ignored) in HANDLED.into_iter().zip(self.ignored) {
            let disposition = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
            // SAFETY: both are valid dispositions.
            unsafe { libc::signal(signal, disposition) };
        }
        for signal in take_held() {
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

/// Sets `flag` at Ctrl-C, a request to end, or the terminal's going.
pub fn on_interrupt(flag: &'static AtomicBool) -> Result<()> {
    INTERRUPT_FLAG.store(std::ptr::from_ref(flag).cast_mut(), Ordering::Relaxed);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic.
        let before = unsafe { libc::signal(signal, note_interrupt as *const () as libc::sighandler_t) };
        if before == libc::SIG_ERR {
            return Err(io::Error::last_os_error()).doing("handle Ctrl-C");
        }
    }
    Ok(())
}
