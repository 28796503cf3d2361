//! Behaviour for the guard to learn: the same calls again and again, interrupted by signals, and
//! then something else.

use crate::arguments::{Arguments, MAX_REPETITIONS};
use crate::failure::{Failure, Outcome, check};
use crate::output::print_line;
use crate::process::own_pid;
use crate::signals::leave_to;
use libc::{c_int, c_long};
use std::sync::atomic::{AtomicBool, Ordering};

/// Calls without arguments or effects, none of which the routine makes.
pub const ANOMALOUS: [c_long; 6] = [
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getpgrp,
    libc::SYS_gettid,
    libc::SYS_sched_yield,
];

pub fn round() {
    for call in [libc::SYS_getpid, libc::SYS_getppid, libc::SYS_getuid, libc::SYS_getppid] {
        // SAFETY: these take no arguments and touch no memory.
        unsafe { libc::syscall(call) };
    }
}

fn numbers(mut arguments: Arguments) -> Result<(u64, u64), Failure> {
    let rounds = arguments.number("ROUNDS", 0..=MAX_REPETITIONS)?;
    let anomalous = arguments.number("ANOMALOUS", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    Ok((rounds, anomalous))
}

pub fn routine(arguments: Arguments) -> Outcome {
    let (rounds, anomalous) = numbers(arguments)?;
    follow(rounds, anomalous)
}

pub fn orphaned_routine(arguments: Arguments) -> Outcome {
    let (rounds, anomalous) = numbers(arguments)?;
    leave_to(move || follow(rounds, anomalous))
}

static IS_END_REQUESTED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_request(_signal: c_int) {
    IS_END_REQUESTED.store(true, Ordering::Relaxed);
}

pub fn ends_on_request(mut arguments: Arguments) -> Outcome {
    let own_requests = arguments.number("OWN", 0..=MAX_REPETITIONS)?;
    let (rounds, anomalous) = numbers(arguments)?;
    // SAFETY: a zeroed sigaction is a valid one: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_request as *const () as usize;
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: the handler stores to an atomic.
        check(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) }, "handle it")?;
    }
    (0..rounds).for_each(|_| round());
    for _ in 0..own_requests {
        // SAFETY: takes two numbers; the handler is the one above.
        check(unsafe { libc::kill(own_pid(), libc::SIGTERM) }, "send SIGTERM")?;
    }
    let mut calls = ANOMALOUS.iter().cycle();
    while anomalous > 0 && !IS_END_REQUESTED.load(Ordering::Relaxed) {
        // SAFETY: as above.
        unsafe { libc::syscall(*calls.next().expect("a cycle")) };
    }
    for call in calls.take(anomalous as usize) {
        // SAFETY: as above.
        unsafe { libc::syscall(*call) };
    }
    print_line("saved")
}

pub fn follow(rounds: u64, anomalous: u64) -> Outcome {
    (0..rounds).for_each(|_| round());
    for call in ANOMALOUS.iter().cycle().take(anomalous as usize) {
        // SAFETY: as above.
        unsafe { libc::syscall(*call) };
    }
    print_line("done")
}

/// Between 20 and 420 microseconds: Knuth's MMIX generator, whose upper bits are the good ones.
fn next_alarm(state: &mut u64) -> c_long {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    20 + (*state >> 33) as c_long % 400
}

fn set_alarm(microseconds: c_long) -> c_int {
    let once = libc::itimerval {
        it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 },
        it_value: libc::timeval { tv_sec: 0, tv_usec: microseconds },
    };
    // SAFETY: a valid value; no old value is requested.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &once, std::ptr::null_mut()) }
}

extern "C" fn on_alarm(_signal: c_int) {
    static STATE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let mut state = STATE.load(std::sync::atomic::Ordering::Relaxed);
    set_alarm(next_alarm(&mut state));
    STATE.store(state, std::sync::atomic::Ordering::Relaxed);
}

pub fn alarms(mut arguments: Arguments) -> Outcome {
    let rounds = arguments.number("ROUNDS", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    // SAFETY: a zeroed sigaction is a valid one: an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_alarm as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    check(
        // SAFETY: the handler makes one system call and changes an atomic.
        unsafe { libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()) },
        "handle SIGALRM",
    )?;
    check(set_alarm(20), "set an alarm")?;
    let nap = libc::timespec { tv_sec: 0, tv_nsec: 100_000 };
    for number in 0..rounds {
        round();
        if number % 64 == 0 {
            // Most of these are interrupted.
            // SAFETY: a valid time; no old value is requested.
            unsafe { libc::syscall(libc::SYS_nanosleep, &nap, std::ptr::null::<libc::timespec>()) };
        }
    }
    // SAFETY: SIG_IGN runs no code of ours.
    unsafe { libc::signal(libc::SIGALRM, libc::SIG_IGN) };
    print_line("done")
}
