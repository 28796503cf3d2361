//! A thread that is woken again and again by what it waits for: a descriptor of a known kind.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::time::Duration;
use std::{mem, ptr, thread};

use crate::arguments::Arguments;
use crate::clock::nap;
use crate::failure::{Failure, Outcome, check, os_failure};
use crate::pipe::Pipe;
use crate::sleepers::is_asleep;
use crate::terminal::new_terminal;

const MAX_WAKE_UPS: u64 = 1000;
const PERIOD: Duration = Duration::from_millis(2);

/// Waits N times for a descriptor.
pub fn wake_ups(mut arguments: Arguments) -> Outcome {
    let kind = arguments.path("KIND")?;
    let number = arguments.number("N", 1..=MAX_WAKE_UPS)?;
    arguments.end()?;
    match kind.to_str() {
        Some("epoll") => epoll(number),
        Some("terminal") => {
            let (mut master, mut slave) = new_terminal()?;
            let press = || master.write_all(b"\n");
            woken(number, press, || slave.read(&mut [0]).map(drop))
        }
        Some("event") => {
            // SAFETY: takes numbers only.
            let event = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }, "make an eventfd")?;
            // SAFETY: eventfd succeeded, and nothing else owns the descriptor.
            let event = unsafe { File::from_raw_fd(event) };
            let one = || (&event).write_all(&1_u64.to_ne_bytes());
            woken(number, one, || (&event).read(&mut [0; 8]).map(drop))
        }
        Some("timer") => timer(number),
        _ => Err(Failure::Usage("KIND is epoll, terminal, event or timer".into())),
    }
}

/// Another thread wakes this one whenever it sleeps.
fn woken(
    number: u64,
    mut wake: impl FnMut() -> std::io::Result<()> + Send,
    mut wait: impl FnMut() -> std::io::Result<()>,
) -> Outcome {
    // SAFETY: takes no arguments.
    let waiter = unsafe { libc::gettid() };
    thread::scope(|scope| {
        let waker = scope.spawn(move || {
            for _ in 0..number {
                while !is_asleep(waiter) {
                    nap(1)?;
                }
                wake().map_err(|error| os_failure("wake a thread", error))?;
                // Otherwise, it may not have left its sleep yet.
                nap(3)?;
            }
            Ok(())
        });
        for _ in 0..number {
            wait().map_err(|error| os_failure("wait for a descriptor", error))?;
        }
        waker.join().expect("the thread does not panic")
    })
}

fn epoll(number: u64) -> Outcome {
    let pipe = Pipe::new()?;
    // SAFETY: takes numbers only.
    let epoll = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }, "make an epoll")?;
    // SAFETY: epoll_create1 succeeded, and nothing else owns the descriptor.
    let epoll = unsafe { File::from_raw_fd(epoll) };
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    let (fd, reader) = (epoll.as_raw_fd(), pipe.reader.as_raw_fd());
    // SAFETY: open descriptors and a valid event.
    let added = unsafe { libc::epoll_ctl(fd, libc::EPOLL_CTL_ADD, reader, &raw mut event) };
    check(added, "add a descriptor to an epoll")?;
    let wait = || {
        // SAFETY: room for one event.
        let ready = unsafe { libc::epoll_wait(fd, &raw mut event, 1, -1) };
        if ready == -1 {
            return Err(std::io::Error::last_os_error());
        }
        (&pipe.reader).read(&mut [0]).map(drop)
    };
    woken(number, || (&pipe.writer).write_all(b"."), wait)
}

fn timer(number: u64) -> Outcome {
    // SAFETY: takes numbers only.
    let timer = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) };
    check(timer, "make a timer")?;
    // SAFETY: timerfd_create succeeded, and nothing else owns the descriptor.
    let timer = unsafe { File::from_raw_fd(timer) };
    // SAFETY: an all-zero itimerspec is a valid one.
    let mut time: libc::itimerspec = unsafe { mem::zeroed() };
    time.it_value.tv_nsec = PERIOD.subsec_nanos().into();
    time.it_interval = time.it_value;
    // SAFETY: an open descriptor, a valid time, and no destination for the time before.
    let set = unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &time, ptr::null_mut()) };
    check(set, "set a timer")?;
    for _ in 0..number {
        let read = (&timer).read(&mut [0; 8]);
        read.map_err(|error| os_failure("wait for a timer", error))?;
    }
    Ok(())
}
