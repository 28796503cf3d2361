//! Benchmarks of two threads that run alternately. They run on one processor if the first thread is
//! pinned to one when the benchmark is prepared.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

use super::unit::BenchmarkFn;
use crate::cpus;

/// The other thread. When this is dropped, `shared` is dropped first, which ends the thread.
struct Partner<T> {
    shared: Option<T>,
    thread: Option<JoinHandle<()>>,
}

impl<T> Drop for Partner<T> {
    fn drop(&mut self) {
        self.shared = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub fn pipe_ping_pong() -> BenchmarkFn {
    let (mut from_us, to_them) = std::io::pipe().expect("a pipe");
    let (from_them, mut to_us) = std::io::pipe().expect("a pipe");
    let thread = thread::spawn(move || {
        let mut byte = [0];
        while from_us.read_exact(&mut byte).is_ok() && to_us.write_all(&byte).is_ok() {}
    });
    let mut partner = Partner { shared: Some((to_them, from_them)), thread: Some(thread) };
    Box::new(move |units| {
        let (to_them, from_them) = partner.shared.as_mut().expect("there until dropped");
        let mut byte = [0];
        for _ in 0..units {
            to_them.write_all(&byte).expect("the other thread reads");
            from_them.read_exact(&mut byte).expect("the other thread writes");
        }
    })
}

const OURS: u32 = 0;
const THEIRS: u32 = 1;
const OVER: u32 = 2;

/// Sleeps until it is the turn of `whose`, or until the work is over. Returns `whose` or `OVER`.
fn wait_for(turn: &AtomicU32, whose: u32) -> u32 {
    loop {
        let now = turn.load(Ordering::Acquire);
        if now == whose || now == OVER {
            return now;
        }
        // SAFETY: the address of an atomic that outlives the call; no time limit.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                turn.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                now,
                std::ptr::null::<libc::timespec>(),
            )
        };
    }
}

fn give(turn: &AtomicU32, to: u32) {
    turn.store(to, Ordering::Release);
    // SAFETY: the address of an atomic that outlives the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            turn.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            1,
        )
    };
}

/// Ends the other thread when dropped, and wakes it up for that.
struct EndOnDrop(Arc<AtomicU32>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        give(&self.0, OVER);
    }
}

pub fn futex_wake() -> BenchmarkFn {
    let turn = Arc::new(AtomicU32::new(OURS));
    let theirs = Arc::clone(&turn);
    let thread = thread::spawn(move || {
        while wait_for(&theirs, THEIRS) == THEIRS {
            give(&theirs, OURS);
        }
    });
    let partner = Partner { shared: Some(EndOnDrop(turn)), thread: Some(thread) };
    Box::new(move |units| {
        let turn = &partner.shared.as_ref().expect("there until dropped").0;
        for _ in 0..units {
            give(turn, THEIRS);
            wait_for(turn, OURS);
        }
    })
}

/// A flag that is set when this is dropped.
struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn yield_once() {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::syscall(libc::SYS_sched_yield) };
}

/// A unit is one call of either thread, which passes the processor to the other thread. Both are
/// pinned to the first one's processor, because otherwise they would run in parallel.
pub fn sched_yield() -> BenchmarkFn {
    let cpu = cpus::current();
    cpus::run_on(cpu);
    let over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&over);
    let thread = thread::spawn(move || {
        while !seen.load(Ordering::Relaxed) {
            yield_once();
        }
    });
    let partner = Partner { shared: Some(Flag(over)), thread: Some(thread) };
    Box::new(move |units| {
        let _alive = &partner;
        for _ in 0..units.div_ceil(2) {
            yield_once();
        }
    })
}
