//! Processes that try to free themselves of the guard's holds: one requests its own end through its
//! terminal, the other is traced by its parent, which continues it after each stop.

use crate::arguments::{Arguments, MAX_REPETITIONS};
use crate::failure::{Failure, Outcome, check, failed, os_failure};
use crate::output::print_line;
use crate::process::{fork, own_pid, status_of};
use crate::routine::{ANOMALOUS, round};
use crate::terminal::new_terminal;
use libc::c_int;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

fn numbers(mut arguments: Arguments) -> Result<(u64, usize), Failure> {
    let rounds = arguments.number("ROUNDS", 0..=MAX_REPETITIONS)?;
    let anomalous = arguments.number("ANOMALOUS", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    Ok((rounds, anomalous as usize))
}

const CTRL_C: &[u8] = b"\x03";

extern "C" fn on_interrupt(_signal: c_int) {}

/// Sleeps until the time is over. Signals may interrupt it.
fn sleep_through(time: Duration) {
    let end = Instant::now() + time;
    while let left @ 1.. = end.saturating_duration_since(Instant::now()).subsec_nanos() {
        let request = libc::timespec { tv_sec: 0, tv_nsec: left.into() };
        // SAFETY: `request` is a valid timespec, and a null remainder is allowed.
        unsafe { libc::nanosleep(&request, null_mut()) };
    }
}

/// Makes a new terminal the controlling one of this process, and returns its other end.
fn take_new_terminal() -> Result<File, Failure> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::setsid() }, "begin a session")?;
    let (master, slave) = new_terminal()?;
    // SAFETY: takes numbers only.
    check(unsafe { libc::ioctl(slave.as_raw_fd(), libc::TIOCSCTTY, 0) }, "take a terminal")?;
    // The terminal sends no signals when nobody has it open.
    std::mem::forget(slave);
    Ok(master)
}

pub fn interrupts_itself(arguments: Arguments) -> Outcome {
    let (rounds, anomalous) = numbers(arguments)?;
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGINT, on_interrupt as *const () as libc::sighandler_t) };
    let mut terminal = take_new_terminal()?;
    (0..rounds).for_each(|_| round());
    for call in ANOMALOUS.iter().cycle().take(anomalous) {
        // SAFETY: these take no arguments and touch no memory.
        unsafe { libc::syscall(*call) };
        let pressed = terminal.write_all(CTRL_C);
        pressed.map_err(|error| os_failure("write to the terminal", error))?;
        sleep_through(Duration::from_millis(100));
    }
    // If it were closed here, the kernel would send SIGHUP.
    std::mem::forget(terminal);
    print_line("done")
}

/// So many stops teach the tracer's calls to a baseline.
const STOPS: u32 = 20;

pub fn traced_routine(arguments: Arguments) -> Outcome {
    let (rounds, anomalous) = numbers(arguments)?;
    let child = fork(|| status_of(traced(rounds, anomalous)))?;
    loop {
        let mut status = 0;
        // SAFETY: `status` is a valid destination for the status.
        check(unsafe { libc::waitpid(child, &mut status, 0) }, "wait for the child")?;
        if !libc::WIFSTOPPED(status) {
            return match status {
                0 => Ok(()),
                _ => Err(failed(format!("the child ended with the wait status {status:#x}"))),
            };
        }
        // SAFETY: null pointers stand for no address and no signal.
        let continued = unsafe { libc::ptrace(libc::PTRACE_CONT, child, null_mut::<u8>(), 0) };
        check(continued, "continue the child")?;
    }
}

fn traced(rounds: u64, anomalous: usize) -> Outcome {
    // SAFETY: takes no pointers that are used.
    let traced = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<u8>(), 0) };
    check(traced, "be traced")?;
    for _ in 0..STOPS {
        // SAFETY: takes two numbers. The tracer discards the signal.
        check(unsafe { libc::kill(own_pid(), libc::SIGSTOP) }, "stop")?;
    }
    (0..rounds).for_each(|_| round());
    for call in ANOMALOUS.iter().cycle().take(anomalous) {
        // SAFETY: these take no arguments and touch no memory.
        unsafe { libc::syscall(*call) };
    }
    print_line("done")
}
