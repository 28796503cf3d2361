//! Calls that block: sleeps, pipes and FIFOs.

use crate::arguments::{Arguments, HOUR_MS, MAX_REPETITIONS};
use crate::clock::{ClockDelta, ClockMeter, nap, thread_cpu_ns};
use crate::failure::{Outcome, check, failed, os_failure};
use crate::output::print_line;
use crate::pipe::Pipe;
use crate::process::{block_child_signals, fork, own_pid, status_of, wait_success};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

pub fn sleep(mut arguments: Arguments) -> Outcome {
    let milliseconds = arguments.number("MS", 0..=HOUR_MS)?;
    let times = arguments.number_or(1, "TIMES", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    let mut spent = ClockDelta::default();
    ClockMeter::new().measure(&mut spent, || (0..times).try_for_each(|_| nap(milliseconds)))?;
    print_line(&format!("{{{}}}", spent.json_members()))
}

pub fn pipe_block(mut arguments: Arguments) -> Outcome {
    let milliseconds = arguments.number("MS", 0..=HOUR_MS)?;
    let times = arguments.number("TIMES", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    block_child_signals()?;
    let pipe = Pipe::new()?;
    let write_slowly = || (0..times).try_for_each(|_| nap(milliseconds).and_then(|()| pipe.send()));
    let child = fork(|| status_of(write_slowly()))?;
    let mut blocked = Duration::ZERO;
    let cpu_before = thread_cpu_ns()?;
    for _ in 0..times {
        let before = Instant::now();
        pipe.receive()?;
        blocked += before.elapsed();
    }
    let cpu = thread_cpu_ns()? - cpu_before;
    wait_success(child)?;
    let blocked = blocked.as_nanos();
    print_line(&format!(r#"{{"reads":{times},"blocked_ns":{blocked},"cpu_ns":{cpu}}}"#))
}

/// How long each of the two calls of `slow-open` blocks.
const SLOW_MS: u64 = 50;

pub fn slow_open(mut arguments: Arguments) -> Outcome {
    let directory = arguments.path("DIR")?;
    arguments.end()?;
    block_child_signals()?;
    let fifo = directory.join(format!("workloads-slow-open.{}", own_pid()));
    make_fifo(&fifo)?;
    let outcome = open_slowly(&fifo);
    let removed = fs::remove_file(&fifo)
        .map_err(|error| os_failure(format!("remove {}", fifo.display()), error));
    outcome.and(removed)
}

fn make_fifo(path: &Path) -> Outcome {
    let name = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| failed(format!("{path:?} contains a NUL byte")))?;
    // SAFETY: `name` is NUL-terminated.
    let made = unsafe { libc::mkfifo(name.as_ptr(), 0o600) };
    check(made, format_args!("make a FIFO at {}", path.display()))?;
    Ok(())
}

fn open_slowly(fifo: &Path) -> Outcome {
    let doing = |what: &str| format!("{what} {}", fifo.display());
    let write_late = || {
        nap(SLOW_MS)?;
        let mut file = OpenOptions::new()
            .write(true)
            .open(fifo)
            .map_err(|error| os_failure(doing("open"), error))?;
        nap(SLOW_MS)?;
        file.write_all(b".").map_err(|error| os_failure(doing("write to"), error))
    };
    let child = fork(|| status_of(write_late()))?;
    // Blocks until the child opens the other end.
    let mut file = File::open(fifo).map_err(|error| os_failure(doing("open"), error))?;
    // Blocks until the child writes.
    file.read_exact(&mut [0]).map_err(|error| os_failure(doing("read from"), error))?;
    wait_success(child)
}
