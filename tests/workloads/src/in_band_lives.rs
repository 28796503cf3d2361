//! Records in the lives of processes and threads: who has them, and when they end.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::{env, fs, thread};

use tollgate::in_band::{self, ThreadRecords};

use crate::arguments::Arguments;
use crate::clock::nap;
use crate::failure::{Failure, Outcome, check, failed, os_failure};
use crate::in_band::{monotonic_ns, own, record_of};
use crate::output::print_line;

/// No entry is used again before this many threads have had one (bpf/wire/in_band.h,
/// IN_BAND_ENTRIES).
const ENTRIES_IN_TURN: u64 = 200;

/// Threads, a forked child and an executed program each have records of their own.
pub fn inherit(arguments: Arguments) -> Outcome {
    arguments.end()?;
    let records = own()?;
    let other = thread::spawn(|| own().and_then(check_own)).join().expect("it has not panicked")?;
    if other == records {
        return Err(failed("two threads have the same records"));
    }
    let before = records.sequence();
    // SAFETY: the child makes only calls that may be made after a fork of several threads, of which
    // this process has one now.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let outcome = check_child(records);
        if let Err(failure) = &outcome {
            eprintln!("in the child: {}", failure.message());
        }
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    let mut status = 0;
    // SAFETY: a valid destination.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    if status != 0 || records.latest(before).is_none() {
        return Err(failed(format!("the child has ended with {status}")));
    }
    check_own(records)?;
    let program = env::current_exe().map_err(|error| os_failure("find the program", error))?;
    Err(os_failure("execute", Command::new(program).arg("in-band-records").exec()))
}

/// What a child that shares the memory has found.
struct OfVfork {
    parent: ThreadRecords,
    before: u64,
    has_fresh: bool,
}

extern "C" fn in_vfork(found: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the parent has given its variable, and waits.
    let found = unsafe { &mut *found.cast::<OfVfork>() };
    for _ in 0..3 {
        // SAFETY: takes no arguments.
        unsafe { libc::syscall(libc::SYS_gettid) };
        found.has_fresh |= found.parent.latest(found.before).is_some();
    }
    0
}

/// A child that shares the memory until it ends (vfork): its calls are not its parent's, whose
/// records go on afterwards.
pub fn vfork(arguments: Arguments) -> Outcome {
    arguments.end()?;
    let parent = own()?;
    let mut stack = vec![0_u64; 8192];
    let mut found = OfVfork { parent, before: parent.sequence(), has_fresh: false };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack, which grows downwards, and the variable outlive the child, for which this
    // thread waits.
    let child = unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).cast();
        libc::clone(in_vfork, top, flags, (&raw mut found).cast())
    };
    check(child, "create a child")?;
    let call = parent.latest(found.before).ok_or_else(|| failed("clone was not recorded"))?;
    if found.has_fresh {
        return Err(failed("the child's calls look like its parent's"));
    }
    if parent.sequence() != found.before + 1 || call.result != i64::from(child) {
        return Err(failed(format!("more than clone was recorded: {call:?}")));
    }
    let mut status = 0;
    // SAFETY: a valid destination.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    check_own(parent)?;
    print_line("ok")
}

/// N threads, one after the other: each has records, and those of one that has ended stay as they
/// are while the next ones get other entries.
pub fn threads(mut arguments: Arguments) -> Outcome {
    let count = arguments.number("N", 2..=100_000)?;
    arguments.end()?;
    let run = || thread::spawn(|| own().and_then(check_own)).join().expect("it has not panicked");
    let first = run()?;
    let (sequence, latest) = (first.sequence(), first.call(first.sequence()));
    if latest.is_none() {
        return Err(failed("a thread that has ended has no records"));
    }
    for number in 1..count {
        let other = run()?;
        // Entries are used in turn.
        if number < ENTRIES_IN_TURN
            && (other == first || first.sequence() != sequence || first.call(sequence) != latest)
        {
            return Err(failed(format!("thread {number} changed records of one that has ended")));
        }
    }
    check_own(own()?)?;
    print_line("ok")
}

fn request_until_given() -> Result<ThreadRecords, Failure> {
    loop {
        match in_band::thread() {
            Ok(records) => return Ok(records),
            Err(_) => nap(10)?,
        }
    }
}

/// Requests records until it gets some, reads them until they are stale, and does the same again.
pub fn renew(arguments: Arguments) -> Outcome {
    arguments.end()?;
    let old = request_until_given()?;
    read_until_stale(old)?;
    let new = request_until_given()?;
    let before = old.sequence();
    check_own(new)?;
    if new == old || old.latest(before).is_some() {
        return Err(failed("the old records go on"));
    }
    if in_band::thread().map_err(|error| failed(error.to_string()))? != new {
        return Err(failed("the records are requested again, although they advance"));
    }
    print_line("renewed")
}

fn check_own(records: ThreadRecords) -> Result<ThreadRecords, Failure> {
    // SAFETY: takes no arguments.
    record_of(records, || unsafe { _ = libc::syscall(libc::SYS_gettid) })?;
    Ok(records)
}

fn check_child(inherited: ThreadRecords) -> Outcome {
    if inherited.sequence() != 0 || inherited.call(1).is_some() {
        return Err(failed("the child reads its parent's records"));
    }
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    if maps.contains("bpf-map") {
        return Err(failed("the child has its parent's memory"));
    }
    let own = own()?;
    if own == inherited {
        return Err(failed("the child's records are its parent's"));
    }
    check_own(own).map(drop)
}

/// Reads its records until they do not advance any more, which each call must show at once.
pub fn until_stale(arguments: Arguments) -> Outcome {
    arguments.end()?;
    read_until_stale(own()?)
}

fn read_until_stale(records: ThreadRecords) -> Outcome {
    print_line("reading")?;
    let mut latest = None;
    loop {
        let before = records.sequence();
        let began = monotonic_ns();
        nap(1)?;
        match records.latest(before) {
            Some(call) if call.ended_ns >= began => latest = Some(call),
            Some(call) => return Err(failed(format!("stale data looks fresh: {call:?}"))),
            None => break,
        }
    }
    for _ in 0..100 {
        let before = records.sequence();
        nap(0)?;
        if records.latest(before).is_some() {
            return Err(failed("a call was recorded after the end"));
        }
    }
    if latest.is_none() {
        return Err(failed("no call was recorded"));
    }
    print_line("stale")
}
