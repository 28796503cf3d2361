//! Starting a command so that the gate sees it from its first instruction.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use crate::error::{ErrorContext, Result};
use crate::signals::{Dispositions, clear_command, set_command};
use crate::std_fds::{STANDARD_DESCRIPTORS, was_closed};
use crate::wire;

/// The user that the command runs as.
#[derive(Debug, Clone)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// What to execute. Everything is allocated before the fork: the child only makes system calls.
pub struct GatedCommand {
    program: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    identity: Option<Credentials>,
    signals: Dispositions,
}

/// A started command.
pub struct Child {
    pub pid: u32,
    pidfd: OwnedFd,
    exec_result: File,
}

/// As execve takes them; valid as long as the strings live.
fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
}

impl GatedCommand {
    pub fn new(
        program: CString,
        arguments: Vec<CString>,
        environment: Vec<CString>,
        identity: Option<Credentials>,
        signals: Dispositions,
    ) -> Self {
        Self { program, arguments, environment, identity, signals }
    }

    /// This process becomes the command; returns only if that fails.
    pub fn execute(&self) -> io::Error {
        let error = self.become_command(&pointers(&self.arguments), &pointers(&self.environment));
        io::Error::from_raw_os_error(error)
    }

    /// Forks and executes. [`Child::exec_error`] says whether the execution worked.
    pub fn spawn(&self) -> Result<Child> {
        let (arguments, environment) = (pointers(&self.arguments), pointers(&self.environment));
        let mut pipe = [0; 2];
        // SAFETY: `pipe` has room for two descriptors.
        if unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(io::Error::last_os_error()).doing("make a pipe to the command");
        }
        // SAFETY: new descriptors that only this process owns.
        let [reader, writer] = pipe.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        // SAFETY: the child makes only async-signal-safe calls until it executes or exits.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()).doing("fork"),
            0 => {
                let error = self.become_command(&arguments, &environment);
                // SAFETY: writes four bytes of a local and exits without running destructors.
                unsafe {
                    libc::write(writer.as_raw_fd(), (&raw const error).cast(), 4);
                    libc::_exit(127)
                }
            }
            pid => {
                drop(writer);
                let pidfd = open_pidfd(pid as u32).doing("watch the command")?;
                set_command(pid);
                Ok(Child { pid: pid as u32, pidfd, exec_result: reader.into() })
            }
        }
    }

    /// Returns only if something fails, with its errno.
    fn become_command(
        &self,
        arguments: &[*const libc::c_char],
        environment: &[*const libc::c_char],
    ) -> i32 {
        self.signals.restore();
        for fd in STANDARD_DESCRIPTORS {
            if was_closed(fd) {
                // SAFETY: async-signal-safe.
                unsafe { libc::close(fd) };
            }
        }
        let errno = || io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        if let Some(identity) = &self.identity {
            // SAFETY: plain system calls over memory that was allocated before the fork. The raw
            // calls change this process only, which has one thread; glibc's wrappers would take
            // locks.
            let failed = unsafe {
                libc::syscall(libc::SYS_setgroups, identity.groups.len(), identity.groups.as_ptr())
                    != 0
                    || libc::syscall(libc::SYS_setresgid, identity.gid, identity.gid, identity.gid)
                        != 0
                    || libc::syscall(libc::SYS_setresuid, identity.uid, identity.uid, identity.uid)
                        != 0
            };
            if failed {
                return errno();
            }
        }
        // SAFETY: NUL-terminated strings in NULL-terminated arrays, alive until the call returns.
        unsafe { libc::execve(self.program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
        errno()
    }
}

impl Child {
    /// Waits until the command runs. Returns the error that prevented it, if any.
    pub fn exec_error(&mut self) -> Option<io::Error> {
        let mut errno = [0; 4];
        self.exec_result.read_exact(&mut errno).ok()?;
        Some(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
    }

    /// Waits until the command ends, `limit` passes, or `other` can be read; false: the command
    /// still runs.
    pub fn ended_within(&self, limit: Duration, other: i32) -> bool {
        wait_for([self.pidfd.as_raw_fd(), other], limit)[0]
    }

    /// Collects the ended command: its status and what it used.
    pub fn reap(&self) -> Result<(ExitStatus, Usage)> {
        clear_command();
        let mut status = 0;
        // SAFETY: an all-zero rusage is valid.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        loop {
            // SAFETY: our own child, not yet waited for; both results have valid destinations.
            if unsafe { libc::wait4(self.pid as i32, &mut status, 0, &mut usage) } >= 0 {
                break;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error).doing("wait for the command");
            }
        }
        let ns =
            |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
        Ok((
            ExitStatus::from_raw(status),
            Usage { user_ns: ns(usage.ru_utime), system_ns: ns(usage.ru_stime) },
        ))
    }
}

/// CPU time of the command and of the children that it waited for, by the kernel's own account.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    pub user_ns: u64,
    pub system_ns: u64,
}

