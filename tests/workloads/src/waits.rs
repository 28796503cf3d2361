//! Calls that wait for events that never come, to see the effect of a stop on each.

use std::io;
use std::mem::zeroed;
use std::ptr::{null, null_mut};

use libc::{c_int, c_long, c_void, timespec};

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, check, failed};
use crate::output::print_line;

const LONG_SLEEP: timespec = timespec { tv_sec: 1000, tv_nsec: 0 };
/// Size of the kernel's signal sets, in bytes.
const SIGNAL_SET: usize = 8;

/// Makes one waiting call, by its name in the kernel; prints what it returned if it does. On a
/// socket, the call may have a timeout (SO_RCVTIMEO, SO_SNDTIMEO).
pub fn waits(mut arguments: Arguments) -> Outcome {
    let call = arguments.path("CALL")?;
    let timeout = arguments.flag("--timeout", "SECONDS", 1..=1000)?;
    arguments.end()?;
    let call = call.to_string_lossy();
    let result = match on_socket(&call, timeout)? {
        Some(result) => result,
        None => elsewhere(&call)?,
    };
    let error = io::Error::last_os_error().raw_os_error();
    match (result, error) {
        (-1, Some(libc::EINTR)) => print_line("EINTR"),
        (-1, Some(error)) => Err(failed(format!("{call} failed with {error}"))),
        (result, _) => print_line(&format!("returned {result}")),
    }
}

/// Returns the two ends of a connection.
fn pair() -> Result<[c_int; 2], Failure> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) };
    check(made, "make a pair of sockets")?;
    Ok(ends)
}

/// Listens at an address that the kernel chooses.
fn listener() -> Result<c_int, Failure> {
    // SAFETY: plain calls, and an address of the kind that is given.
    unsafe {
        let socket = check(libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0), "make a socket")?;
        let mut address: libc::sockaddr_un = zeroed();
        address.sun_family = libc::AF_UNIX as u16;
        check(libc::bind(socket, (&raw const address).cast(), 2), "bind")?;
        check(libc::listen(socket, 0), "listen")?;
        Ok(socket)
    }
}

fn connect(to: c_int, timeout: Option<u64>) -> Result<c_long, Failure> {
    // SAFETY: room for an address and its length, which the kernel fills; plain calls.
    unsafe {
        let mut address: libc::sockaddr_un = zeroed();
        let mut length = size_of_val(&address) as libc::socklen_t;
        check(libc::getsockname(to, (&raw mut address).cast(), &mut length), "name a socket")?;
        let socket = check(libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0), "make a socket")?;
        set_timeout(socket, timeout)?;
        Ok(libc::connect(socket, (&raw const address).cast(), length).into())
    }
}

fn set_timeout(socket: c_int, timeout: Option<u64>) -> Outcome {
    let Some(seconds) = timeout else { return Ok(()) };
    let time = libc::timeval { tv_sec: seconds as libc::time_t, tv_usec: 0 };
    for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        let length = size_of_val(&time) as libc::socklen_t;
        // SAFETY: a time of the length that is given.
        let set = unsafe {
            libc::setsockopt(socket, libc::SOL_SOCKET, option, (&raw const time).cast(), length)
        };
        check(set, "set a timeout")?;
    }
    Ok(())
}

