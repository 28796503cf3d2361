//! Reads of /dev/zero, for the CPU time in calls, alone on a CPU or competing for it.
//!
//! One read takes about as long as a scheduler's slice, so nearly all of the thread's waiting for a
//! CPU falls into reads; waiting between two reads belongs to no call.

use crate::arguments::{Arguments, HOUR_MS};
use crate::clock::{ClockDelta, ClockMeter, nap};
use crate::failure::{Failure, Outcome, check, failed, os_failure};
use crate::memory::AnonymousMapping;
use crate::output::print_line;
use crate::pipe::Pipe;
use crate::process::{block_child_signals, fork, kill, own_pid, wait};
use libc::{c_int, pid_t};
use std::fs::File;
use std::io::{IoSliceMut, Read};
use std::{hint, mem};

/// Bytes of a read.
const BLOCK: usize = 64 << 20;
const MAX_READS: u64 = 1 << 20;
/// Busy processes that share the CPU of a starved reader.
const SIBLINGS: usize = 3;
/// Rounds of `mixed`, each a sleep and then reads.
const ROUNDS: u64 = 4;
/// A `cpu_set_t` names CPUs below this.
pub const MAX_CPUS: u64 = libc::CPU_SETSIZE as u64;

/// Reads /dev/zero, one block a call, into a buffer that is already backed by memory.
struct ZeroReader {
    zero: File,
    buffer: AnonymousMapping,
}

impl ZeroReader {
    fn new() -> Result<Self, Failure> {
        let zero = File::open("/dev/zero").map_err(|error| os_failure("open /dev/zero", error))?;
        let mut buffer = AnonymousMapping::anonymous(BLOCK)?;
        buffer.bytes_mut().fill(1);
        Ok(ZeroReader { zero, buffer })
    }

    /// Makes `times` calls. A read that a stop cuts short is not repeated, because the number of
    /// calls is fixed.
    fn read(&mut self, times: u64) -> Outcome {
        for _ in 0..times {
            self.zero
                .read(self.buffer.bytes_mut())
                .map_err(|error| os_failure("read /dev/zero", error))?;
        }
        Ok(())
    }
}

pub fn spin_read(mut arguments: Arguments) -> Outcome {
    let times = arguments.number("TIMES", 0..=MAX_READS)?;
    arguments.end()?;
    let mut reader = ZeroReader::new()?;
    let mut spent = ClockDelta::default();
    ClockMeter::new().measure(&mut spent, || reader.read(times))?;
    print_line(&format!(r#"{{"reads":{times},{}}}"#, spent.json_members()))
}

/// Its memory can be read for as long as it sleeps.
pub fn spin_read_then_sleep(mut arguments: Arguments) -> Outcome {
    let times = arguments.number("TIMES", 0..=MAX_READS)?;
    let milliseconds = arguments.number("MS", 0..=HOUR_MS)?;
    arguments.end()?;
    ZeroReader::new()?.read(times)?;
    nap(milliseconds)
}

pub fn starved(mut arguments: Arguments) -> Outcome {
    let times = arguments.number("TIMES", 0..=MAX_READS)?;
    let cpu = arguments.number("CPU", 0..=MAX_CPUS - 1)?;
    arguments.end()?;
    let mut reader = ZeroReader::new()?;
    let mut spent = ClockDelta::default();
    let siblings = Siblings::start_on(cpu)?;
    ClockMeter::new().measure(&mut spent, || reader.read(times))?;
    drop(siblings);
    print_line(&format!(r#"{{"reads":{times},{}}}"#, spent.json_members()))
}

pub fn mixed(mut arguments: Arguments) -> Outcome {
    let milliseconds = arguments.number("MS", 0..=HOUR_MS)?;
    let times = arguments.number("TIMES", 0..=MAX_READS)?;
    let cpu = arguments.number("CPU", 0..=MAX_CPUS - 1)?;
    arguments.end()?;
    let mut reader = ZeroReader::new()?;
    let meter = ClockMeter::new();
    let (mut sleeping, mut reading) = (ClockDelta::default(), ClockDelta::default());
    let siblings = Siblings::start_on(cpu)?;
    for _ in 0..ROUNDS {
        meter.measure(&mut sleeping, || nap(milliseconds))?;
        meter.measure(&mut reading, || reader.read(times))?;
    }
    drop(siblings);
    print_line(&format!(
        r#"{{"sleep":{{"sleeps":{ROUNDS},{}}},"read":{{"reads":{},{}}}}}"#,
        sleeping.json_members(),
        ROUNDS * times,
        reading.json_members()
    ))
}

/// Busy processes on the CPU of this one, which end with it.
pub struct Siblings(Vec<pid_t>);

impl Siblings {
    /// Pins this process to `cpu` and starts its siblings there; all spin when this returns.
    pub fn start_on(cpu: u64) -> Result<Self, Failure> {
        pin_to(cpu)?;
        block_child_signals()?;
        let parent = own_pid();
        let ready = Pipe::new()?;
        let mut siblings = Siblings(Vec::with_capacity(SIBLINGS));
        for _ in 0..SIBLINGS {
            siblings.0.push(fork(|| spin(parent, &ready))?);
        }
        (0..SIBLINGS).try_for_each(|_| receive_apart(&ready))?;
        Ok(siblings)
    }
}

impl Drop for Siblings {
    fn drop(&mut self) {
        for &sibling in &self.0 {
            // Neither can fail: they are this process's children, and no other code waits for them.
            let _ = kill(sibling, libc::SIGKILL).and_then(|()| wait(sibling, 0).map(|_| ()));
        }
    }
}

/// Receives a byte by readv, so that `read` is called for /dev/zero only.
fn receive_apart(pipe: &Pipe) -> Outcome {
    let mut byte = [0];
    match (&pipe.reader).read_vectored(&mut [IoSliceMut::new(&mut byte)]) {
        Ok(1) => Ok(()),
        Ok(_) => Err(failed("a busy process ended too early")),
        Err(error) => Err(os_failure("read from a pipe", error)),
    }
}

fn spin(parent: pid_t, ready: &Pipe) -> c_int {
    // The parent kills its siblings at the end; this is for the case that the parent is killed.
    // SAFETY: the call takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // SAFETY: getppid always succeeds. Another parent means that ours died before the prctl.
    let orphaned = unsafe { libc::getppid() } != parent;
    if orphaned || ready.send().is_err() {
        return 1;
    }
    loop {
        hint::spin_loop();
    }
}

/// Pins this thread to a processor.
pub fn pin_to(cpu: u64) -> Outcome {
    // SAFETY: a zeroed cpu_set_t is the empty set, and `cpu` is below CPU_SETSIZE.
    let set = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu as usize, &mut set);
        set
    };
    // SAFETY: `set` is as long as we say; 0 is the calling thread.
    let pinned = unsafe { libc::sched_setaffinity(0, mem::size_of_val(&set), &set) };
    check(pinned, format_args!("run on CPU {cpu}"))?;
    Ok(())
}
