//! Processes that start, execute programs and end, by every call that a program can use.

use crate::arguments::{Arguments, HOUR_MS, MAX_REPETITIONS};
use crate::clock::nap;
use crate::failure::{Failure, Outcome, check, os_failure};
use crate::output::print_line;
use crate::pipe::Pipe;
use crate::process::{
    block_child_signals, exec_calls, fork, own_pid, spawn_calls, status_of, wait_success,
};
use crate::raw;
use crate::signals::pause_forever;
use crate::team;
use libc::{c_void, pid_t};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a child exits with when it cannot execute its program, as in a shell.
const CANNOT_EXECUTE: i32 = 127;

pub fn fork_only(mut arguments: Arguments) -> Outcome {
    let times = arguments.number("N", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    block_child_signals()?;
    (0..times).try_for_each(|_| wait_success(fork(|| 0)?))
}

/// The number of the children of `equal-numbers` in their PID namespace.
const EQUAL_NUMBER: pid_t = 500;

/// Forks a child with this number (clone3(2), set_tid). Returns 0 in the child.
fn fork_with_number(number: pid_t) -> Result<pid_t, Failure> {
    // SAFETY: an all-zero structure is valid, and asks for nothing.
    let mut clone: libc::clone_args = unsafe { std::mem::zeroed() };
    clone.exit_signal = libc::SIGCHLD as u64;
    clone.set_tid = (&raw const number).addr() as u64;
    clone.set_tid_size = 1;
    // SAFETY: as fork, in a process with one thread; the structure and the number outlive the call.
    let forked =
        unsafe { libc::syscall(libc::SYS_clone3, &raw const clone, size_of::<libc::clone_args>()) };
    check(forked as pid_t, "fork a child with a given number")
}

pub fn equal_numbers(mut arguments: Arguments) -> Outcome {
    let times = arguments.number("N", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    // SAFETY: takes flags only. The children are in the new namespace, and this process is not.
    check(unsafe { libc::unshare(libc::CLONE_NEWPID) }, "make a PID namespace")?;
    // The first process of the namespace creates the others.
    wait_success(fork(|| {
        status_of((1..=times).try_for_each(|index| match fork_with_number(EQUAL_NUMBER)? {
            0 => {
                for _ in 0..10 * index {
                    raw::getppid();
                }
                // SAFETY: _exit has no preconditions.
                unsafe { libc::_exit(0) }
            }
            child => wait_success(child),
        }))
    })?)
}

/// The children are created in the control group (CLONE_INTO_CGROUP, since Linux 5.7).
pub fn fork_into(mut arguments: Arguments) -> Outcome {
    let folder = arguments.path("FOLDER")?;
    let times = arguments.number("N", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    block_child_signals()?;
    let folder = File::open(&folder)
        .map_err(|error| os_failure(format!("open {}", folder.display()), error))?;
    (0..times).try_for_each(|_| wait_success(clone_into(&folder)?))
}

/// include/uapi/linux/sched.h. It does not fit into the type of libc's constant.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

fn clone_into(cgroup: &File) -> Result<libc::pid_t, Failure> {
    // SAFETY: all zeros are valid arguments.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = CLONE_INTO_CGROUP;
    arguments.exit_signal = libc::SIGCHLD as u64;
    arguments.cgroup = cgroup.as_raw_fd() as u64;
    // SAFETY: the process has one thread, so the child can do whatever the parent can. Without a
    // stack, it continues here with a copy of the memory.
    let pid = unsafe {
        libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>())
    };
    if pid == 0 {
        for _ in 0..3 {
            raw::getppid();
        }
        // SAFETY: _exit has no preconditions.
        unsafe { libc::_exit(0) }
    }
    Ok(check(pid, "create a process in the control group")? as libc::pid_t)
}

pub fn fork_exec(mut arguments: Arguments) -> Outcome {
    let times = arguments.number("N", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    block_child_signals()?;
    (0..times).try_for_each(|_| {
        wait_success(fork(|| {
            eprintln!("workloads: {}", exec_calls(c"1").message());
            CANNOT_EXECUTE
        })?)
    })
}

pub fn vfork(mut arguments: Arguments) -> Outcome {
    let times = arguments.number("N", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    block_child_signals()?;
    (0..times).try_for_each(|_| wait_success(spawn_calls(c"1")?))
}

static LEADER_IS_READY: AtomicBool = AtomicBool::new(false);

/// Executes a program from a thread that is not the leader, while the leader is in pause().
extern "C" fn exec_from_thread(_argument: *mut c_void) -> *mut c_void {
    // No system call shows without a race that the leader is in its call. So the thread waits long
    // enough after the leader's last action before that call.
    while !LEADER_IS_READY.load(Ordering::Acquire) {
        std::hint::spin_loop();
    }
    let failure = match nap(50) {
        Ok(()) => exec_calls(c"10"),
        Err(failure) => failure,
    };
    eprintln!("workloads: {}", failure.message());
    std::process::exit(CANNOT_EXECUTE);
}

pub fn exec_thread(arguments: Arguments) -> Outcome {
    arguments.end()?;
    team::start_forever(exec_from_thread)?;
    LEADER_IS_READY.store(true, Ordering::Release);
    pause_forever()
}

pub fn daemon(mut arguments: Arguments) -> Outcome {
    let milliseconds = arguments.number("MS", 0..=HOUR_MS)?;
    arguments.end()?;
    block_child_signals()?;
    let pid_pipe = Pipe::new()?;
    let session_leader = fork(|| {
        // SAFETY: setsid has no preconditions; a forked child never leads a process group, so it
        // succeeds.
        unsafe { libc::setsid() };
        // As it is not the leader of its session, the daemon can never get a controlling terminal.
        status_of(fork(|| status_of(daemon_life(&pid_pipe, milliseconds))).map(|_| ()))
    })?;
    let mut pid = [0; 4];
    drop(pid_pipe.writer);
    (&pid_pipe.reader)
        .read_exact(&mut pid)
        .map_err(|error| os_failure("learn the daemon's process id", error))?;
    wait_success(session_leader)?;
    // Time for the daemon to fall asleep, by a call that the daemon does not use.
    // SAFETY: no descriptors are given.
    let waited = unsafe { libc::poll(ptr::null_mut(), 0, 200) };
    check(waited, "wait")?;
    print_line(&i32::from_ne_bytes(pid).to_string())
}

fn daemon_life(pid_pipe: &Pipe, milliseconds: u64) -> Outcome {
    // A process that reads the output to its end must not wait for the daemon.
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(|error| os_failure("open /dev/null", error))?;
    for standard in 0..=2 {
        // SAFETY: nothing in this process counts on what these three descriptors refer to.
        let redirected = unsafe { libc::dup2(null.as_raw_fd(), standard) };
        check(redirected, "redirect to /dev/null")?;
    }
    (&pid_pipe.writer)
        .write_all(&own_pid().to_ne_bytes())
        .map_err(|error| os_failure("print the process id", error))?;
    nap(milliseconds)
}
