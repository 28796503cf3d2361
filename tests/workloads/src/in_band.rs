//! A program that reads the records of its own calls (docs/in-band.md), and compares them with what
//! it knows.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, mem, ptr, thread};

use tollgate::in_band::{self, Call, ThreadRecords};

use crate::arguments::Arguments;
use crate::clock::nap;
use crate::failure::{Failure, Outcome, failed, os_failure};
use crate::output::print_line;

const NANOSECONDS_PER_MS: u64 = 1_000_000;
/// What the concurrent reader checks at the latest call, and some before it.
const DEPTHS: u64 = 14;
/// Of calls that sleep.
const TRIES: usize = 20;

fn own() -> Result<ThreadRecords, Failure> {
    in_band::thread().map_err(|error| failed(error.to_string()))
}

fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid destination. The vDSO makes no system call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The record of the only call that `act` makes.
fn record_of(records: ThreadRecords, act: impl FnOnce()) -> Result<Call, Failure> {
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

/// A thread makes calls whose results are their numbers. Another one reads its records meanwhile.
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
    let (read, recorded) = outcome?;
    // The creation of the thread is recorded, too.
    if recorded < calls || recorded > calls + 100 {
        return Err(failed(format!("{recorded} of {calls} calls were recorded")));
    }
    if read == 0 {
        return Err(failed("no record was read"));
    }
    print_line(&format!("ok: {read} records read"))
}

/// Reads until the other thread is over. Each number must have one result for ever, so the
/// difference between them is the same for all records of lseek.
fn read_while(records: ThreadRecords, base: u64, is_over: &AtomicBool) -> Result<u64, Failure> {
    let (mut read, mut difference) = (0, None);
    while !is_over.load(Ordering::SeqCst) {
        let latest = records.sequence();
        for number in (base + 1).max(latest.saturating_sub(DEPTHS))..=latest {
            let Some(call) = records.call(number) else { continue };
            if i64::from(call.number) != libc::SYS_lseek {
                continue;
            }
            let now = number as i64 - call.result;
            if *difference.get_or_insert(now) != now || call.wall_ns == 0 {
                return Err(failed(format!("record {number} is torn: {call:?}")));
            }
            read += 1;
        }
    }
    Ok(read)
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
    let records = own()?;
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

/// Tries to write to its memory, and to get another process's. PID is another process with records.
pub fn isolation(mut arguments: Arguments) -> Outcome {
    let other = arguments.number("PID", 1..=u64::from(u32::MAX))? as u32;
    arguments.end()?;
    own()?;
    // SAFETY: takes no arguments and cannot fail.
    let (errno, descriptor) = request(unsafe { libc::gettid() } as u32)?;
    let Some(descriptor) = descriptor else {
        return Err(failed(format!("no memory was given: {errno}")));
    };
    // bpf/wire/in_band.h: IN_BAND_PAGE and IN_BAND_ENTRIES
    let (page, entries, shared) = (4096, 257, libc::MAP_SHARED);
    let write = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new mappings of a descriptor.
    let (writable, readable) = unsafe {
        (
            libc::mmap(ptr::null_mut(), page, write, shared, descriptor, 0),
            libc::mmap(ptr::null_mut(), page, libc::PROT_READ, shared, descriptor, 0),
        )
    };
    if writable != libc::MAP_FAILED || readable == libc::MAP_FAILED {
        return Err(failed("the memory is not just to read"));
    }
    // SAFETY: the mapping of above.
    if unsafe { libc::mprotect(readable, page, write) } == 0 {
        return Err(failed("the memory can be made writable"));
    }
    // SAFETY: beyond the memory.
    let beyond = unsafe {
        libc::mmap(
            ptr::null_mut(),
            page,
            libc::PROT_READ,
            shared,
            descriptor,
            entries * page as i64,
        )
    };
    if beyond != libc::MAP_FAILED {
        return Err(failed("there is memory beyond the process's own"));
    }
    if update(descriptor) {
        return Err(failed("bpf(2) changes the memory"));
    }
    let (errno, descriptor) = request(other)?;
    if descriptor.is_some() || errno != libc::ESRCH {
        return Err(failed(format!("a thread of another process got a reply: {errno}")));
    }
    print_line("ok")
}

/// Asks for the records of a thread, as libtollgate does. Returns the errno and the descriptor.
fn request(tid: u32) -> Result<(i32, Option<RawFd>), Failure> {
    let name = env::var("TOLLGATE_IN_BAND").unwrap_or_default();
    let ask = || -> io::Result<(i32, Option<RawFd>)> {
        let address = SocketAddr::from_abstract_name(name.trim_start_matches('@'))?;
        let mut stream = UnixStream::connect_addr(&address)?;
        stream.write_all([1, tid].map(u32::to_ne_bytes).as_flattened())?;
        let (mut word, mut control) = ([0_u8; 4], [0_u64; 4]);
        let mut part = libc::iovec { iov_base: word.as_mut_ptr().cast(), iov_len: 4 };
        // SAFETY: all bytes may be zero; the parts outlive the call.
        unsafe {
            let mut message: libc::msghdr = mem::zeroed();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&control);
            libc::recvmsg(stream.as_raw_fd(), &raw mut message, 0);
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            let descriptor =
                (!header.is_null()).then(|| libc::CMSG_DATA(header).cast::<i32>().read_unaligned());
            Ok((i32::from_ne_bytes(word), descriptor))
        }
    };
    ask().map_err(|error| os_failure("ask for records", error))
}

/// Whether an entry can be changed by bpf(2).
fn update(map: RawFd) -> bool {
    // linux/bpf.h: BPF_MAP_UPDATE_ELEM and its part of union bpf_attr
    const UPDATE: i32 = 2;
    #[repr(C)]
    struct Attributes {
        map: u32,
        unused: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let (key, value) = (1_u32, [0xff_u8; 4096]);
    let attributes = Attributes {
        map: map as u32,
        unused: 0,
        key: (&raw const key).addr() as u64,
        value: (&raw const value).addr() as u64,
        flags: 0,
    };
    // SAFETY: the key and the value have the sizes of the map's.
    unsafe {
        libc::syscall(libc::SYS_bpf, UPDATE, &raw const attributes, size_of::<Attributes>()) == 0
    }
}
