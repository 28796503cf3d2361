//! Threads that sleep until a party wakes them that the test knows: each function says which.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::io::{Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, thread};

use crate::arguments::Arguments;
use crate::clock::nap;
use crate::connections::connections;
use crate::failure::{Failure, Outcome, check, failed, os_failure};
use crate::memory::AnonymousMapping;
use crate::pipe::Pipe;
use crate::process::{block_child_signals, fork, status_of, wait_success};

/// How long each wait lasts at least.
const NAP_MS: u64 = 60;
const PAGE: usize = 4096;

pub fn waits_for(mut arguments: Arguments) -> Outcome {
    let what = arguments.path("WHAT")?;
    arguments.end()?;
    match what.to_str() {
        Some("pipe") => pipe(),
        Some("mutex") => Mutex::new(0, 0)?.wait_for_sleeper(),
        Some("robust-mutex") => Mutex::new(libc::PTHREAD_MUTEX_ROBUST, 0)?.wait_for_sleeper(),
        Some("pi-mutex") => Mutex::new(0, libc::PTHREAD_PRIO_INHERIT)?.wait_for_sleeper(),
        Some("condition") => condition(),
        Some("child") => child(),
        Some("socket") => socket(),
        Some("chain") => chain(),
        Some("kernel-mutex") => kernel_mutex(),
        _ => Err(Failure::Usage(format!("{} is nothing to wait for", what.display()))),
    }
}

/// Runs a body in a thread of this name.
fn in_thread<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    name: &str,
    body: impl FnOnce() -> Outcome + Send + 'scope,
) -> Result<thread::ScopedJoinHandle<'scope, Outcome>, Failure> {
    let spawned = thread::Builder::new().name(name.into()).spawn_scoped(scope, body);
    spawned.map_err(|error| os_failure("create a thread", error))
}

fn joined(thread: thread::ScopedJoinHandle<'_, Outcome>) -> Outcome {
    thread.join().map_err(|_| failed("a thread has panicked"))?
}

/// Its number; 0: it has not begun.
struct Tid(AtomicU32);

impl Tid {
    const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    fn set(&self) {
        // SAFETY: takes no arguments and cannot fail.
        self.0.store(unsafe { libc::gettid() } as u32, Ordering::SeqCst);
    }

    /// Whether the thread sleeps in this call.
    fn is_asleep_in(&self, call: libc::c_long) -> bool {
        let tid = self.0.load(Ordering::SeqCst);
        let path = format!("/proc/self/task/{tid}/syscall");
        let now =
            if tid == 0 { String::new() } else { fs::read_to_string(path).unwrap_or_default() };
        now.starts_with(&format!("{call} "))
    }

    /// Waits until the thread sleeps in this call.
    fn sleeps_in(&self, call: libc::c_long) -> Outcome {
        while !self.is_asleep_in(call) {
            nap(1)?;
        }
        Ok(())
    }
}

/// The thread `ponger` writes what the first thread reads.
fn pipe() -> Outcome {
    let (there, back) = (Pipe::new()?, Pipe::new()?);
    thread::scope(|scope| {
        let ponger = in_thread(scope, "ponger", || {
            (0..10).try_for_each(|_| {
                there.receive()?;
                nap(NAP_MS / 10)?;
                back.send()
            })
        })?;
        (0..10).try_for_each(|_| there.send().and_then(|()| back.receive()))?;
        joined(ponger)
    })
}

struct Mutex(Box<UnsafeCell<libc::pthread_mutex_t>>);

// SAFETY: a pthread mutex is made to be shared.
unsafe impl Sync for Mutex {}

impl Mutex {
    fn new(robustness: c_int, protocol: c_int) -> Result<Self, Failure> {
        let mut attributes = MaybeUninit::uninit();
        let mutex = Self(Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)));
        // SAFETY: the attributes are initialised first, and the mutex is not in use yet.
        let error = unsafe {
            libc::pthread_mutexattr_init(attributes.as_mut_ptr());
            libc::pthread_mutexattr_setrobust(attributes.as_mut_ptr(), robustness);
            libc::pthread_mutexattr_setprotocol(attributes.as_mut_ptr(), protocol);
            libc::pthread_mutex_init(mutex.0.get(), attributes.as_ptr())
        };
        if error == 0 { Ok(mutex) } else { Err(failed("a mutex cannot be made")) }
    }

    fn lock(&self) {
        // SAFETY: it is initialised.
        unsafe { libc::pthread_mutex_lock(self.0.get()) };
    }

    fn unlock(&self) {
        // SAFETY: it is initialised, and this thread has locked it.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }

    /// The thread `holder` sleeps in `while_held`, and the first one waits for the mutex.
    fn wait_while_held(
        &self,
        call: libc::c_long,
        while_held: impl FnOnce() -> Outcome + Send,
    ) -> Outcome {
        let tid = Tid::new();
        thread::scope(|scope| {
            let holder = in_thread(scope, "holder", || {
                self.lock();
                tid.set();
                let outcome = while_held();
                self.unlock();
                outcome
            })?;
            tid.sleeps_in(call)?;
            self.lock();
            self.unlock();
            joined(holder)
        })
    }

    fn wait_for_sleeper(&self) -> Outcome {
        let waiter = Tid::new();
        waiter.set();
        self.wait_while_held(libc::SYS_nanosleep, || {
            loop {
                let is_waiting = waiter.is_asleep_in(libc::SYS_futex);
                nap(NAP_MS)?;
                if is_waiting {
                    return Ok(());
                }
            }
        })
    }
}

