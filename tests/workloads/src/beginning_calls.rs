//! The calls whose return can begin a task, each on an object that is ready.

use std::ffi::c_void;
use std::mem::{self, zeroed};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::ptr::{null, null_mut};
use std::{io, process};

use libc::{c_int, c_long};

use crate::arguments::Arguments;
use crate::failure::{Outcome, check, failed, os_failure};
use crate::pipe::Pipe;
use crate::ring::{IoRing, NOP, Submission};

const MAX_CALLS: u64 = 1000;
/// Size of the kernel's signal sets, in bytes.
const SIGNAL_SET: usize = 8;
const SIGNAL: c_int = libc::SIGUSR1;

/// Makes each call N times. The next call comes at once, so that each of them can end a task and
/// begin the next one.
pub fn beginning_calls(mut arguments: Arguments) -> Outcome {
    let number = arguments.number("N", 1..=MAX_CALLS)?;
    arguments.end()?;
    sleeps(number)?;
    polls(number)?;
    messages(number)?;
    connections(number)?;
    queues(number)?;
    signals(number)?;
    let mut ring = IoRing::new(0)?;
    for _ in 0..number {
        ring.push(Submission { operation: NOP, ..Submission::default() });
        ring.submit(1)?;
        ring.take();
    }
    Ok(())
}

/// Makes a call N times. It returns a positive number.
fn positive(what: &str, number: u64, mut call: impl FnMut() -> c_long) -> Outcome {
    (0..number).try_for_each(|_| match call() {
        -1 => Err(os_failure(what, io::Error::last_os_error())),
        0 => Err(failed(format!("{what} returned 0"))),
        _ => Ok(()),
    })
}

/// Makes a call N times. It returns 0.
fn zero(what: &str, number: u64, mut call: impl FnMut() -> c_long) -> Outcome {
    (0..number).try_for_each(|_| match call() {
        0 => Ok(()),
        -1 => Err(os_failure(what, io::Error::last_os_error())),
        result => Err(failed(format!("{what} returned {result}"))),
    })
}

fn sleeps(number: u64) -> Outcome {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 1000 };
    let (time, no, word) = (&raw const time, null::<c_void>(), &raw const ZERO);
    // SAFETY: a valid time.
    zero("nanosleep", number, || unsafe { libc::syscall(libc::SYS_nanosleep, time, no) })?;
    zero("clock_nanosleep", number, || {
        let clock = libc::CLOCK_MONOTONIC;
        // SAFETY: a valid time.
        unsafe { libc::syscall(libc::SYS_clock_nanosleep, clock, 0, time, no) }
    })?;
    // The number of threads that are woken.
    zero("futex", number, || {
        let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: a word on which no thread waits.
        unsafe { libc::syscall(libc::SYS_futex, word, wake, 1) }
    })
}

static ZERO: u32 = 0;

/// Waits for a pipe with a byte in it.
fn polls(number: u64) -> Outcome {
    let pipe = Pipe::new()?;
    pipe.send()?;
    let reader = pipe.reader.as_raw_fd();
    let no = null::<c_void>();
    let mut poll = libc::pollfd { fd: reader, events: libc::POLLIN, revents: 0 };
    let poll = &raw mut poll;
    // SAFETY: one descriptor, and no time limit.
    positive("poll", number, || unsafe { libc::syscall(libc::SYS_poll, poll, 1, -1) })?;
    // SAFETY: the same.
    positive("ppoll", number, || unsafe { libc::syscall(libc::SYS_ppoll, poll, 1, no, no, 0) })?;
    // SAFETY: all-zero sets are empty.
    let mut readable: libc::fd_set = unsafe { zeroed() };
    let readable = &raw mut readable;
    for (name, call) in [("select", libc::SYS_select), ("pselect6", libc::SYS_pselect6)] {
        positive(name, number, || {
            // SAFETY: a set that has room for the descriptor.
            unsafe {
                libc::FD_SET(reader, readable);
                libc::syscall(call, reader + 1, readable, no, no, no, no)
            }
        })?;
    }
    // SAFETY: takes numbers only.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    check(epoll, "make an epoll")?;
    // SAFETY: epoll_create1 succeeded, and nothing else owns the descriptor.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    let event = &raw mut event;
    // SAFETY: open descriptors and a valid event.
    let added = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, reader, event) };
    check(added, "add a descriptor to an epoll")?;
    for (name, call, limit) in [
        ("epoll_wait", libc::SYS_epoll_wait, -1),
        ("epoll_pwait", libc::SYS_epoll_pwait, -1),
        // A pointer to the time limit.
        ("epoll_pwait2", libc::SYS_epoll_pwait2, 0_i64),
    ] {
        positive(name, number, || {
            // SAFETY: room for one event.
            unsafe { libc::syscall(call, epoll.as_raw_fd(), event, 1, limit, no, 0) }
        })?;
    }
    let mut waiting: c_int = 0;
    let waiting = &raw mut waiting;
    // SAFETY: room for the number of bytes in the pipe.
    zero("ioctl", number, || unsafe {
        libc::syscall(libc::SYS_ioctl, reader, libc::FIONREAD, waiting)
    })
}

