//! Requests of io_uring of every kind of ending: at once, later, in a thread of the kernel, several
//! times, never, and unseen.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, check, failed};
use crate::process::{exec_calls, fork, status_of, wait_success};
use crate::ring::{
    ACCEPT, ASYNC, ASYNC_CANCEL, IoRing, MORE, NOP, POLL_ADD, POLL_REMOVE, READ, RingCompletion,
    SKIP_SUCCESS, SQPOLL, Submission, TIMEOUT, TIMEOUT_REMOVE, WRITE,
};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// An operation that no kernel has.
const NO_OPERATION: u8 = 120;
/// The events and connections for which a request with several completions waits.
const EVENTS: u64 = 3;
const MULTISHOT: u32 = 1;
/// The number of a request that others name.
const TARGET: u64 = 7;
const MAX_REQUESTS: u64 = 1 << 20;

fn zero() -> Result<std::fs::File, Failure> {
    let file = OpenOptions::new().read(true).write(true).open("/dev/zero");
    file.map_err(|error| failed(format!("cannot open /dev/zero: {error}")))
}

/// Runs a request N times; each has this result.
fn repeat(ring: &mut IoRing, n: u64, request: Submission, result: i32) -> Outcome {
    for name in 0..n {
        ring.push(Submission { name, ..request });
        ring.run(&[result])?;
    }
    Ok(())
}

fn event() -> Result<i32, Failure> {
    // SAFETY: takes two numbers; the new descriptor belongs to this process.
    check(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK) }, "make an eventfd")
}

fn signal(event: i32) -> Outcome {
    // SAFETY: the event is open.
    check(unsafe { libc::eventfd_write(event, 1) }, "signal the event").map(|_| ())
}

fn waits_for(event: i32, name: u64, length: u32) -> Submission {
    let operation_flags = libc::POLLIN as u32;
    Submission {
        operation: POLL_ADD,
        fd: event,
        length,
        operation_flags,
        name,
        ..Submission::default()
    }
}

/// A completion after which others of the same request follow.
fn is_one_of_several(all: &[RingCompletion]) -> Outcome {
    match all.iter().all(|completion| completion.flags & MORE != 0) {
        true => Ok(()),
        false => Err(failed(format!("{all:?} are the last ones"))),
    }
}

/// A poll and an accept that complete several times, until they are cancelled.
fn several_completions(ring: &mut IoRing) -> Outcome {
    let event = event()?;
    ring.push(waits_for(event, TARGET, MULTISHOT));
    ring.submit(0)?;
    for _ in 0..EVENTS {
        signal(event)?;
        is_one_of_several(&ring.run(&[i32::from(libc::POLLIN)])?)?;
    }
    let cancel =
        |operation| Submission { operation, fd: -1, address: TARGET, ..Default::default() };
    ring.push(Submission { fd: 0, ..cancel(POLL_REMOVE) });
    ring.run(&[0, -libc::ECANCELED])?;

    let address = SocketAddr::from_abstract_name(format!("ring {}", std::process::id()));
    let address = address.map_err(|error| failed(error.to_string()))?;
    let listener = UnixListener::bind_addr(&address).map_err(|error| failed(error.to_string()))?;
    ring.push(Submission {
        operation: ACCEPT,
        priority: MULTISHOT as u16,
        fd: listener.as_raw_fd(),
        name: TARGET,
        ..Submission::default()
    });
    ring.submit(0)?;
    for _ in 0..EVENTS {
        let client =
            UnixStream::connect_addr(&address).map_err(|error| failed(error.to_string()))?;
        ring.submit(1)?;
        let accepted = ring.take().ok_or_else(|| failed("no connection"))?;
        check(accepted.result, "accept")?;
        is_one_of_several(&[accepted])?;
        drop(client);
    }
    ring.push(cancel(ASYNC_CANCEL));
    ring.run(&[0, -libc::ECANCELED]).map(|_| ())
}

pub fn requests(mut arguments: Arguments) -> Outcome {
    let n = arguments.number("N", 1..=MAX_REQUESTS)?;
    arguments.end()?;
    let (zero, mut bytes) = (zero()?, [0_u8; 8]);
    let ring = &mut IoRing::new(0)?;
    let nop = Submission { operation: NOP, ..Submission::default() };
    let read = Submission {
        operation: READ,
        fd: zero.as_raw_fd(),
        address: bytes.as_mut_ptr() as u64,
        length: bytes.len() as u32,
        ..Submission::default()
    };
    repeat(ring, n, nop, 0)?;
    repeat(ring, n, read, 8)?;
    // In a thread of the kernel.
    repeat(ring, n, Submission { flags: ASYNC, ..read }, 8)?;
    repeat(ring, n, Submission { operation: WRITE, ..read }, 8)?;
    repeat(ring, n, Submission { fd: -1, ..read }, -libc::EBADF)?;
    repeat(ring, n, Submission { operation: NO_OPERATION, ..nop }, -libc::EINVAL)?;
    // Without a completion, unless they fail.
    repeat(ring, n, Submission { flags: SKIP_SUCCESS, fd: -1, ..read }, -libc::EBADF)?;
    for name in 0..n {
        ring.push(Submission { flags: SKIP_SUCCESS, name, ..nop });
        ring.submit(0)?;
    }
    let hour: [i64; 2] = [3600, 0];
    ring.push(Submission {
        operation: TIMEOUT,
        address: hour.as_ptr() as u64,
        length: 1,
        name: TARGET,
        ..Submission::default()
    });
    ring.push(Submission { operation: TIMEOUT_REMOVE, address: TARGET, ..Submission::default() });
    ring.run(&[0, -libc::ECANCELED])?;
    several_completions(ring)?;
    // At the end of the process, this one has not completed.
    ring.push(waits_for(event()?, TARGET, 0));
    ring.submit(0)
}

pub fn polled(mut arguments: Arguments) -> Outcome {
    let n = arguments.number("N", 1..=MAX_REQUESTS)?;
    arguments.end()?;
    let mut ring = IoRing::new(SQPOLL)?;
    repeat(&mut ring, n, Submission { operation: NOP, ..Submission::default() }, 0)
}

/// A request of the parent is in flight while the child uses the ring and executes a program.
pub fn shared(mut arguments: Arguments) -> Outcome {
    let n = arguments.number("N", 1..=MAX_REQUESTS)?;
    arguments.end()?;
    let event = event()?;
    let mut ring = IoRing::new(0)?;
    ring.push(waits_for(event, TARGET, 0));
    ring.submit(0)?;
    let nop = Submission { operation: NOP, ..Submission::default() };
    let child =
        fork(|| status_of(repeat(&mut ring, n, nop, 0).and_then(|()| Err(exec_calls(c"1")))))?;
    wait_success(child)?;
    signal(event)?;
    ring.run(&[i32::from(libc::POLLIN)]).map(|_| ())
}
