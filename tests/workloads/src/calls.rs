//! Known numbers of simple calls, from one thread, many threads and many short processes.

use crate::arguments::{Arguments, MAX_REPETITIONS};
use crate::failure::{Failure, Outcome, os_failure};
use crate::pipe::Pipe;
use crate::process::{block_child_signals, fork, status_of, wait_success};
use crate::raw;
use crate::team::{MAX_THREADS, Team};
use std::fs::File;
use std::io::Read;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::thread;

/// How many short threads or processes are alive at once, and the calls that each makes.
const BATCH: usize = 50;
const SHORT_CALLS: u64 = 3;

fn call_getppid(times: u64) {
    for _ in 0..times {
        raw::getppid();
    }
}

pub fn calls(mut arguments: Arguments) -> Outcome {
    let total = arguments.number("N", 0..=MAX_REPETITIONS)?;
    let threads = arguments.flag("--threads", "T", 1..=MAX_THREADS)?;
    arguments.end()?;
    match threads {
        None => {
            call_getppid(total);
            Ok(())
        }
        Some(threads) => Team::new(threads as usize)?.run(threads as usize, &|index| {
            // The first threads take one more each where the division leaves a remainder.
            let extra = (index as u64) < total % threads;
            call_getppid(total / threads + u64::from(extra));
        }),
    }
}

pub fn calls_on_input(mut arguments: Arguments) -> Outcome {
    let calls = arguments.number("N", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    // Not std's stdin, which reads ahead.
    // SAFETY: descriptor 0 stays open, and ManuallyDrop keeps it so.
    let mut stdin = ManuallyDrop::new(unsafe { File::from_raw_fd(0) });
    loop {
        match stdin.read(&mut [0]) {
            Ok(0) => return Ok(()),
            Ok(_) => call_getppid(calls),
            Err(error) => return Err(os_failure("read stdin", error)),
        }
    }
}

pub fn threads(mut arguments: Arguments) -> Outcome {
    let threads = arguments.number("N", 1..=MAX_THREADS)? as usize;
    let calls = arguments.number("CALLS", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    Team::new(threads)?.run(threads, &|_| call_getppid(calls))
}

pub fn named_threads(mut arguments: Arguments) -> Outcome {
    let mut names = Vec::new();
    while let Ok(name) = arguments.path("NAME") {
        names.push(name.display().to_string());
    }
    arguments.end()?;
    let start = |name: String| {
        let builder = thread::Builder::new().name(name);
        builder.spawn(|| call_getppid(10)).map_err(|error| os_failure("start a thread", error))
    };
    let threads = names.into_iter().map(start).collect::<Result<Vec<_>, _>>()?;
    threads.into_iter().try_for_each(|thread| {
        thread.join().map_err(|_| crate::failure::failed("a thread panicked"))
    })
}

/// `total` in batches of `BATCH`, the last one smaller.
fn batches(total: u64) -> impl Iterator<Item = usize> {
    let total = total as usize;
    (0..total).step_by(BATCH).map(move |first| BATCH.min(total - first))
}

pub fn short_threads(mut arguments: Arguments) -> Outcome {
    let total = arguments.number("N", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    let mut team = Team::new(BATCH)?;
    batches(total).try_for_each(|count| team.run(count, &|_| call_getppid(SHORT_CALLS)))
}

pub fn short_processes(mut arguments: Arguments) -> Outcome {
    let total = arguments.number("N", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    block_child_signals()?;
    // Each child waits for its byte, so that the whole batch is alive before the first one ends.
    let start = Pipe::new()?;
    batches(total).try_for_each(|count| {
        let short_life = || {
            let started = start.receive();
            call_getppid(SHORT_CALLS);
            status_of(started)
        };
        let children = (0..count).map(|_| fork(short_life)).collect::<Result<Vec<_>, Failure>>()?;
        children.iter().try_for_each(|_| start.send())?;
        children.into_iter().try_for_each(wait_success)
    })
}
