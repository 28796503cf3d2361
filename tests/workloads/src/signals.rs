//! Signals: handled ones, deadly ones, and stops of a call that the kernel then restarts.

use crate::arguments::{Arguments, MAX_REPETITIONS};
use crate::clock::nap;
use crate::failure::{Outcome, check, failed};
use crate::pipe::Pipe;
use crate::process::{self, fork, status_of, wait, wait_success};
use crate::team::{MAX_THREADS, Team, or_abort};
use libc::c_int;
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_signal(_signal: c_int) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

pub fn signals(mut arguments: Arguments) -> Outcome {
    let times = arguments.number("N", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    // SAFETY: a zeroed sigaction is a valid one: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = count_signal as *const () as usize;
    // SAFETY: the handler only adds to an atomic, which is safe at any point of the program.
    let handled = unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) };
    check(handled, "handle SIGUSR1")?;
    // SAFETY: gettid always succeeds.
    let (process, thread) = (process::own_pid(), unsafe { libc::gettid() });
    for _ in 0..times {
        // SAFETY: tgkill takes no pointers.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) };
        check(sent, "send SIGUSR1")?;
    }
    let handled = HANDLED.load(Ordering::Relaxed);
    if handled != times {
        return Err(failed(format!("{handled} signals came, {times} were sent")));
    }
    Ok(())
}

pub fn kill_self(mut arguments: Arguments) -> Outcome {
    let signal = arguments.number("SIG", 1..=64)? as c_int;
    arguments.end()?;
    process::forbid_core_dump()?;
    // The parent may have left the signal ignored or blocked. Signals whose action cannot be
    // changed give an error here, and need no change.
    // SAFETY: the call takes numbers only.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    // SAFETY: an all-zero signal set is the empty one, and sigprocmask reads no more than that.
    let unblocked = unsafe {
        let none: libc::sigset_t = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut())
    };
    check(unblocked, "unblock all signals")?;
    process::kill(process::own_pid(), signal)
}

pub fn nanosleep_restart(arguments: Arguments) -> Outcome {
    arguments.end()?;
    process::block_child_signals()?;
    let about_to_sleep = Pipe::new()?;
    let child = fork(|| status_of(about_to_sleep.send().and_then(|()| nap(300))))?;
    about_to_sleep.receive()?;
    // Waits until the child is in the middle of its sleep.
    nap(100)?;
    process::kill(child, libc::SIGSTOP)?;
    let status = wait(child, libc::WUNTRACED)?;
    if !libc::WIFSTOPPED(status) {
        let message = format!("the child did not stop: its wait status is {status:#x}");
        return Err(failed(message));
    }
    process::kill(child, libc::SIGCONT)?;
    wait_success(child)
}

/// The writer of the pipe that `changed_restart` reads.
static WRITER: AtomicI32 = AtomicI32::new(-1);

/// Changes the length in the registers of an interrupted read, which the kernel is about to restart
/// at its instruction.
extern "C" fn change_read(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    // SAFETY: with SA_SIGINFO, the kernel passes the registers, and only this thread has them.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let instruction = registers[libc::REG_RIP as usize] as *const [u8; 2];
    // SAFETY: the thread is about to execute the instruction.
    let is_call = unsafe { instruction.read_unaligned() } == SYSCALL;
    if is_call && registers[libc::REG_RAX as usize] == libc::SYS_read {
        registers[libc::REG_RDX as usize] = 2;
        // SAFETY: the two bytes are readable. write is async-signal-safe.
        unsafe { libc::write(WRITER.load(Ordering::Relaxed), b"..".as_ptr().cast(), 2) };
    }
}

pub fn changed_restart(arguments: Arguments) -> Outcome {
    arguments.end()?;
    let pipe = Pipe::new()?;
    WRITER.store(pipe.writer.as_raw_fd(), Ordering::Relaxed);
    // SAFETY: a zeroed sigaction is a valid one.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = change_read as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler makes only async-signal-safe calls.
    let handled = unsafe { libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()) };
    check(handled, "handle SIGALRM")?;
    // A signal that comes before the call does nothing, so there are many.
    let period = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
    let times = libc::itimerval { it_interval: period, it_value: period };
    // SAFETY: `times` is readable.
    let set = unsafe { libc::setitimer(libc::ITIMER_REAL, &times, std::ptr::null_mut()) };
    check(set, "set a timer")?;
    let mut bytes = [0_u8; 2];
    // SAFETY: `bytes` has room also for the changed length.
    let read = unsafe {
        libc::syscall(libc::SYS_read, pipe.reader.as_raw_fd(), bytes.as_mut_ptr(), 1_usize)
    };
    if read != 2 {
        return Err(failed(format!("the restarted call has read {read} bytes")));
    }
    Ok(())
}

/// Calls pause() until a signal kills the process or another thread executes a program.
pub fn pause_forever() -> Outcome {
    loop {
        // SAFETY: pause has no preconditions.
        let paused = unsafe { libc::pause() };
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            check(paused, "pause")?;
        }
    }
}

pub fn hang(mut arguments: Arguments) -> Outcome {
    let threads = arguments.flag("--threads", "T", 1..=MAX_THREADS)?;
    arguments.end()?;
    match threads {
        None => pause_forever(),
        Some(threads) => {
            Team::new(threads as usize)?.run(threads as usize, &|_| or_abort(pause_forever()))
        }
    }
}

pub fn leader_ends(mut arguments: Arguments) -> Outcome {
    let ms = arguments.number("MS", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    leave_to(move || nap(ms))
}

/// A second thread continues, and the first ends.
pub fn leave_to(work: impl FnOnce() -> Outcome + Send + 'static) -> ! {
    std::thread::spawn(|| or_abort(work()));
    loop {
        // SAFETY: ends this thread only; nothing of it is used by the other one.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}

/// Has its parent trace it, and stops at a signal and at an execve.
pub fn trace_me(arguments: Arguments) -> Outcome {
    arguments.end()?;
    // SAFETY: takes numbers only.
    let traced = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
    check(traced, "be traced by the parent")?;
    // SAFETY: takes a number. The signal is ignored by default.
    check(unsafe { libc::raise(libc::SIGWINCH) }, "send itself a signal")?;
    Err(process::exec_calls(c"7"))
}
