//! A ring of io_uring, by its system calls alone: include/uapi/linux/io_uring.h.

use crate::failure::{Failure, check, failed};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

pub const NOP: u8 = 0;
pub const POLL_ADD: u8 = 6;
pub const POLL_REMOVE: u8 = 7;
pub const TIMEOUT: u8 = 11;
pub const TIMEOUT_REMOVE: u8 = 12;
pub const ACCEPT: u8 = 13;
pub const ASYNC_CANCEL: u8 = 14;
pub const READ: u8 = 22;
pub const WRITE: u8 = 23;

/// Flags of a request.
pub const ASYNC: u8 = 1 << 4;
pub const SKIP_SUCCESS: u8 = 1 << 6;
/// Flags of a ring.
pub const SQPOLL: u32 = 1 << 1;
/// The request has further completions.
pub const MORE: u32 = 1 << 1;

const ENTER_GETEVENTS: u32 = 1 << 0;
const ENTER_SQ_WAKEUP: u32 = 1 << 1;
const ENTRIES: u32 = 64;

/// What a request asks for: struct io_uring_sqe.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Submission {
    pub operation: u8,
    pub flags: u8,
    pub priority: u16,
    pub fd: i32,
    pub offset: u64,
    pub address: u64,
    pub length: u32,
    pub operation_flags: u32,
    pub name: u64,
    pub unused: [u64; 3],
}

/// The result of a request: struct io_uring_cqe.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingCompletion {
    pub name: u64,
    pub result: i32,
    pub flags: u32,
}

/// struct io_uring_params.
#[repr(C)]
#[derive(Default)]
struct RingParameters {
    entries: [u32; 2],
    flags: u32,
    unused: [u32; 7],
    /// The offsets in the memory of the queues: head, tail, mask, entries, flags, dropped, array.
    submissions: [u32; 10],
    /// Head, tail, mask, entries, overflow, completions.
    completions: [u32; 10],
}

pub struct IoRing {
    fd: i32,
    parameters: RingParameters,
    queues: NonNull<u8>,
    submissions: NonNull<Submission>,
    /// Submissions of which the kernel does not know yet.
    new: u32,
}

impl IoRing {
    /// A ring with these flags. The ring lives as long as the process.
    pub fn new(flags: u32) -> Result<Self, Failure> {
        let mut parameters = RingParameters { flags, ..RingParameters::default() };
        // SAFETY: valid parameters; the new descriptor belongs to this process.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES, &raw mut parameters) };
        let fd = check(fd as i32, "set up io_uring")?;
        // Both queues are in one mapping since Linux 5.4. The queue of completions is the larger.
        let size = parameters.completions[5] as usize
            + parameters.entries[1] as usize * size_of::<RingCompletion>();
        let size = size.max(parameters.submissions[6] as usize + ENTRIES as usize * 4);
        let queues = map(fd, size, 0)?;
        let all = ENTRIES as usize * size_of::<Submission>();
        let submissions = map(fd, all, 0x1000_0000)?.cast();
        Ok(Self { fd, parameters, queues, submissions, new: 0 })
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the kernel has given the offset of a word in this memory, which stays mapped.
        unsafe { AtomicU32::from_ptr(self.queues.as_ptr().add(offset as usize).cast()) }
    }

    /// Adds a request, which the kernel sees with the next [`Self::submit`].
    pub fn push(&mut self, submission: Submission) {
        let [_, tail_at, mask_at, _, _, _, array_at, ..] = self.parameters.submissions;
        let tail = self.word(tail_at).load(Ordering::Relaxed);
        let index = tail & self.word(mask_at).load(Ordering::Relaxed);
        // SAFETY: the mask keeps the index within the mapping.
        unsafe { self.submissions.add(index as usize).write(submission) };
        self.word(array_at + 4 * index).store(index, Ordering::Relaxed);
        self.word(tail_at).store(tail.wrapping_add(1), Ordering::Release);
        self.new += 1;
    }

    /// Submits what was added, and waits for so many completions.
    pub fn submit(&mut self, wait_for: u32) -> Result<(), Failure> {
        let is_polled = self.parameters.flags & SQPOLL != 0;
        let wakeup = if is_polled { ENTER_SQ_WAKEUP } else { 0 };
        let flags = ENTER_GETEVENTS | wakeup;
        // SAFETY: a ring of this process, and no further arguments.
        let done = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                self.fd,
                self.new,
                wait_for,
                flags,
                ptr::null::<u8>(),
                0,
            )
        };
        if done < 0 || done as u32 != self.new {
            let error = io::Error::last_os_error();
            return Err(failed(format!("submitted {done} of {} requests: {error}", self.new)));
        }
        self.new = 0;
        Ok(())
    }

    /// Takes the next completion, if there is one.
    pub fn take(&mut self) -> Option<RingCompletion> {
        let [head_at, tail_at, mask_at, _, _, entries_at, ..] = self.parameters.completions;
        let head = self.word(head_at).load(Ordering::Relaxed);
        if head == self.word(tail_at).load(Ordering::Acquire) {
            return None;
        }
        let index = (head & self.word(mask_at).load(Ordering::Relaxed)) as usize;
        // SAFETY: the mask keeps the index within the mapping.
        let completion = unsafe {
            let entries = self.queues.as_ptr().add(entries_at as usize).cast::<RingCompletion>();
            entries.add(index).read()
        };
        self.word(head_at).store(head.wrapping_add(1), Ordering::Release);
        Some(completion)
    }

    /// Submits what was added, and takes as many completions as there are results.
    pub fn run(&mut self, results: &[i32]) -> Result<Vec<RingCompletion>, Failure> {
        let mut all = Vec::new();
        self.submit(results.len() as u32)?;
        while all.len() < results.len() {
            match self.take() {
                Some(completion) => all.push(completion),
                // With SQPOLL, the kernel may submit later.
                None => self.submit(1)?,
            }
        }
        let mut found: Vec<_> = all.iter().map(|completion| completion.result).collect();
        let mut expected = results.to_vec();
        found.sort_unstable();
        expected.sort_unstable();
        if found != expected {
            return Err(failed(format!("results {found:?}, expected {expected:?}")));
        }
        Ok(all)
    }
}

fn map(fd: i32, length: usize, offset: i64) -> Result<NonNull<u8>, Failure> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_SHARED | libc::MAP_POPULATE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start = unsafe { libc::mmap(ptr::null_mut(), length, access, kind, fd, offset) };
    check(if start == libc::MAP_FAILED { -1 } else { 0 }, "map the ring")?;
    NonNull::new(start.cast()).ok_or_else(|| failed("the ring is at address 0"))
}
