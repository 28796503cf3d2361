//! A server that obeys commands in its input, and counts the interruptions that a hold causes.

use std::io;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use libc::c_int;

use crate::arguments::Arguments;
use crate::failure::{Outcome, check};
use crate::routine::{ANOMALOUS, round};

static INTERRUPTED_WAITS: AtomicU64 = AtomicU64::new(0);
static INTERRUPTED_NAPS: AtomicU64 = AtomicU64::new(0);

fn was_interrupted() -> bool {
    io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
}

/// Executes each byte of its input as a command, and then replies with the same byte.
pub fn command_server(mut arguments: Arguments) -> Outcome {
    let threads = arguments.flag("--threads", "T", 0..=2000)?.unwrap_or(0);
    arguments.end()?;
    // SAFETY: a plain call.
    let epoll = check(unsafe { libc::epoll_create1(0) }, "make an epoll set")?;
    let mut input = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    check(
        // SAFETY: a valid event.
        unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, 0, &mut input) },
        "wait for the input",
    )?;
    for _ in 0..threads {
        thread::spawn(move || {
            loop {
                nap(threads);
            }
        });
    }
    let mut anomalous = ANOMALOUS.iter().cycle();
    while let Some(byte) = next(epoll)? {
        match byte {
            b'u' => round(),
            b'e' => execute()?,
            _ => {
                // SAFETY: these take no arguments and touch no memory.
                unsafe { libc::syscall(*anomalous.next().expect("a cycle")) };
            }
        }
        // SAFETY: a byte that is there.
        check(unsafe { libc::write(1, (&raw const byte).cast(), 1) } as c_int, "reply")?;
    }
    eprintln!(
        "interrupted: {} waits, {} naps",
        INTERRUPTED_WAITS.load(Ordering::Relaxed),
        INTERRUPTED_NAPS.load(Ordering::Relaxed)
    );
    Ok(())
}

/// Executes a program that does nothing.
fn execute() -> Outcome {
    let ran = Command::new("/proc/self/exe").args(["calls", "0"]).stdout(Stdio::null()).status();
    match ran {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(crate::failure::os_failure("execute itself", io::ErrorKind::Other.into())),
        Err(error) => Err(crate::failure::os_failure("execute itself", error)),
    }
}

/// Waits like a server: an interrupted wait is restarted.
fn next(epoll: c_int) -> Result<Option<u8>, crate::failure::Failure> {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: room for an event.
    while unsafe { libc::epoll_wait(epoll, &mut event, 1, -1) } < 0 {
        if !was_interrupted() {
            return Err(crate::failure::os_failure("wait", io::Error::last_os_error()));
        }
        INTERRUPTED_WAITS.fetch_add(1, Ordering::Relaxed);
    }
    let mut byte = 0_u8;
    // SAFETY: room for a byte.
    let read = unsafe { libc::read(0, (&raw mut byte).cast(), 1) };
    Ok((read == 1).then_some(byte))
}

/// Sleeps in one of `threads` threads, so long that together they leave processor time to others.
fn nap(threads: u64) {
    const ALL_NS: u64 = 1_250_000;
    let ns = threads * ALL_NS;
    let time = libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    };
    // SAFETY: a valid time; no old value is requested.
    if unsafe { libc::nanosleep(&time, std::ptr::null_mut()) } < 0 && was_interrupted() {
        INTERRUPTED_NAPS.fetch_add(1, Ordering::Relaxed);
    }
}
