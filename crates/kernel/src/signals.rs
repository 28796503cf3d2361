//! Signals to Tollgate. While a command runs, they are passed on to it; otherwise they are a
//! request to end.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};

use crate::error::{ErrorContext, Result};
use crate::start_state::{restore_own_signals, was_ignored};

/// A terminal sends these to its whole foreground process group, so the command gets them from the
/// terminal. What the kernel sends for other reasons, such as Tollgate's own limits, concerns
/// Tollgate alone. Only these reach nobody else: SIGHUP goes to the leader of a session whose
/// terminal is closed, and SIGALRM to the process that has inherited an alarm.
const PASSED_ON_FROM_KERNEL: [libc::c_int; 2] = [libc::SIGHUP, libc::SIGALRM];

/// Signals by which the kernel reports an error of Tollgate itself, and abort(3).
const ERRORS: [libc::c_int; 7] = [
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGSEGV,
    libc::SIGSYS,
    libc::SIGTRAP,
];

/// Signals that stop a process unless it handles them. Tollgate stops with the command.
const STOPS: [libc::c_int; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// The signals by which a process is usually requested to end.
const TERMINATION: [libc::c_int; 4] = [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGTERM];

/// The signals that are passed on to the command: all that can be handled, except SIGCHLD, which
/// concerns Tollgate's own children, and those that the C library keeps for itself. They may be
/// sent to Tollgate alone: when a terminal is closed, for instance, only the session's leader gets
/// a signal.
fn passed_on() -> impl Iterator<Item = libc::c_int> {
    /// The signals below it are those of signal(7), "Standard signals".
    const STANDARD_END: libc::c_int = 32;
    const OTHERS: [libc::c_int; 3] = [libc::SIGKILL, libc::SIGSTOP, libc::SIGCHLD];
    let standard = (1..STANDARD_END).filter(|signal| !OTHERS.contains(signal));
    standard.chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

const fn bit(signal: libc::c_int) -> u64 {
    1 << (signal - 1)
}

/// The command's process, or 0 if it has not started or has ended.
static COMMAND: AtomicI32 = AtomicI32::new(0);

/// Signals that arrived before the command started, one bit each. The command gets them when it
/// starts.
static PENDING: AtomicU64 = AtomicU64::new(0);

/// Whether the command's process may exist while [`COMMAND`] is still 0.
static STARTS: AtomicBool = AtomicBool::new(false);

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
    // What the kernel has sent has a code above 0, and no sender (sigaction(2)).
    let (by_kernel, by_itself) = unsafe {
        let by_kernel = (*info).si_code > 0;
        (by_kernel, !by_kernel && (*info).si_pid() == libc::getpid())
    };
    TERMINATION_REQUESTED.fetch_or(TERMINATION.contains(&signal), Ordering::SeqCst);
    if ERRORS.contains(&signal) && (by_kernel || by_itself) {
        // The instruction that caused it is executed again, and ends this process.
        // SAFETY: async-signal-safe, and a valid disposition.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    let command = COMMAND.load(Ordering::SeqCst);
    // For a failed write, the kernel sends SIGPIPE and SIGXFSZ with Tollgate itself as the sender.
    let concerns_command = !by_itself && (!by_kernel || PASSED_ON_FROM_KERNEL.contains(&signal));
    if concerns_command && command != 0 {
        // SAFETY: async-signal-safe. The command is not yet waited for, so the number is its own.
        unsafe { libc::kill(command, signal) };
    }
    let is_kept = command == 0 && !by_itself && signal != libc::SIGCONT;
    let is_stop = STOPS.contains(&signal);
    if is_kept && (!is_stop || STARTS.load(Ordering::SeqCst)) {
        PENDING.fetch_or(bit(signal), Ordering::SeqCst);
        // Another thread may have started the command since.
        match COMMAND.load(Ordering::SeqCst) {
            0 => {}
            command => send_pending(command),
        }
    } else if is_stop {
        stop(signal);
    }
}

/// Stops this process as the signal does by default. Returns when the process is continued.
/// Async-signal-safe.
fn stop(signal: libc::c_int) {
    // SAFETY: the sets and actions are initialized before they are used; all calls are
    // async-signal-safe.
    unsafe {
        let mut handled: libc::sigaction = std::mem::zeroed();
        let mut default = handled;
        default.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &default, &mut handled);
        let mut set: libc::sigset_t = std::mem::zeroed();
        let mut before = set;
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, &raw mut before);
        libc::raise(signal);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        libc::sigaction(signal, &handled, std::ptr::null_mut());
    }
}

fn take_pending() -> impl Iterator<Item = libc::c_int> {
    let pending = PENDING.swap(0, Ordering::SeqCst);
    passed_on().filter(move |signal| pending & bit(*signal) != 0)
}

/// Sends the pending signals to the command, and stops with it. Async-signal-safe.
fn send_pending(command: libc::c_int) {
    let mut stopped_by = None;
    for signal in take_pending() {
        // SAFETY: takes two numbers. The command is not yet waited for, so the number is its own.
        unsafe { libc::kill(command, signal) };
        stopped_by = stopped_by.or(STOPS.contains(&signal).then_some(signal));
    }
    if let Some(signal) = stopped_by {
        stop(signal);
    }
}