/// Makes one of the calls on sockets; `None` if the name is not one of them.
fn on_socket(call: &str, timeout: Option<u64>) -> Result<Option<c_long>, Failure> {
    let [full, _other] = pair()?;
    let bytes = [0_u8; 4096];
    // SAFETY: bytes that are there.
    while unsafe { libc::send(full, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) } > 0 {}
    let [empty, _another] = pair()?;
    for socket in [full, empty] {
        set_timeout(socket, timeout)?;
    }
    let mut byte = 0_u8;
    let byte: *mut c_void = (&raw mut byte).cast();
    let mut part = libc::iovec { iov_base: byte, iov_len: 1 };
    // SAFETY: zeroes are an empty message.
    let mut message: libc::mmsghdr = unsafe { zeroed() };
    (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (&raw mut part, 1);
    let messages = &raw mut message;
    let header = &raw mut message.msg_hdr;
    let no: *mut c_void = null_mut();
    // SAFETY: each has the arguments that it takes: room for a byte, a message of it, or no
    // address.
    let result = unsafe {
        match call {
            "accept" | "accept4" => {
                let listener = listener()?;
                set_timeout(listener, timeout)?;
                let number = if call == "accept" { libc::SYS_accept } else { libc::SYS_accept4 };
                libc::syscall(number, listener, no, no, 0)
            }
            "connect" => {
                let listener = listener()?;
                // The queue takes one connection more than its limit.
                connect(listener, None)?;
                connect(listener, timeout)?
            }
            "recvfrom" => libc::syscall(libc::SYS_recvfrom, empty, byte, 1, 0, no, no),
            "recvmsg" => libc::syscall(libc::SYS_recvmsg, empty, header, 0),
            "recvmmsg" => libc::syscall(libc::SYS_recvmmsg, empty, messages, 1, 0, no),
            "read" => libc::syscall(libc::SYS_read, empty, byte, 1),
            "sendto" => libc::syscall(libc::SYS_sendto, full, byte, 1, 0, no, 0),
            "sendmsg" => libc::syscall(libc::SYS_sendmsg, full, header, 0),
            "sendmmsg" => libc::syscall(libc::SYS_sendmmsg, full, messages, 1, 0),
            "write" => libc::syscall(libc::SYS_write, full, byte, 1),
            _ => return Ok(None),
        }
    };
    Ok(Some(result))
}

fn epoll() -> Result<c_int, Failure> {
    // SAFETY: a plain call.
    check(unsafe { libc::epoll_create1(0) }, "make an epoll set")
}

fn elsewhere(call: &str) -> Result<c_long, Failure> {
    let (time, signals) = (LONG_SLEEP, 0_u64);
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let [readable, _writable] = {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        check(unsafe { libc::pipe(ends.as_mut_ptr()) }, "make a pipe")?;
        ends
    };
    let mut poll = libc::pollfd { fd: readable, events: libc::POLLIN, revents: 0 };
    let mut word = 0_u32;
    let no: *const c_void = null();
    let wait_on_futex = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: each has the arguments that it takes: a time, an empty set of signals, room for one
    // event, a word.
    Ok(unsafe {
        match call {
            "epoll_wait" => libc::syscall(libc::SYS_epoll_wait, epoll()?, &raw mut event, 1, -1),
            "epoll_pwait" => {
                libc::syscall(libc::SYS_epoll_pwait, epoll()?, &raw mut event, 1, -1, no, 0)
            }
            "epoll_pwait2" => libc::syscall(
                libc::SYS_epoll_pwait2,
                epoll()?,
                &raw mut event,
                1,
                &raw const time,
                no,
                0,
            ),
            "semop" | "semtimedop" => {
                let set = check(libc::semget(libc::IPC_PRIVATE, 1, 0o600), "make a semaphore")?;
                let mut take = libc::sembuf { sem_num: 0, sem_op: -1, sem_flg: 0 };
                let result = match call {
                    "semop" => libc::syscall(libc::SYS_semop, set, &raw mut take, 1),
                    _ => {
                        libc::syscall(libc::SYS_semtimedop, set, &raw mut take, 1, &raw const time)
                    }
                };
                let error = io::Error::last_os_error().raw_os_error().unwrap_or(0);
                libc::semctl(set, 0, libc::IPC_RMID);
                *libc::__errno_location() = error;
                result
            }
            "rt_sigtimedwait" => {
                let number = libc::SYS_rt_sigtimedwait;
                libc::syscall(number, &raw const signals, no, &raw const time, SIGNAL_SET)
            }
            "io_getevents" => {
                let mut context = 0_u64;
                let made = libc::syscall(libc::SYS_io_setup, 1, &raw mut context);
                check(made, "make a context of asynchronous calls")?;
                let mut done = [0_u64; 4];
                libc::syscall(
                    libc::SYS_io_getevents,
                    context,
                    1,
                    1,
                    done.as_mut_ptr(),
                    &raw const time,
                )
            }
            "poll" => libc::syscall(libc::SYS_poll, &raw mut poll, 1, -1),
            "ppoll" => libc::syscall(libc::SYS_ppoll, &raw mut poll, 1, &raw const time, no, 0),
            "select" => libc::syscall(libc::SYS_select, 0, no, no, no, no),
            "pselect6" => libc::syscall(libc::SYS_pselect6, 0, no, no, no, &raw const time, no),
            "nanosleep" => libc::syscall(libc::SYS_nanosleep, &raw const time, no),
            "clock_nanosleep" => libc::syscall(
                libc::SYS_clock_nanosleep,
                libc::CLOCK_MONOTONIC,
                0,
                &raw const time,
                no,
            ),
            "futex" => {
                libc::syscall(libc::SYS_futex, &raw mut word, wait_on_futex, 0, &raw const time)
            }
            "pause" => libc::syscall(libc::SYS_pause),
            "rt_sigsuspend" => {
                libc::syscall(libc::SYS_rt_sigsuspend, &raw const signals, SIGNAL_SET)
            }
            _ => {
                return Err(Failure::Usage(format!(
                    "{call} is none of the calls that can be waited in"
                )));
            }
        }
    })
}
