//! A program that reads the records of its own calls (docs/in-band.md), and compares them with what
//! it knows.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tollgate::in_band::{self, Call, ThreadRecords};

use crate::arguments::Arguments;
use crate::clock::nap;
use crate::failure::{Failure, Outcome, failed, os_failure};
use crate::output::print_line;
use crate::seccomp;

const NANOSECONDS_PER_MS: u64 = 1_000_000;
/// How many calls before the latest one are checked.
const DEPTHS: u64 = 14;
/// Of calls that sleep.
const TRIES: usize = 20;

pub fn own() -> Result<ThreadRecords, Failure> {
    in_band::thread().map_err(|error| failed(error.to_string()))
}

pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid destination. The vDSO makes no system call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The record of the only call that `act` makes.
pub fn record_of(records: ThreadRecords, act: impl FnOnce()) -> Result<Call, Failure> {
    let (before, began) = (records.sequence(), monotonic_ns());
    act();
    let ended = monotonic_ns();
    let call = records.latest(before).ok_or_else(|| failed("the call was not recorded"))?;
    let advanced = records.sequence() - before;
    if advanced != 1 {
        return Err(failed(format!("one call was recorded {advanced} times")));
    }
    if call.ended_ns < began || call.ended_ns > ended || call.wall_ns > ended - began {
        return Err(failed(format!("not between {began} and {ended}: {call:?}")));
    }
    Ok(call)
}

fn expect(holds: bool, call: &Call) -> Outcome {
    if holds { Ok(()) } else { Err(failed(format!("a wrong record: {call:?}"))) }
}

/// Calls whose results and faults are known.
pub fn records(arguments: Arguments) -> Outcome {
    arguments.end()?;
    let records = own()?;
    // SAFETY: these calls have no effect on memory.
    let parent = record_of(records, || unsafe { _ = libc::syscall(libc::SYS_getppid) })?;
    let is_getppid = i64::from(parent.number) == libc::SYS_getppid;
    expect(is_getppid && parent.abi == 0 && parent.blocked_ns == 0, &parent)?;
    // SAFETY: no such descriptor.
    let error = record_of(records, || unsafe { _ = libc::close(-1) })?;
    expect(error.result == -i64::from(libc::EBADF) && error.sleeps().is_empty(), &error)?;
    let zeros = File::open("/dev/zero").map_err(|error| os_failure("open /dev/zero", error))?;
    let mut fresh = Vec::<u8>::with_capacity(1 << 20);
    // SAFETY: the destination has room.
    let read = record_of(records, || unsafe {
        libc::read(zeros.as_raw_fd(), fresh.as_mut_ptr().cast(), fresh.capacity());
    })?;
    expect(read.result == 1 << 20 && read.minor_faults > 0, &read)?;
    let numbered: Vec<_> = (0..DEPTHS)
        .map(|descriptor| {
            // SAFETY: no such descriptor.
            let call = || unsafe { _ = libc::close(-2 - descriptor as i32) };
            record_of(records, call).map(|_| records.sequence())
        })
        .collect::<Result<_, _>>()?;
    let first = records.call(numbered[0]);
    if first.is_none_or(|call| i64::from(call.number) != libc::SYS_close) {
        return Err(failed(format!("an earlier record is wrong: {first:?}")));
    }
    if records.call(records.sequence() + 1).is_some() || records.call(0).is_some() {
        return Err(failed("there is a record of no call"));
    }
    print_line("ok")
}

/// A call that seccomp rejects has a record without times.
pub fn rejected(arguments: Arguments) -> Outcome {
    arguments.end()?;
    let records = own()?;
    seccomp::deny_getppid()?;
    // SAFETY: takes no arguments.
    let call = record_of(records, || unsafe { _ = libc::syscall(libc::SYS_getppid) })?;
    let is_getppid = i64::from(call.number) == libc::SYS_getppid;
    let is_right = call.is_rejected == 1 && call.result == -i64::from(libc::EPERM);
    expect(is_getppid && is_right && call.wall_ns == 0 && call.sleeps().is_empty(), &call)?;
    // SAFETY: no such descriptor.
    let next = record_of(records, || unsafe { _ = libc::close(-1) })?;
    expect(next.is_rejected == 0 && next.wall_ns > 0, &next)?;
    print_line("ok")
}