/// Receives messages that were sent before.
fn messages(number: u64) -> Outcome {
    let pair = UnixDatagram::pair().map_err(|error| os_failure("make a pair of sockets", error))?;
    let (sender, receiver) = pair;
    let fd = receiver.as_raw_fd();
    let no: *mut c_void = null_mut();
    let mut byte = 0_u8;
    let byte: *mut c_void = (&raw mut byte).cast();
    let mut part = libc::iovec { iov_base: byte, iov_len: 1 };
    // SAFETY: zeroes are an empty message.
    let mut message: libc::mmsghdr = unsafe { zeroed() };
    (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (&raw mut part, 1);
    let messages = &raw mut message;
    // SAFETY: it is within the message.
    let header = unsafe { &raw mut (*messages).msg_hdr };
    let part = &raw const part;
    let receive = |name: &str, call: &dyn Fn() -> c_long| {
        positive(name, number, || match sender.send(b".") {
            Ok(_) => call(),
            Err(_) => -1,
        })
    };
    // SAFETY: here and below, each has room for one byte.
    receive("read", &|| unsafe { libc::syscall(libc::SYS_read, fd, byte, 1) })?;
    // SAFETY: see above.
    receive("readv", &|| unsafe { libc::syscall(libc::SYS_readv, fd, part, 1) })?;
    // SAFETY: see above.
    receive("recvfrom", &|| unsafe { libc::syscall(libc::SYS_recvfrom, fd, byte, 1, 0, no, no) })?;
    // SAFETY: see above.
    receive("recvmsg", &|| unsafe { libc::syscall(libc::SYS_recvmsg, fd, header, 0) })?;
    // SAFETY: see above.
    receive("recvmmsg", &|| unsafe { libc::syscall(libc::SYS_recvmmsg, fd, messages, 1, 0, no) })
}

/// Accepts connections that were made before.
fn connections(number: u64) -> Outcome {
    let failure = |error| os_failure("connect", error);
    let name = format!("tollgate-{}", process::id());
    let address = SocketAddr::from_abstract_name(name).map_err(failure)?;
    let listener = UnixListener::bind_addr(&address).map_err(failure)?;
    let no: *mut c_void = null_mut();
    for (name, call) in [("accept", libc::SYS_accept), ("accept4", libc::SYS_accept4)] {
        positive(name, number, || {
            let Ok(_client) = UnixStream::connect_addr(&address) else { return -1 };
            // SAFETY: no room for the address.
            let accepted = unsafe { libc::syscall(call, listener.as_raw_fd(), no, no, 0) };
            if accepted >= 0 {
                // SAFETY: accept succeeded, and nothing else owns the descriptor.
                drop(unsafe { OwnedFd::from_raw_fd(accepted as c_int) });
            }
            accepted
        })?;
    }
    Ok(())
}

/// Receives messages of queues that were sent before.
fn queues(number: u64) -> Outcome {
    let name = format!("tollgate-{}\0", process::id());
    let name = name.as_ptr();
    // SAFETY: zeroes are valid attributes.
    let mut limits: libc::mq_attr = unsafe { zeroed() };
    (limits.mq_maxmsg, limits.mq_msgsize) = (1, 1);
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
    // SAFETY: a name that ends with NUL, and valid attributes.
    let made = unsafe {
        let made = libc::syscall(libc::SYS_mq_open, name, flags, 0o600, &raw const limits);
        libc::syscall(libc::SYS_mq_unlink, name);
        check(made as c_int, "make a queue of messages")?
    };
    // SAFETY: mq_open succeeded, and nothing else owns the descriptor.
    let queue = unsafe { OwnedFd::from_raw_fd(made) };
    let (fd, no) = (queue.as_raw_fd(), null::<c_void>());
    let mut byte = 0_u8;
    let byte = &raw mut byte;
    positive("mq_timedreceive", number, || {
        // SAFETY: a byte, and room for one.
        unsafe {
            libc::syscall(libc::SYS_mq_timedsend, fd, byte, 1, 0, no);
            libc::syscall(libc::SYS_mq_timedreceive, fd, byte, 1, no, no)
        }
    })?;
    // SAFETY: takes numbers only.
    let queue = unsafe { libc::msgget(libc::IPC_PRIVATE, 0o600) };
    let queue = check(queue, "make a queue of messages")?;
    // The type of a message, and its text.
    let mut message = (1_i64, 0_u64);
    let message: *mut c_void = (&raw mut message).cast();
    let length = mem::size_of::<u64>();
    let received = positive("msgrcv", number, || {
        // SAFETY: a message of this length, and room for one.
        unsafe {
            libc::msgsnd(queue, message, length, 0);
            libc::syscall(libc::SYS_msgrcv, queue, message, length, 0, 0)
        }
    });
    // SAFETY: removes a queue of this process.
    unsafe { libc::msgctl(queue, libc::IPC_RMID, null_mut()) };
    received
}

/// Takes signals that were sent before.
fn signals(number: u64) -> Outcome {
    let set = 1_u64 << (SIGNAL - 1);
    let (set, no) = (&raw const set, null::<c_void>());
    // SAFETY: a set of signals of the kernel's size.
    let blocked =
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, set, no, SIGNAL_SET) };
    check(blocked as c_int, "block a signal")?;
    positive("rt_sigtimedwait", number, || {
        // SAFETY: the signal is blocked; a set of the kernel's size.
        unsafe {
            libc::raise(SIGNAL);
            libc::syscall(libc::SYS_rt_sigtimedwait, set, no, no, SIGNAL_SET)
        }
    })
}
