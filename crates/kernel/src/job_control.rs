//! The command as a job of a shell, and the ends of children that Tollgate has not started.

use std::fs::File;
use std::os::fd::AsRawFd as _;

use crate::process::{has_terminal, parent_of, session_of};
use crate::signals::stop_with_command;

/// A change of a child's state.
struct StateChange {
    child: u32,
    /// CLD_EXITED, CLD_STOPPED and so on (sigaction(2)).
    code: libc::c_int,
    /// The exit status or the signal.
    status: libc::c_int,
}

/// The next change of a child's state, without a wait.
fn state_change(kind: libc::idtype_t, child: u32, options: libc::c_int) -> Option<StateChange> {
    // SAFETY: an all-zero destination of the expected type is valid. The kernel fills in the fields
    // of SIGCHLD, or leaves the zeros.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let found = libc::waitid(kind, child, &raw mut info, options | libc::WNOHANG) == 0;
        (found && info.si_pid() != 0).then(|| StateChange {
            child: info.si_pid() as u32,
            code: info.si_code,
            status: info.si_status(),
        })
    }
}

/// The signal by which the command is stopped, if it is, until [`stop_with`] is called.
pub fn stopped_by(command: u32) -> Option<libc::c_int> {
    let change = state_change(libc::P_PID, command, libc::WSTOPPED | libc::WNOWAIT)?;
    (change.code == libc::CLD_STOPPED).then_some(change.status)
}

/// Ends the tracing of the command's threads that have made this thread their tracer
/// (PTRACE_TRACEME, ptrace(2)) and have stopped: nothing else would continue them. Returns whether
/// there were any. While another child is stopped, only the first thread is found.
pub fn detach_tracees(command: u32) -> bool {
    let mut is_any = false;
    for (kind, child) in [(libc::P_PID, command), (libc::P_ALL, 0)] {
        let next = || state_change(kind, child, libc::WSTOPPED | libc::WNOWAIT);
        while let Some(stop) = next().filter(|stop| stop.code == libc::CLD_TRAPPED) {
            if !detach(&stop) {
                break;
            }
            is_any = true;
        }
    }
    is_any
}

/// Continues a stopped tracee with the signal that has stopped it.
fn detach(stop: &StateChange) -> bool {
    let child = stop.child as libc::pid_t;
    // SAFETY: the kernel fills a siginfo_t that is large enough. The tracee stands until it is
    // detached.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let has_info = libc::ptrace(libc::PTRACE_GETSIGINFO, child, 0, &raw mut info) == 0;
        // The trap of an execve is for the tracer, and would end the program. It looks as if the
        // program had sent it.
        let is_of_execve =
            has_info && stop.status == libc::SIGTRAP && info.si_code == libc::SI_USER;
        let signal = if is_of_execve { 0 } else { stop.status };
        libc::ptrace(libc::PTRACE_DETACH, child, 0, signal) == 0
    }
}

/// The process group in the foreground of a terminal.
fn foreground(terminal: &File) -> libc::pid_t {
    // SAFETY: takes and returns numbers.
    unsafe { libc::tcgetpgrp(terminal.as_raw_fd()) }
}

/// Stops this process together with the stopped command, as the job that a shell sees. When this
/// process is continued, the command is continued, and gets back the terminal. Does nothing where
/// no shell could continue this process.
pub fn stop_with(command: u32, signal: libc::c_int) {
    if !is_job_of_shell() {
        return;
    }
    // The same stop is not reported again.
    state_change(libc::P_PID, command, libc::WSTOPPED);
    let command = command as libc::pid_t;
    // SAFETY: takes and returns numbers. The number of a group is not used again while its leader
    // was not waited for.
    let leads_group = unsafe { libc::getpgid(command) } == command;
    let terminal = File::options().read(true).write(true).open("/dev/tty").ok();
    let had_terminal = |terminal: &File| leads_group && foreground(terminal) == command;
    let terminal = terminal.filter(had_terminal);
    let to = if leads_group { -command } else { command };
    stop_with_command(command, to, signal, || {
        // SAFETY: takes nothing.
        let own_group = unsafe { libc::getpgrp() };
        // After `bg`, the terminal is the shell's.
        if let Some(terminal) = terminal.filter(|terminal| foreground(terminal) == own_group) {
            // SAFETY: takes two numbers. This process may set it, because it is in the foreground.
            unsafe { libc::tcsetpgrp(terminal.as_raw_fd(), command) };
        }
    });
}

/// Whether a shell with job control sees this process as a part of a job: it has a terminal, and
/// its process group is not orphaned (setpgid(2)).
fn is_job_of_shell() -> bool {
    let own = std::process::id();
    // SAFETY: takes and returns a number.
    let group_of = |process: u32| unsafe { libc::getpgid(process as i32) };
    let group = group_of(own);
    // The first ancestor in another group is the parent of one of the group's members.
    let ancestors = std::iter::successors(Some(own), |process| parent_of(*process));
    let outside = ancestors.take_while(|process| *process != 0).find(|it| group_of(*it) != group);
    has_terminal(own) && outside.is_some_and(|process| session_of(process) == session_of(own))
}

/// Waits for children that have ended, and that this process has not started itself: as the first
/// process of a PID namespace, it gets orphans. Stops at one of its own.
pub fn reap_orphans(is_own: impl Fn(u32) -> bool) {
    loop {
        let ended = state_change(libc::P_ALL, 0, libc::WEXITED | libc::WNOWAIT);
        let Some(ended) = ended.map(|ended| ended.child).filter(|ended| !is_own(*ended)) else {
            return;
        };
        // SAFETY: a child that has ended; its status is of no interest.
        unsafe { libc::waitpid(ended as i32, std::ptr::null_mut(), libc::WNOHANG) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read as _};
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn orphans_are_reaped() {
        let (mut told, tell) = io::pipe().expect("a pipe");
        // SAFETY: the children make system calls only, and end without running destructors.
        let reaper = unsafe { libc::fork() };
        assert!(reaper >= 0, "{}", io::Error::last_os_error());
        if reaper == 0 {
            // SAFETY: as above; the numbers are those of own children.
            unsafe {
                libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
                let parent = libc::fork();
                if parent == 0 {
                    let orphan = libc::fork();
                    if orphan != 0 {
                        libc::write(tell.as_raw_fd(), (&raw const orphan).cast(), 4);
                    }
                    libc::_exit(0);
                }
                let mut orphan = [0; 4];
                let is_told = told.read_exact(&mut orphan).is_ok();
                // A child of its own is left to the code that has started it.
                while is_told && libc::kill(i32::from_ne_bytes(orphan), 0) == 0 {
                    reap_orphans(|ended| ended == parent as u32);
                    libc::waitpid(parent, std::ptr::null_mut(), libc::WNOHANG);
                }
                libc::_exit(i32::from(!is_told));
            }
        }
        let mut status = 0;
        // SAFETY: this process's own child, and a valid destination.
        assert_eq!(unsafe { libc::waitpid(reaper, &raw mut status, 0) }, reaper);
        assert!(ExitStatus::from_raw(status).success(), "{status}");
    }
}