/// To be called before the fork. From then on, a signal that stops this process also stops the
/// command, when its process is set.
pub(crate) fn command_starts() {
    STARTS.store(true, Ordering::SeqCst);
}

/// Sets the process that gets the signals from now on, and sends it those that are pending.
pub(crate) fn set_command(pid: libc::c_int) {
    COMMAND.store(pid, Ordering::SeqCst);
    STARTS.store(false, Ordering::SeqCst);
    send_pending(pid);
}

/// Stops this process by the signal that has stopped the command. When it is continued, it calls
/// `before_continue` and continues the command, with `to`: its process or its process group.
pub(crate) fn stop_with_command(
    pid: libc::c_int,
    to: libc::c_int,
    signal: libc::c_int,
    before_continue: impl FnOnce(),
) {
    // Otherwise the handler of SIGCONT would continue the command too early.
    COMMAND.store(0, Ordering::SeqCst);
    stop(signal);
    before_continue();
    set_command(pid);
    // SAFETY: takes two numbers. The command is not yet waited for, so the number is its own.
    unsafe { libc::kill(to, libc::SIGCONT) };
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
    /// The ignored ones, as bits.
    ignored: u64,
}

impl Dispositions {
    /// Begins to handle the signals in this process, except those that its parent has ignored.
    pub fn take_over() -> Self {
        let mut ignored = 0;
        for signal in passed_on() {
            // SAFETY: an all-zero sigaction is a valid one; the handler is async-signal-safe and of
            // the kind that SA_SIGINFO asks for.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                let mut previous = action;
                action.sa_sigaction = forward as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
                // A handler must not interrupt another one: the alternate stack has room for about
                // two frames with the registers of AVX-512.
                libc::sigfillset(&raw mut action.sa_mask);
                libc::sigaction(signal, &action, &mut previous);
                if was_ignored(signal).unwrap_or(previous.sa_sigaction == libc::SIG_IGN) {
                    libc::signal(signal, libc::SIG_IGN);
                    ignored |= bit(signal);
                }
            }
        }
        Self { ignored }
    }

    /// Restores the dispositions in this process, and sends it the pending signals. The child calls
    /// this before it executes the command, so everything here is async-signal-safe.
    pub(crate) fn restore(&self) {
        for signal in passed_on() {
            let is_ignored = self.ignored & bit(signal) != 0;
            let disposition = if is_ignored { libc::SIG_IGN } else { libc::SIG_DFL };
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

/// Ignores SIGUSR1 and SIGUSR2, with which others demand that a daemon opens its files again.
pub fn ignore_user_signals() {
    for signal in [libc::SIGUSR1, libc::SIGUSR2] {
        // SAFETY: a valid disposition.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
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

/// Makes SIGINT, SIGTERM and SIGHUP set `flag`, instead of ending the process. Those that the
/// parent has ignored stay ignored, as nohup(1) and shells without job control expect.
pub fn on_interrupt(flag: &'static AtomicBool) -> Result<()> {
    INTERRUPT_FLAG.store(std::ptr::from_ref(flag).cast_mut(), Ordering::Relaxed);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: a zeroed sigaction is room for the result.
        let is_ignored = unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut now) == 0
                && now.sa_sigaction == libc::SIG_IGN
        };
        if is_ignored {
            continue;
        }
        // SAFETY: the handler only stores to an atomic.
        let previous =
            unsafe { libc::signal(signal, note_interrupt as *const () as libc::sighandler_t) };
        if previous == libc::SIG_ERR {
            return Err(io::Error::last_os_error()).doing("handle Ctrl-C");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    /// All signals that neither stop a process nor are reported by the kernel for its errors.
    fn without_special_meaning() -> impl Iterator<Item = libc::c_int> {
        passed_on().filter(|signal| {
            *signal != libc::SIGCONT && !STOPS.contains(signal) && !ERRORS.contains(signal)
        })
    }

    #[test]
    fn pending_signals_are_handled_one_after_the_other() {
        let (mut blocked, mut tell_blocked) = io::pipe().expect("a pipe");
        let (mut sent, tell_sent) = io::pipe().expect("a pipe");
        // SAFETY: the child makes system calls only, and ends without running destructors.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "{}", io::Error::last_os_error());
        if child == 0 {
            // SAFETY: the set is initialized before it is used. The child's own copies of the pipes
            // are its own.
            unsafe {
                let mut all: libc::sigset_t = std::mem::zeroed();
                libc::sigfillset(&raw mut all);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
                let dispositions = Dispositions::take_over();
                drop(tell_sent);
                let is_told = tell_blocked.write_all(&[0]).is_ok() && sent.read(&mut [0]).is_ok();
                libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const all, std::ptr::null_mut());
                let expected = without_special_meaning().map(bit).sum::<u64>();
                let expected = expected & !dispositions.ignored;
                libc::_exit(i32::from(!is_told || PENDING.load(Ordering::SeqCst) != expected))
            }
        }
        drop(tell_blocked);
        blocked.read_exact(&mut [0]).expect("the child blocks them");
        for signal in without_special_meaning() {
            // SAFETY: to the child, which was not waited for yet.
            unsafe { libc::kill(child, signal) };
        }
        drop((sent, tell_sent));
        let mut status = 0;
        // SAFETY: this process's own child, and a valid destination.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        let status = ExitStatus::from_raw(status);
        assert!(status.success(), "{status}");
    }
}