/// The thread `signaler` signals the condition for which the first thread waits.
fn condition() -> Outcome {
    let mutex = Mutex::new(0, 0)?;
    let condition = Condition(UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER));
    let (is_true, waiter) = (AtomicU32::new(0), Tid::new());
    waiter.set();
    thread::scope(|scope| {
        let signaler = in_thread(scope, "signaler", || {
            waiter.sleeps_in(libc::SYS_futex)?;
            nap(NAP_MS)?;
            mutex.lock();
            is_true.store(1, Ordering::SeqCst);
            mutex.unlock();
            condition.signal();
            Ok(())
        })?;
        mutex.lock();
        while is_true.load(Ordering::SeqCst) == 0 {
            condition.wait(&mutex);
        }
        mutex.unlock();
        joined(signaler)
    })
}

struct Condition(UnsafeCell<libc::pthread_cond_t>);

// SAFETY: a condition variable is made to be shared.
unsafe impl Sync for Condition {}

impl Condition {
    fn signal(&self) {
        // SAFETY: it is initialised.
        unsafe { libc::pthread_cond_signal(self.0.get()) };
    }

    fn wait(&self, mutex: &Mutex) {
        // SAFETY: both are initialised, and this thread has locked the mutex.
        unsafe { libc::pthread_cond_wait(self.0.get(), mutex.0.get()) };
    }
}

/// The child ends.
fn child() -> Outcome {
    block_child_signals()?;
    wait_success(fork(|| status_of(nap(NAP_MS)))?)
}

/// The thread `sender` sends over loopback.
fn socket() -> Outcome {
    let ends = connections(1).map_err(|error| os_failure("open a connection", error))?;
    let [receiver, sender]: [TcpStream; 2] =
        ends.try_into().map_err(|_| failed("a connection has two ends"))?;
    let tid = Tid::new();
    tid.set();
    let receive = || {
        let mut byte = [0];
        (&receiver).read_exact(&mut byte).map_err(|error| os_failure("receive", error))
    };
    // The byte that came with the connection.
    receive()?;
    thread::scope(|scope| {
        let sender = in_thread(scope, "sender", || {
            tid.sleeps_in(libc::SYS_recvfrom)?;
            nap(NAP_MS)?;
            (&sender).write_all(b".").map_err(|error| os_failure("send", error))
        })?;
        receive()?;
        joined(sender)
    })
}

/// The thread `holder` holds a mutex, and reads what the thread `writer` writes after a sleep.
fn chain() -> Outcome {
    let (mutex, pipe, holder) = (Mutex::new(0, 0)?, Pipe::new()?, Tid::new());
    thread::scope(|scope| {
        let writer = in_thread(scope, "writer", || {
            holder.sleeps_in(libc::SYS_read)?;
            nap(2 * NAP_MS)?;
            pipe.send()
        })?;
        mutex.wait_while_held(libc::SYS_read, || {
            holder.set();
            pipe.receive()
        })?;
        joined(writer)
    })
}

/// include/uapi/linux/userfaultfd.h
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const UFFD_API: u64 = 0xaa;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;

/// The thread `reader` reads from a pipe into a page that is missing, with the kernel's mutex of
/// the pipe, for which the first thread waits in a write.
fn kernel_mutex() -> Outcome {
    let pipe = Pipe::new()?;
    pipe.send()?;
    let mut page = AnonymousMapping::anonymous(PAGE)?;
    let start = page.start() as u64;
    // SAFETY: takes numbers only.
    let faults = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    let faults = check(faults, "make a userfaultfd")? as c_int;
    control(faults, UFFDIO_API, &mut [UFFD_API, 0, 0])?;
    control(faults, UFFDIO_REGISTER, &mut [start, PAGE as u64, UFFDIO_REGISTER_MODE_MISSING, 0])?;
    let bytes = page.bytes_mut();
    let (reader, waiter) = (Tid::new(), Tid::new());
    waiter.set();
    thread::scope(|scope| {
        let reading = in_thread(scope, "reader", || {
            reader.set();
            let read = (&pipe.reader).read(&mut bytes[..1]);
            read.map(drop).map_err(|error| os_failure("read from a pipe", error))
        })?;
        let filling = in_thread(scope, "filler", || {
            waiter.sleeps_in(libc::SYS_write)?;
            nap(NAP_MS)?;
            control(faults, UFFDIO_ZEROPAGE, &mut [start, PAGE as u64, 0, 0])
        })?;
        reader.sleeps_in(libc::SYS_read)?;
        pipe.send()?;
        joined(reading)?;
        joined(filling)
    })
}

fn control(descriptor: c_int, request: libc::c_ulong, argument: &mut [u64]) -> Outcome {
    // SAFETY: each request has the size of its argument in it, which is that of the slice.
    let done = unsafe { libc::ioctl(descriptor, request, argument.as_mut_ptr()) };
    check(done, "control a userfaultfd")?;
    Ok(())
}
