//! POSIX threads whose system calls can be counted.
//!
//! `std::thread` is unsuitable: glibc keeps freed stacks in a cache and trims it with munmap and
//! madvise, a thread's first allocation may map a new arena, and a join makes a futex call or none,
//! depending on timing. Here, the stacks belong to this module and a thread allocates nothing. The
//! joining thread first reads one byte for each thread from a pipe and then polls, without a call,
//! until the kernel has cleared the thread's id. So the calls are the same in each run. Apart from
//! glibc's own calls at its start, each thread makes one read (the start), the body's calls and one
//! write (the end).

use crate::failure::{Failure, Outcome, os_failure};
use crate::memory::AnonymousMapping;
use crate::pipe::Pipe;
use libc::{c_void, pthread_t};
use std::mem::MaybeUninit;
use std::{hint, io, ptr};

/// Room for the thread's control block, its TLS and a shallow body.
const STACK_BYTES: usize = 64 << 10;

/// The maximum number of threads of a team.
pub const MAX_THREADS: u64 = 20_000;

/// Memory for the stacks of up to `size` threads, reused by each batch.
pub struct Team {
    stacks: AnonymousMapping,
    size: usize,
}

/// The data of one thread.
struct TeamMember<'a> {
    index: usize,
    body: &'a (dyn Fn(usize) + Sync),
    start: &'a Pipe,
    end: &'a Pipe,
}

impl Team {
    pub fn new(size: usize) -> Result<Self, Failure> {
        let stacks = AnonymousMapping::anonymous(size.max(1) * STACK_BYTES)?;
        Ok(Team { stacks, size })
    }

    /// Runs `body(0)` to `body(count - 1)`, each in its own thread. No body starts before all
    /// threads exist, and all threads have ended when this returns.
    pub fn run(&mut self, count: usize, body: &(dyn Fn(usize) + Sync)) -> Outcome {
        assert!(count <= self.size, "the team has {} stacks", self.size);
        let (start, end) = (Pipe::new()?, Pipe::new()?);
        let seats: Vec<TeamMember> =
            (0..count).map(|index| TeamMember { index, body, start: &start, end: &end }).collect();

        let mut threads = Vec::with_capacity(count);
        let mut outcome = Ok(());
        for seat in &seats {
            let stack = self.stacks.start().wrapping_add(seat.index * STACK_BYTES);
            // SAFETY: the stack is this seat's part of the mapping and no living thread's, and
            // every thread is joined below, before seats, pipes and body can go away.
            match unsafe { start_thread(stack, take_seat, ptr::from_ref(seat).cast()) } {
                Ok(thread) => threads.push(thread),
                Err(failure) => {
                    outcome = Err(failure);
                    break;
                }
            }
        }
        // The threads that exist must run even if another could not be created: they wait for their
        // byte.
        for _ in &threads {
            or_abort(start.send());
        }
        for _ in &threads {
            or_abort(end.receive());
        }
        threads.into_iter().for_each(join);
        outcome
    }
}

/// Aborts on a failure: if `run` returned or unwound while its threads live, they would lose their
/// seats.
pub fn or_abort(outcome: Outcome) {
    if let Err(failure) = outcome {
        eprintln!("workloads: {}", failure.message());
        std::process::abort();
    }
}

extern "C" fn take_seat(seat: *mut c_void) -> *mut c_void {
    // SAFETY: `run` passes a pointer to a seat that outlives the thread.
    let seat = unsafe { &*seat.cast::<TeamMember>() };
    or_abort(seat.start.receive());
    (seat.body)(seat.index);
    or_abort(seat.end.send());
    ptr::null_mut()
}

/// Waits, without a system call, until the kernel has cleared the id of a thread that is about
/// to exit.
fn join(thread: pthread_t) {
    // SAFETY: the thread was created joinable, and is joined once: EBUSY means that it was not.
    while unsafe { libc::pthread_tryjoin_np(thread, ptr::null_mut()) } == libc::EBUSY {
        hint::spin_loop();
    }
}

/// Creates a thread on a stack of `STACK_BYTES` bytes.
///
/// # Safety
/// The stack belongs to no living thread and outlives this one, and `entry` may be called with
/// `argument` at any time until the thread ends.
unsafe fn start_thread(
    stack: *mut u8,
    entry: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *const c_void,
) -> Result<pthread_t, Failure> {
    let mut attributes = MaybeUninit::uninit();
    let mut thread = 0;
    // SAFETY: the attributes are initialised before they are used and destroyed once; the caller
    // vouches for stack, entry and argument.
    let error = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setstack(attributes.as_mut_ptr(), stack.cast(), STACK_BYTES);
        let error =
            libc::pthread_create(&mut thread, attributes.as_ptr(), entry, argument.cast_mut());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        error
    };
    match error {
        0 => Ok(thread),
        _ => {
            let error = io::Error::from_raw_os_error(error);
            Err(os_failure("create a thread", error))
        }
    }
}

/// Starts `entry` in a thread that is never joined and lives until the process ends.
pub fn start_forever(entry: extern "C" fn(*mut c_void) -> *mut c_void) -> Outcome {
    let stack = std::mem::ManuallyDrop::new(AnonymousMapping::anonymous(STACK_BYTES)?);
    // SAFETY: the new mapping is never unmapped, and the entry ignores its argument.
    unsafe { start_thread(stack.start(), entry, ptr::null()) }?;
    Ok(())
}
