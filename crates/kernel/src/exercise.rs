//! Small exercises whose time is known to depend on the boundary. Each returns nanoseconds a unit.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::clock::now_ns;
use crate::cpus;

fn a_unit(units: u32, mut work: impl FnMut()) -> f64 {
    let began = now_ns();
    for _ in 0..units {
        work();
    }
    (now_ns() - began) as f64 / f64::from(units)
}

/// A call that does nothing; it is made anew each time (raw).
pub fn getppid(calls: u32) -> f64 {
    a_unit(calls, || {
        // SAFETY: getppid takes nothing and cannot fail.
        unsafe { libc::syscall(libc::SYS_getppid) };
    })
}

/// One byte from /dev/null, which is never there.
pub fn read_null(calls: u32) -> f64 {
    let null = File::open("/dev/null").expect("/dev/null can be opened");
    let mut byte = 0u8;
    a_unit(calls, || {
        // SAFETY: one byte into a local, from an open descriptor.
        unsafe { libc::syscall(libc::SYS_read, null.as_raw_fd(), &raw mut byte, 1) };
    })
}

/// A byte to another thread on the same processor and back: two sleeps, four calls, two context switches.
pub fn ping_pong(rounds: u32) -> f64 {
    let (mut from_us, mut to_them) = std::io::pipe().expect("a pipe");
    let (mut from_them, mut to_us) = std::io::pipe().expect("a pipe");
    let cpu = cpus::current();
    thread::scope(|scope| {
        scope.spawn(move || {
            cpus::run_on(cpu);
            let mut byte = [0];
            while from_us.read_exact(&mut byte).is_ok() && to_us.write_all(&byte).is_ok() {}
        });
        let mut byte = [0];
        let time = a_unit(rounds, || {
            to_them.write_all(&byte).expect("the other thread reads");
            from_them.read_exact(&mut byte).expect("the other thread writes");
        });
        drop(to_them);
        time
    })
}

/// A switch to another thread on the same processor: a sched_yield that leads to one, less a call that does nothing.
pub fn context_switch(switches: u32) -> f64 {
    yield_to_other(switches) - getppid(switches)
}

/// sched_yield to another thread on the same processor that does the same: a call and a context switch.
fn yield_to_other(calls: u32) -> f64 {
    let cpu = cpus::current();
    let done = AtomicBool::new(false);
    // SAFETY: sched_yield takes nothing and cannot fail.
    let yield_once = || unsafe { libc::syscall(libc::SYS_sched_yield) };
    thread::scope(|scope| {
        scope.spawn(|| {
            cpus::run_on(cpu);
            while !done.load(Ordering::Relaxed) {
                yield_once();
            }
        });
        // Until the other thread has come to this processor.
        thread::sleep(Duration::from_millis(1));
        let time = a_unit(calls, || {
            yield_once();
        });
        done.store(true, Ordering::Relaxed);
        // Both took turns: a unit is one call of one thread.
        time / 2.0
    })
}

/// fork, execve of /bin/true, its exit, and waiting for it.
pub fn fork_exec_exit(times: u32) -> f64 {
    let arguments = [c"true".as_ptr(), std::ptr::null()];
    a_unit(times, || {
        // SAFETY: the child only executes or exits; the arguments are static and NULL-terminated.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::execve(c"/bin/true".as_ptr(), arguments.as_ptr(), [std::ptr::null()].as_ptr());
                libc::_exit(127);
            }
            let mut status = 0;
            libc::waitpid(pid, &mut status, 0);
        }
    })
}
