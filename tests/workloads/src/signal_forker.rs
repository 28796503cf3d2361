//! A process that starts children when it is requested to by a signal, like PostgreSQL's first
//! process, and its clients.

use std::collections::BTreeMap;

use crate::arguments::Arguments;
use crate::cpu_time::thread_ns;
use crate::failure::{Failure, Outcome, check};
use crate::output::{after_stdin_line, print_line, until_stdin_ends};
use crate::process;

fn blocked(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: a set of signals, made empty, and this thread's mask.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        set
    }
}

/// Waits for the next signal; returns its number and sender.
fn next(set: &libc::sigset_t) -> Result<(i32, i32), Failure> {
    // SAFETY: room for the information about the signal; a signal that was sent has a sender.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let signal = check(libc::sigwaitinfo(set, &raw mut info), "wait for a signal")?;
        Ok((signal as i32, info.si_pid()))
    }
}

/// Forks a child for each signal; at the end, prints how long the children of each requester
/// worked.
pub fn signal_forker(mut arguments: Arguments) -> Outcome {
    let ms = arguments.number("MS", 0..=60_000)?;
    arguments.end()?;
    let set = blocked(&[libc::SIGUSR1, libc::SIGHUP, libc::SIGTERM]);
    let mut work = BTreeMap::<i32, u64>::new();
    print_line("ready")?;
    loop {
        let (signal, requester) = next(&set)?;
        if signal == libc::SIGTERM {
            break;
        }
        let child = process::fork(|| {
            let began = thread_ns();
            while thread_ns() - began < ms * 1_000_000 {}
            0
        })?;
        // SAFETY: room for what it has used.
        let used = unsafe {
            let mut used: libc::rusage = std::mem::zeroed();
            check(libc::wait4(child, std::ptr::null_mut(), 0, &raw mut used), "wait")?;
            used
        };
        let micros =
            [used.ru_utime, used.ru_stime].map(|time| time.tv_sec * 1_000_000 + time.tv_usec);
        *work.entry(requester).or_default() += micros.iter().sum::<i64>() as u64 * 1000;
        // SAFETY: takes no pointers; the requester may have ended, which does no harm.
        unsafe { libc::kill(requester, libc::SIGUSR2) };
    }
    work.iter().try_for_each(|(requester, ns)| print_line(&format!("{requester} {ns}")))
}

/// Sends the signals, each after the child for the one before has ended.
pub fn request(mut arguments: Arguments) -> Outcome {
    let forker = arguments.number("PID", 1..=1 << 22)? as i32;
    let signal = arguments.number("SIGNAL", 1..=31)? as i32;
    let times = arguments.number("TIMES", 1..=1000)?;
    arguments.end()?;
    let set = blocked(&[libc::SIGUSR2]);
    after_stdin_line(|| {
        for _ in 0..times {
            process::kill(forker, signal)?;
            next(&set)?;
        }
        Ok(())
    })?;
    until_stdin_ends()
}
