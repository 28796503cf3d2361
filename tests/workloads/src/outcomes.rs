//! Calls that fail, take faults or run in a loop, and a given exit status.

use crate::arguments::{Arguments, HOUR_MS, MAX_REPETITIONS};
use crate::failure::{Failure, Outcome, check, failed, os_failure};
use crate::memory::AnonymousMapping;
use crate::output::print_line;
use crate::pipe::Pipe;
use libc::{c_int, c_long};
use std::fs::File;
use std::io::{self, Read};
use std::mem;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Succeeds if a call that just returned `returned` failed with `errno`.
fn expect_error(call: &str, returned: i64, errno: c_int) -> Outcome {
    let error = io::Error::last_os_error();
    match (returned, error.raw_os_error()) {
        (-1, Some(actual)) if actual == errno => Ok(()),
        (-1, _) => Err(os_failure(format!("make {call} fail as planned"), error)),
        _ => Err(failed(format!("{call} succeeded, and was meant to fail"))),
    }
}

pub fn errors(mut arguments: Arguments) -> Outcome {
    let times = arguments.number("N", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    let missing = c"/nonexistent/workloads".as_ptr();
    for _ in 0..times {
        // SAFETY: the path is NUL-terminated.
        let opened = unsafe { libc::openat(libc::AT_FDCWD, missing, libc::O_RDONLY) };
        expect_error("openat", opened.into(), libc::ENOENT)?;
    }
    for _ in 0..times {
        // SAFETY: -1 is never a descriptor.
        let closed = unsafe { libc::close(-1) };
        expect_error("close", closed.into(), libc::EBADF)?;
    }
    let empty = Pipe::with_flags(libc::O_NONBLOCK)?;
    let descriptor = empty.reader.as_raw_fd();
    let mut byte = 0_u8;
    for _ in 0..times {
        // SAFETY: `byte` has room for the one byte.
        let read = unsafe { libc::read(descriptor, (&raw mut byte).cast(), 1) };
        expect_error("read", read as i64, libc::EAGAIN)?;
    }
    Ok(())
}

/// The page size of x86-64.
const PAGE: usize = 4096;
/// One read returns at most 2 GiB less a page; half of that is plenty.
const MAX_PAGES: u64 = (1 << 30) / PAGE as u64;

pub fn faults(mut arguments: Arguments) -> Outcome {
    let pages = arguments.number("PAGES", 1..=MAX_PAGES)? as usize;
    arguments.end()?;
    let mut zero = File::open("/dev/zero").map_err(|error| os_failure("open /dev/zero", error))?;
    let mut fresh = AnonymousMapping::anonymous(pages * PAGE)?;
    // One fault a page: a huge page would take one for 512 of them.
    // SAFETY: the range is exactly the mapping, and this advice changes no content.
    let advised =
        unsafe { libc::madvise(fresh.start().cast(), pages * PAGE, libc::MADV_NOHUGEPAGE) };
    // A kernel without huge pages does not know the advice, and does not need it.
    if advised == -1 && io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL) {
        check(advised, "forbid huge pages")?;
    }
    // Now the code of both calls is in memory, wherever the linker has put it; its own faults would
    // count as well.
    thread_minor_faults()?;
    zero.read_exact(&mut [0]).map_err(|error| os_failure("read /dev/zero", error))?;
    let before = thread_minor_faults()?;
    let length =
        zero.read(fresh.bytes_mut()).map_err(|error| os_failure("read /dev/zero", error))?;
    let faults = thread_minor_faults()? - before;
    if length != pages * PAGE {
        return Err(failed(format!("read only {length} bytes of {pages} pages")));
    }
    print_line(&format!(r#"{{"pages":{pages},"minor_faults":{faults}}}"#))
}

fn thread_minor_faults() -> Result<c_long, Failure> {
    // SAFETY: a zeroed rusage is valid.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    // SAFETY: `usage` is a valid destination for the result.
    let read = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    check(read, "read the thread's resource usage")?;
    Ok(usage.ru_minflt)
}

/// Rounds of `busy-writer` between two readings of the clock.
const ROUNDS_PER_CHECK: u64 = 16;

pub fn busy_writer(mut arguments: Arguments) -> Outcome {
    let milliseconds = arguments.number("MS", 0..=HOUR_MS)?;
    arguments.end()?;
    let pipe = Pipe::new()?;
    let end = Instant::now() + Duration::from_millis(milliseconds);
    let mut rounds = 0;
    while Instant::now() < end {
        for _ in 0..ROUNDS_PER_CHECK {
            pipe.send()?;
            pipe.receive()?;
        }
        rounds += ROUNDS_PER_CHECK;
    }
    print_line(&rounds.to_string())
}

pub fn exit(mut arguments: Arguments) -> Outcome {
    let status = arguments.number("N", 0..=255)?;
    arguments.end()?;
    match status {
        0 => Ok(()),
        _ => std::process::exit(status as i32),
    }
}
