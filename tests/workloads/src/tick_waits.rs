//! Tasks that the sleeps of a timer begin, each with a wait in its middle.

use std::cell::Cell;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::{ptr, thread};

use crate::arguments::{Arguments, HOUR_MS};
use crate::clock::nap;
use crate::cpu_time::{thread_ns, work_for};
use crate::failure::{Failure, Outcome, check, os_failure};
use crate::output::print_line;
use crate::pipe::Pipe;

const MAX_TICKS: u64 = 1000;
/// How long the other thread lets this one wait.
const REPLY_MS: libc::c_int = 2;
/// What a tick reads of the file.
const BLOCK: usize = 1 << 18;

fn numbers(arguments: &mut Arguments) -> Result<(u64, u64), Failure> {
    Ok((arguments.number("N", 1..=MAX_TICKS)?, arguments.number("MS", 0..=HOUR_MS)?))
}

/// Works before and after the wait of each tick. Returns the processor time of this work.
fn tick(ticks: u64, ms: u64, wait: impl Fn(u64) -> Outcome) -> Result<u64, Failure> {
    let mut ns = 0;
    for number in 0..ticks {
        nap(3)?;
        let began = thread_ns();
        work_for(ms);
        wait(number)?;
        work_for(ms);
        ns += thread_ns() - began;
    }
    nap(3)?;
    Ok(ns)
}

/// Lets another thread wait or work, in `during`, while this one waits in each tick. Prints the
/// processor time of the ticks and of `during` together.
fn tick_with(ticks: u64, ms: u64, during: impl Fn() -> Outcome + Sync) -> Outcome {
    let (requests, replies) = (Pipe::new()?, Pipe::new()?);
    let ns = thread::scope(|scope| {
        let replier = scope.spawn(|| {
            let mut ns = 0;
            for _ in 0..ticks {
                requests.receive()?;
                let began = thread_ns();
                during()?;
                ns += thread_ns() - began;
                replies.send()?;
            }
            Ok::<_, Failure>(ns)
        });
        let ns = tick(ticks, ms, |_| requests.send().and_then(|()| replies.receive()))?;
        Ok::<_, Failure>(ns + replier.join().expect("it does not panic")?)
    })?;
    print_line(&ns.to_string())
}

/// Waits for another thread, which sleeps by poll, and so begins no task of its own.
pub fn with_replies(mut arguments: Arguments) -> Outcome {
    let (ticks, ms) = numbers(&mut arguments)?;
    arguments.end()?;
    tick_with(ticks, ms, || {
        // SAFETY: there is no descriptor to poll.
        check(unsafe { libc::poll(ptr::null_mut(), 0, REPLY_MS) }, "wait").map(drop)
    })
}

/// Waits for another thread, which works meanwhile.
pub fn with_help(mut arguments: Arguments) -> Outcome {
    let (ticks, ms) = numbers(&mut arguments)?;
    arguments.end()?;
    tick_with(ticks, ms, || {
        work_for(ms);
        Ok(())
    })
}

/// How often the calling thread has gone to sleep.
fn sleeps() -> i64 {
    // SAFETY: room for the result, whose members are numbers.
    unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_nvcsw
    }
}

/// Waits for the blocks of a file that is not in the page cache. Prints the processor time, and how
/// often it waited.
pub fn with_reads(mut arguments: Arguments) -> Outcome {
    let (ticks, ms) = numbers(&mut arguments)?;
    let path = arguments.path("FILE")?;
    arguments.end()?;
    let file = File::open(&path).map_err(|error| os_failure("open the file", error))?;
    // SAFETY: takes numbers only.
    let advise = |advice| unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, advice) };
    check(advise(libc::POSIX_FADV_DONTNEED), "drop its pages")?;
    // Otherwise, the kernel reads ahead while the program works.
    check(advise(libc::POSIX_FADV_RANDOM), "read no further")?;
    let waits = Cell::new(0);
    let ns = tick(ticks, ms, |number| {
        let mut block = vec![0; BLOCK];
        let before = sleeps();
        let read = file.read_exact_at(&mut block, number * BLOCK as u64);
        waits.set(waits.get() + sleeps() - before);
        read.map_err(|error| os_failure("read the file", error))
    })?;
    print_line(&format!("{ns} {}", waits.get()))
}
