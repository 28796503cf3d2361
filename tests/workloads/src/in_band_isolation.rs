//! A program that tries to get at records that are not its own.

use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::ptr;

use tollgate::in_band;

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, failed};
use crate::in_band::own;
use crate::in_band_connections::{connect, errno, request};
use crate::output::print_line;

/// Tries to write to its memory, and to get another process's. PID is another process with records.
pub fn isolation(mut arguments: Arguments) -> Outcome {
    let other = arguments.number("PID", 1..=u64::from(u32::MAX))? as u32;
    arguments.end()?;
    own()?;
    // SAFETY: takes no arguments and cannot fail.
    let thread = unsafe { libc::gettid() } as u32;
    let memory = memory_of(thread)?.map_err(|errno| failed(format!("no memory: {errno}")))?;
    let descriptor = memory.as_raw_fd();
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
    if !matches!(memory_of(other)?, Err(libc::ESRCH)) {
        return Err(failed("a thread of another process got a reply"));
    }
    let errno = request_by_child(thread)?;
    if errno != libc::EINVAL {
        return Err(failed(format!("a request by another process got a reply: {errno}")));
    }
    print_line("ok")
}

/// The descriptor of the memory in which a thread would have its records, or the error number.
fn memory_of(tid: u32) -> Result<Result<OwnedFd, i32>, Failure> {
    in_band::memory_of(tid).map_err(|error| failed(error.to_string()))
}

/// Connects, has a child send the request for a thread, and returns the error number. The child has
/// another number than the process that has connected.
fn request_by_child(tid: u32) -> Result<i32, Failure> {
    let (mut stream, greeting) = connect()?;
    // SAFETY: the child writes to a socket and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let sent = stream.write_all(&request(greeting, tid));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(sent.is_err())) };
    }
    let mut status = 0;
    // SAFETY: a valid destination.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    errno(&mut stream)
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