/// The numbers of a process's threads; none: it is gone.
fn threads(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

/// The number of a process's thread, by its number in its own PID namespace.
pub fn thread_of_own_number(process: u32, own: u32) -> Option<u32> {
    let is_own = |tid: &u32| {
        let status =
            fs::read_to_string(format!("/proc/{process}/task/{tid}/status")).unwrap_or_default();
        // proc_pid_status(5): the number in the reader's namespace, then in each one below.
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        numbers.and_then(|numbers| numbers.split_whitespace().last()?.parse().ok()) == Some(own)
    };
    threads(process).into_iter().find(is_own)
}

/// Index of the call that a thread sleeps in, by /proc: for a thread whose entry the gate has not
/// seen.
pub fn current_call(tid: u32) -> Option<u32> {
    let line = fs::read_to_string(format!("/proc/{tid}/syscall")).ok()?;
    let number: u32 = line.split(' ').next()?.parse().ok()?;
    let mut head = [0; 5];
    File::open(format!("/proc/{tid}/exe")).ok()?.read_exact(&mut head).ok()?;
    // EI_CLASS of the ELF header: 32-bit programs make 32-bit calls.
    let abi = if head[4] == 1 { wire::ABI_I386 } else { wire::ABI_X86_64 };
    (number < wire::CALL_UNKNOWN).then_some(abi * wire::CALLS_PER_ABI + number)
}

/// Whether this process has root's rights.
pub fn is_root() -> bool {
    // SAFETY: a plain query.
    unsafe { libc::geteuid() == 0 }
}

/// Readable once the process, which is a child and not yet waited for, has ended.
pub fn open_pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: a plain system call.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that only this process owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Waits until `descriptor` can be read, a signal comes, or `limit` passes. Returns whether it can
/// be read.
pub fn wait_readable(descriptor: i32, limit: Duration) -> bool {
    wait_for([descriptor], limit)[0]
}

/// Waits until one of the descriptors can be read, a signal comes, or `limit` passes. Returns which
/// of them can be read.
pub fn wait_for<const N: usize>(descriptors: [i32; N], limit: Duration) -> [bool; N] {
    let mut polls = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // Rounded up: a process that wakes too early waits again.
    let limit = limit.as_micros().div_ceil(1000).try_into().unwrap_or(i32::MAX);
    // SAFETY: as many entries as given.
    unsafe { libc::poll(polls.as_mut_ptr(), N as libc::nfds_t, limit) };
    polls.map(|poll| poll.revents != 0)
}

/// Whether the other end of a UNIX socket, or of a terminal, is closed for good.
pub fn has_hung_up(descriptor: i32) -> bool {
    let mut poll = libc::pollfd { fd: descriptor, events: 0, revents: 0 };
    // SAFETY: one entry, as given.
    unsafe { libc::poll(&raw mut poll, 1, 0) };
    poll.revents & libc::POLLHUP != 0
}

/// The process that opened the other end of a UNIX socket, if that is root's.
pub fn root_peer(socket: i32) -> Option<u32> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: a destination of the given length.
    let got = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    (got == 0 && peer.uid == 0).then_some(peer.pid as u32)
}

/// Makes this thread run before all that have no deadline or a higher priority: sched(7). Where
/// that is refused, before most.
pub fn set_realtime() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: a valid parameter, of this thread; what is refused leaves things as they are.
    unsafe {
        if libc::sched_setscheduler(0, libc::SCHED_FIFO, &lowest) != 0 {
            libc::setpriority(libc::PRIO_PROCESS, 0, -20);
        }
    }
}

/// The number of this process's PID namespace; 0: it cannot be read.
pub(crate) fn own_pid_namespace() -> u32 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino() as u32)
}

/// The session (setsid) that this process is in, if numbers here are those of the initial PID
/// namespace.
pub fn own_sid() -> Option<u32> {
    /// include/linux/proc_ns.h, PROC_PID_INIT_INO
    const INITIAL: u64 = 0xefff_fffc;
    let namespace = fs::metadata("/proc/self/ns/pid").ok()?.ino();
    (namespace == INITIAL).then(|| session_of(0)).flatten()
}

/// The process of a thread of this number.
pub fn process_of_thread(thread: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
}

/// Whether the process exists, be it as a zombie.
pub fn exists(process: u32) -> bool {
    // SAFETY: signal 0 only checks.
    unsafe { libc::kill(process as i32, 0) == 0 }
}

/// Fields of /proc/PID/stat, from the state on.
fn stat(process: u32) -> Vec<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // After the name, which may contain anything.
    stat.rsplit(") ").next().unwrap_or_default().split(' ').map(str::to_owned).collect()
}

/// Whether it exists and has not ended.
pub fn is_alive(process: u32) -> bool {
    !matches!(stat(process)[0].chars().next(), None | Some('Z' | 'X'))
}

/// Whether a signal or a debugger has stopped it.
pub fn is_stopped(process: u32) -> bool {
    stat(process)[0].starts_with(['T', 't'])
}

/// Whether a user may be at a terminal that the process was started from.
pub fn has_terminal(process: u32) -> bool {
    /// Index from the state on; proc(5), tty_nr
    const TERMINAL: usize = 4;
    stat(process).get(TERMINAL).is_some_and(|terminal| terminal != "0")
}

/// The POSIX session of a process; 0: of this process.
pub fn session_of(process: u32) -> Option<u32> {
    // SAFETY: a plain query.
    unsafe { libc::getsid(process as i32) }.try_into().ok()
}
