//! Child processes: fork, wait, kill, and executing this same program again.

use crate::failure::{Failure, Outcome, check, failed, os_failure};
use libc::{c_char, c_int, pid_t};
use std::ffi::CStr;
use std::{io, ptr};

/// Forks; the child runs `child` and calls `_exit` with the returned status.
///
/// Only workloads with a single thread call this, so the child may run any code.
pub fn fork(child: impl FnOnce() -> c_int) -> Result<pid_t, Failure> {
    // SAFETY: the process has one thread, so no lock can be held by a thread the child lacks.
    let pid = check(unsafe { libc::fork() }, "fork")?;
    if pid == 0 {
        let status = child();
        // SAFETY: _exit has no preconditions.
        unsafe { libc::_exit(status) }
    }
    Ok(pid)
}

/// Blocks SIGCHLD, for workloads in which a child may end or stop while the parent blocks.
///
/// SIGCHLD has no handler and so interrupts nothing, except under a ptrace tracer, which sees even
/// ignored signals: depending on timing, the parent's call would be restarted there and counted
/// twice. A blocked signal interrupts nothing under a tracer either.
pub fn block_child_signals() -> Outcome {
    // SAFETY: a zeroed signal set is valid, and SIGCHLD is a signal.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut set, libc::SIGCHLD);
        set
    };
    // SAFETY: `set` is a valid signal set, and a null pointer requests no old one.
    let blocked = unsafe { libc::sigprocmask(libc::SIG_BLOCK, &set, ptr::null_mut()) };
    check(blocked, "block SIGCHLD")?;
    Ok(())
}

/// The exit status that stands for `outcome` in a child, whose parent sees nothing else of it.
pub fn status_of(outcome: Outcome) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            eprintln!("workloads, in a child: {}", failure.message());
            failure.exit_status()
        }
    }
}

/// One waitpid; returns the raw wait status.
pub fn wait(pid: pid_t, flags: c_int) -> Result<c_int, Failure> {
    let mut status = 0;
    // SAFETY: `status` is a valid destination for the status.
    let waited = unsafe { libc::waitpid(pid, &mut status, flags) };
    check(waited, format_args!("wait for process {pid}"))?;
    Ok(status)
}

/// Waits for a child, which must exit with status 0.
pub fn wait_success(pid: pid_t) -> Outcome {
    match wait(pid, 0)? {
        0 => Ok(()),
        status if libc::WIFEXITED(status) => {
            let status = libc::WEXITSTATUS(status);
            Err(failed(format!("a child exited with status {status}")))
        }
        status => {
            let signal = libc::WTERMSIG(status);
            Err(failed(format!("a child was killed by signal {signal}")))
        }
    }
}

pub fn kill(pid: pid_t, signal: c_int) -> Outcome {
    // SAFETY: kill takes no pointers; `pid` is this process or a child of it.
    let sent = unsafe { libc::kill(pid, signal) };
    check(sent, format_args!("send signal {signal} to {pid}"))?;
    Ok(())
}

pub fn own_pid() -> pid_t {
    // SAFETY: getpid always succeeds.
    unsafe { libc::getpid() }
}

const SELF: &CStr = c"/proc/self/exe";

/// `workloads calls COUNT`, as an argument vector.
fn calls_command(count: &CStr) -> [*const c_char; 4] {
    [c"workloads".as_ptr(), c"calls".as_ptr(), count.as_ptr(), ptr::null()]
}

/// Executes `workloads calls COUNT` in place of this process. Returns only if that fails.
pub fn exec_calls(count: &CStr) -> Failure {
    // SAFETY: path and arguments are NUL-terminated, and a null pointer ends the vector.
    unsafe { libc::execv(SELF.as_ptr(), calls_command(count).as_ptr()) };
    os_failure("execute /proc/self/exe", io::Error::last_os_error())
}

unsafe extern "C" {
    static environ: *const *mut c_char;
}

/// Starts `workloads calls COUNT` by posix_spawn, which glibc does with
/// `CLONE_VM | CLONE_VFORK`: vfork, without its undefined behaviour in the child.
pub fn spawn_calls(count: &CStr) -> Result<pid_t, Failure> {
    let mut pid = 0;
    // SAFETY: `pid` is a valid destination for the result, no actions or attributes are given, path
    // and arguments are NUL-terminated, null ends the vector, and no other thread changes the
    // environment.
    let error = unsafe {
        libc::posix_spawn(
            &mut pid,
            SELF.as_ptr(),
            ptr::null(),
            ptr::null(),
            calls_command(count).as_ptr().cast(),
            environ,
        )
    };
    match error {
        0 => Ok(pid),
        _ => {
            let error = io::Error::from_raw_os_error(error);
            Err(os_failure("spawn /proc/self/exe", error))
        }
    }
}

/// Forbids core dumps: a death by signal must leave no file, and have the same wait status
/// everywhere.
pub fn forbid_core_dump() -> Outcome {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `none` is a valid rlimit.
    let limited = unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
    check(limited, "forbid core dumps")?;
    Ok(())
}