/// Sleeps in two sites.
pub fn sleeps(arguments: Arguments) -> Outcome {
    arguments.end()?;
    let records = own()?;
    check_sleep(records, "nanosleep", || nap(20).expect("it can sleep"))?;
    let (mut reader, mut writer) = io::pipe().map_err(|error| os_failure("make a pipe", error))?;
    let writing = thread::spawn(move || {
        for _ in 0..TRIES {
            nap(20).expect("it can sleep");
            writer.write_all(b".").expect("the reader exists");
        }
    });
    let mut byte = [0];
    check_sleep(records, "pipe_read", || reader.read_exact(&mut byte).expect("a byte comes"))?;
    writing.join().expect("it has not panicked");
    print_line("ok")
}

/// Makes calls of about 20 ms until the site of one is known: some kernels do not report each
/// switch. The name of the site has `part`.
fn check_sleep(records: ThreadRecords, part: &str, mut sleep: impl FnMut()) -> Outcome {
    for _ in 0..TRIES {
        let call = record_of(records, &mut sleep)?;
        let [slept] = call.sleeps() else { return expect(false, &call) };
        // It may have been preempted before it slept.
        let is_right = (NANOSECONDS_PER_MS..call.wall_ns).contains(&slept.ns);
        expect(is_right && slept.count == 1, &call)?;
        if slept.site != 0 {
            let name = in_band::site_name(slept.site).map_err(|error| failed(error.to_string()))?;
            return expect(name.contains(part), &call);
        }
    }
    Err(failed("no sleep has a known site"))
}

/// A thread makes calls whose results are their numbers. Another one reads its records meanwhile:
/// each record is whole, or is counted as a gap.
pub fn concurrent(mut arguments: Arguments) -> Outcome {
    let calls = arguments.number("N", 1..=100_000_000)?;
    arguments.end()?;
    let file = tempfile()?;
    let descriptor = file.as_raw_fd();
    let records = own()?;
    let base = records.sequence();
    let is_over = AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        let reader = scope.spawn(|| read_while(records, base, &is_over));
        for number in 1..=calls {
            // SAFETY: sets the position in a file.
            unsafe { libc::lseek(descriptor, number as i64, libc::SEEK_SET) };
        }
        let recorded = records.sequence() - base;
        is_over.store(true, Ordering::SeqCst);
        reader.join().expect("it has not panicked").map(|read| (read, recorded))
    });
    let (Read { whole, gaps }, recorded) = outcome?;
    // The creation of the thread is recorded, too.
    if recorded < calls || recorded > calls + 100 || records.losses() != 0 {
        return Err(failed(format!("{recorded} of {calls} calls were recorded")));
    }
    if whole == 0 || whole + gaps < recorded {
        return Err(failed(format!("{whole} records read, {gaps} gaps, of {recorded}")));
    }
    print_line(&format!("ok: {whole} records read, {gaps} gaps"))
}

/// How many records were read, and how many were overwritten before.
#[derive(Default)]
struct Read {
    whole: u64,
    gaps: u64,
}

/// Reads each record in turn until the other thread is over. Each number must have one result for
/// ever, so the difference between them is the same for all records of lseek.
fn read_while(records: ThreadRecords, base: u64, is_over: &AtomicBool) -> Result<Read, Failure> {
    let (mut read, mut difference, mut next) = (Read::default(), None, base + 1);
    loop {
        let was_over = is_over.load(Ordering::SeqCst);
        let latest = records.sequence();
        while next <= latest {
            let number = next;
            next += 1;
            let Some(call) = records.call(number) else {
                read.gaps += 1;
                continue;
            };
            read.whole += 1;
            if i64::from(call.number) != libc::SYS_lseek {
                continue;
            }
            let now = number as i64 - call.result;
            if *difference.get_or_insert(now) != now || call.wall_ns == 0 {
                return Err(failed(format!("record {number} is torn: {call:?}")));
            }
        }
        if was_over {
            return Ok(read);
        }
    }
}

fn tempfile() -> Result<File, Failure> {
    // SAFETY: a NUL-terminated name.
    let descriptor = unsafe { libc::memfd_create(c"positions".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(os_failure("make a file", io::Error::last_os_error()));
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(descriptor) })
}
