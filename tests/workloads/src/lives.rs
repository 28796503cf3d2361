//! What a thread does outside of calls: it computes, waits for a processor, or has page faults. And
//! a thread that makes none: that of the kernel which polls for requests of io_uring.

use crate::arguments::{Arguments, HOUR_MS};
use crate::clock::nap;
use crate::failure::{Failure, Outcome, check, failed, os_failure};
use crate::output::print_line;
use crate::reading::{MAX_CPUS, Siblings, pin_to};
use crate::ring::{IoRing, SQPOLL};
use crate::signals::pause_forever;
use crate::sleepers::is_asleep;
use std::fs::File;
use std::hint;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};
use std::{ptr, thread};

const PAGE: usize = 4096;

/// The clock is read without a call (vdso(7)).
fn compute_for(milliseconds: u64) {
    let end = Instant::now() + Duration::from_millis(milliseconds);
    while Instant::now() < end {
        hint::spin_loop();
    }
}

pub fn compute(mut arguments: Arguments) -> Outcome {
    let milliseconds = arguments.number("MS", 0..=HOUR_MS)?;
    arguments.end()?;
    compute_for(milliseconds);
    Ok(())
}

pub fn compute_then_sleep(mut arguments: Arguments) -> Outcome {
    let milliseconds = arguments.number("MS", 0..=HOUR_MS)?;
    arguments.end()?;
    compute_for(milliseconds);
    nap(milliseconds)
}

pub fn compute_beside(mut arguments: Arguments) -> Outcome {
    let milliseconds = arguments.number("MS", 0..=HOUR_MS)?;
    let cpu = arguments.number("CPU", 0..=MAX_CPUS - 1)?;
    arguments.end()?;
    let siblings = Siblings::start_on(cpu)?;
    compute_for(milliseconds);
    drop(siblings);
    Ok(())
}

pub fn compute_before_thread(mut arguments: Arguments) -> Outcome {
    let milliseconds = arguments.number("MS", 0..=HOUR_MS)?;
    arguments.end()?;
    pin_here()?;
    run_first()?;
    let thread = thread::spawn(|| ());
    compute_for(milliseconds);
    thread.join().map_err(|_| failed("the thread has panicked"))
}

/// Another thread takes the processor of the sleeping one, and keeps it for longer than the sleep.
pub fn overslept(mut arguments: Arguments) -> Outcome {
    let milliseconds = arguments.number("MS", 0..=HOUR_MS)?;
    arguments.end()?;
    pin_here()?;
    // SAFETY: takes no arguments.
    let sleeper = unsafe { libc::gettid() };
    let busy = thread::spawn(move || {
        while !is_asleep(sleeper) {
            hint::spin_loop();
        }
        run_first()?;
        compute_for(2 * milliseconds);
        Ok(())
    });
    nap(milliseconds)?;
    busy.join().map_err(|_| failed("the thread has panicked"))?
}

/// Pins this process to the processor on which it runs.
fn pin_here() -> Outcome {
    // SAFETY: takes nothing.
    pin_to(check(unsafe { libc::sched_getcpu() }, "find the CPU")? as u64)
}

/// Gives this thread a real-time priority. New threads do not have it.
fn run_first() -> Outcome {
    let parameter = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: a valid parameter.
    check(unsafe { libc::sched_setscheduler(0, policy, &parameter) }, "set the priority")?;
    Ok(())
}

pub fn touch_fresh(mut arguments: Arguments) -> Outcome {
    /// Its page faults take far longer than the two calls and the loop.
    const LENGTH: usize = 4 << 20;
    let milliseconds = arguments.number("MS", 0..=HOUR_MS)?;
    arguments.end()?;
    let end = Instant::now() + Duration::from_millis(milliseconds);
    while Instant::now() < end {
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice replaces no memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), LENGTH, access, kind, -1, 0) };
        check(if start == libc::MAP_FAILED { -1 } else { 0 }, "map memory")?;
        // SAFETY: the range is that of the mapping.
        check(unsafe { libc::madvise(start, LENGTH, libc::MADV_NOHUGEPAGE) }, "advise the kernel")?;
        for at in (0..LENGTH).step_by(PAGE) {
            // SAFETY: within the mapping, which is removed after the loop.
            unsafe { start.cast::<u8>().add(at).write_volatile(1) };
        }
        // SAFETY: nothing refers to the mapping.
        check(unsafe { libc::munmap(start, LENGTH) }, "unmap the memory")?;
    }
    Ok(())
}

pub fn map_cold(mut arguments: Arguments) -> Outcome {
    let path = arguments.path("FILE")?;
    arguments.end()?;
    let file = File::open(&path).map_err(|error| os_failure("open the file", error))?;
    let length = file.metadata().map_err(|error| os_failure("find its size", error))?.len();
    // SAFETY: takes numbers only.
    let dropped = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    check(dropped, "drop its pages")?;
    let (began, faults) = (Instant::now(), major_faults()?);
    let sum = touch_pages(&file, length as usize)?;
    let (ns, faults) = (began.elapsed().as_nanos(), major_faults()? - faults);
    print_line(&format!(r#"{{"ns":{ns},"major_faults":{faults},"sum":{sum}}}"#))
}

/// Reads a byte of each page of a file, through a mapping.
fn touch_pages(file: &File, length: usize) -> Result<u64, Failure> {
    // SAFETY: a new mapping at an address of the kernel's choice replaces no memory.
    let start = unsafe {
        libc::mmap(ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    check(if start == libc::MAP_FAILED { -1 } else { 0 }, "map the file")?;
    // SAFETY: the range is that of the mapping.
    check(unsafe { libc::madvise(start, length, libc::MADV_RANDOM) }, "advise the kernel")?;
    let pages = (0..length).step_by(PAGE);
    // SAFETY: within the mapping, which has not been removed.
    Ok(pages.map(|at| u64::from(unsafe { start.cast::<u8>().add(at).read_volatile() })).sum())
}

pub fn polled_ring(arguments: Arguments) -> Outcome {
    arguments.end()?;
    IoRing::new(SQPOLL)?;
    pause_forever()
}

fn major_faults() -> Result<u64, Failure> {
    // SAFETY: a zeroed rusage is valid, and is room for the result.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    check(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) }, "count its faults")?;
    Ok(usage.ru_majflt as u64)
}
