//! Starts a command so that the gate sees it from its first instruction, and answers questions
//! about other processes.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use crate::error::{Error, ErrorContext, Result};
use crate::limits::Inherited;
use crate::pid_variables::pid_variables;
use crate::signals::{Dispositions, clear_command, command_starts, set_command};
use crate::start_state::{STANDARD_DESCRIPTORS, was_closed};
use crate::wire;

/// The user that the command runs as.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// The real, effective and saved user.
    pub uid: u32,
    /// The real, effective and saved group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// What to execute. Everything is allocated before the fork, because the child may only make system
/// calls.
pub struct GatedCommand {
    program: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    credentials: Option<Credentials>,
    signals: Dispositions,
}

/// A started command.
pub struct Child {
    /// As this process's PID namespace numbers it.
    pub pid: u32,
    pidfd: OwnedFd,
    /// The child writes an errno here if it cannot execute the command; execve closes it.
    exec_result: File,
}

/// A NULL-terminated array, as execve takes it. It is valid as long as the strings live.
fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
}

impl GatedCommand {
    /// A command with the path of its program, its arguments (the first is its name) and its
    /// environment (`NAME=VALUE`). Without `credentials`, it runs as this process's user.
    pub fn new(
        program: CString,
        arguments: Vec<CString>,
        environment: Vec<CString>,
        credentials: Option<Credentials>,
        signals: Dispositions,
    ) -> Self {
        Self { program, arguments, environment, credentials, signals }
    }

    /// Executes the command in place of this process. Returns only if that fails.
    pub fn execute(&self) -> io::Error {
        let error = self.become_command(&pointers(&self.arguments), &pointers(&self.environment));
        io::Error::from_raw_os_error(error)
    }

    /// Forks and executes. [`Child::exec_error`] says whether the execution worked.
    pub fn spawn(&self) -> Result<Child> {
        let (arguments, mut environment) = (pointers(&self.arguments), pointers(&self.environment));
        // Where this is forbidden, the command must not start.
        drop(open_pidfd(std::process::id()).doing("watch the command (pidfd_open)")?);
        let mut pipe = [0; 2];
        // SAFETY: `pipe` has room for two descriptors.
        if unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(io::Error::last_os_error()).doing("make a pipe to the command");
        }
        // SAFETY: new descriptors that only this process owns.
        let [reader, writer] = pipe.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        let mut pid_variables = pid_variables(&self.environment);
        let inherited = Inherited::take_over();
        command_starts();
        // SAFETY: the child makes only async-signal-safe calls until it executes or exits.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()).doing("fork"),
            0 => {
                inherited.restore();
                // SAFETY: takes nothing.
                let own = unsafe { libc::getpid() } as u32;
                for variable in &mut pid_variables {
                    variable.set(own);
                    environment[variable.index] = variable.text.as_ptr().cast();
                }
                let error = self.become_command(&arguments, &environment);
                // SAFETY: writes four bytes of a local and exits without running destructors.
                unsafe {
                    libc::write(writer.as_raw_fd(), (&raw const error).cast(), 4);
                    libc::_exit(127)
                }
            }
            pid => {
                drop(writer);
                let pidfd = open_pidfd(pid as u32).doing("watch the command (pidfd_open)")?;
                set_command(pid);
                Ok(Child { pid: pid as u32, pidfd, exec_result: reader.into() })
            }
        }
    }

    /// Executes the command in this process. Returns only if something fails, with its errno.
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
        if let Some(Credentials { uid, gid, groups }) = &self.credentials {
            // SAFETY: plain system calls over memory that was allocated before the fork. The raw
            // calls change this process only, which has one thread; glibc's wrappers would take
            // locks.
            let failed = unsafe {
                libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) != 0
                    || libc::syscall(libc::SYS_setresgid, *gid, *gid, *gid) != 0
                    || libc::syscall(libc::SYS_setresuid, *uid, *uid, *uid) != 0
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
    /// Waits until the command has been executed. Returns the error that prevented that, if any.
    pub fn exec_error(&mut self) -> Option<io::Error> {
        let mut errno = [0; 4];
        self.exec_result.read_exact(&mut errno).ok()?;
        Some(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
    }

    /// Waits until the command ends, `limit` passes, or the descriptor `other` can be read. Returns
    /// whether the command has ended.
    pub fn ended_within(&self, limit: Duration, other: i32) -> bool {
        wait_for([self.pidfd.as_raw_fd(), other], limit)[0]
    }

    /// Waits for the command's end, and returns its status and what it used.
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

/// CPU time of the command and of the children that it waited for, as the kernel accounts for it.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Time in user mode.
    pub user_ns: u64,
    /// Time in the kernel.
    pub system_ns: u64,
}

/// The numbers of a process's threads. There are none if it has ended.
pub(crate) fn threads(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

/// Finds the thread of `process` that has the number `own` in its own PID namespace. Returns its
/// number in this process's PID namespace.
pub fn thread_of_own_number(process: u32, own: u32) -> Option<u32> {
    let is_own = |tid: &u32| {
        let status = read_text(format!("/proc/{process}/task/{tid}/status")).unwrap_or_default();
        // proc_pid_status(5): the number in the reader's namespace, then in each nested namespace.
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        numbers.and_then(|numbers| numbers.split_whitespace().last()?.parse().ok()) == Some(own)
    };
    // Mostly, both namespaces are the same one.
    std::iter::once(own).chain(threads(process)).find(is_own)
}

/// The index of the call that a thread sleeps in, from /proc. This is for a thread whose call began
/// before the gate was loaded.
pub fn current_call(tid: u32) -> Option<u32> {
    let line = fs::read_to_string(format!("/proc/{tid}/syscall")).ok()?;
    let number: u32 = line.split(' ').next()?.parse().ok()?;
    let mut head = [0; 5];
    // Another process may have a lease of the file, and an open would wait for its end.
    let options = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).clone();
    options.open(format!("/proc/{tid}/exe")).ok()?.read_exact(&mut head).ok()?;
    // EI_CLASS of the ELF header: 32-bit programs make 32-bit calls.
    let abi = if head[4] == 1 { wire::ABI_I386 } else { wire::ABI_X86_64 };
    (number < wire::CALL_UNKNOWN).then_some(abi * wire::CALLS_PER_ABI + number)
}

/// The number of the user whose rights this process has.
pub fn effective_user() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether this process has root's rights.
pub fn is_root() -> bool {
    effective_user() == 0
}

/// Opens a descriptor that can be read once the process has ended. Unless the process is a child
/// that was not waited for yet, the number may by now be another process's.
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
    let mut polls = descriptors.map(readable);
    poll(&mut polls, limit);
    polls.map(|poll| poll.revents != 0)
}

/// As [`wait_for`], for any number of descriptors.
pub fn wait_for_any(descriptors: &[i32], limit: Duration) -> Vec<bool> {
    let mut polls: Vec<_> = descriptors.iter().map(|fd| readable(*fd)).collect();
    poll(&mut polls, limit);
    polls.iter().map(|poll| poll.revents != 0).collect()
}

fn readable(fd: i32) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

fn poll(polls: &mut [libc::pollfd], limit: Duration) {
    // Rounded up, because a process that wakes too early would have to wait again.
    let limit = limit.as_micros().div_ceil(1000).try_into().unwrap_or(i32::MAX);
    // SAFETY: as many entries as given.
    unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, limit) };
}

/// Whether the other end of a UNIX socket or of a terminal is closed.
pub fn has_hung_up(descriptor: i32) -> bool {
    let mut poll = libc::pollfd { fd: descriptor, events: 0, revents: 0 };
    // SAFETY: one entry, as given.
    unsafe { libc::poll(&raw mut poll, 1, 0) };
    poll.revents & libc::POLLHUP != 0
}

/// The process that opened the other end of a UNIX socket, if that process belonged to root.
pub fn root_peer(socket: i32) -> Option<u32> {
    credentials_of_peer(socket).filter(|peer| peer.uid == 0).map(|peer| peer.pid as u32)
}

/// The process that opened the other end of a UNIX socket. `None`: it has ended, or is in no PID
/// namespace that this process sees. If it has ended, this may be another process that has got its
/// number since (`socket_messages::receive_with_sender`).
pub fn peer(socket: i32) -> Option<ProcessRef> {
    let pid = credentials_of_peer(socket)?.pid as u32;
    ProcessRef::open(pid).ok()
}

/// A process, which is still the same one as long as it lives.
pub struct ProcessRef {
    /// As this process's PID namespace numbers it.
    pub pid: u32,
    pidfd: OwnedFd,
}

impl ProcessRef {
    /// A process that runs.
    pub fn open(pid: u32) -> io::Result<Self> {
        Ok(Self { pid, pidfd: open_pidfd(pid)? })
    }

    /// Whether it has not ended.
    pub fn lives(&self) -> bool {
        !wait_readable(self.pidfd.as_raw_fd(), Duration::ZERO)
    }
}

fn credentials_of_peer(socket: i32) -> Option<libc::ucred> {
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
    (got == 0).then_some(peer)
}

/// Makes this thread run before all threads without a real-time priority or a deadline (sched(7)).
/// Where that is refused, it gets the highest priority of an ordinary thread (nice -20).
pub fn set_realtime() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: a valid parameter, for this thread; a refused call changes nothing.
    unsafe {
        if libc::sched_setscheduler(0, libc::SCHED_FIFO, &lowest) != 0 {
            libc::setpriority(libc::PRIO_PROCESS, 0, -20);
        }
    }
}

/// The number of this process's PID namespace.
pub(crate) fn own_pid_namespace() -> Result<u32> {
    let namespace = fs::metadata("/proc/self/ns/pid").map_err(|_| Error::NoProc)?;
    Ok(namespace.ino() as u32)
}

/// Whether /proc has the processes of this PID namespace, and numbers them as it does.
pub fn has_own_proc() -> bool {
    let own = fs::read_link("/proc/self");
    own.is_ok_and(|own| own.to_str() == Some(&std::process::id().to_string()))
}

/// Whether this process's PID namespace has this number.
pub(crate) fn is_own_pid_namespace(number: u32) -> bool {
    own_pid_namespace().is_ok_and(|own| own == number)
}

/// This process's POSIX session (setsid(2)), if it is in the initial PID namespace. The guard knows
/// processes by their numbers there.
pub fn own_sid() -> Option<u32> {
    /// include/linux/proc_ns.h, PROC_PID_INIT_INO
    const INITIAL: u64 = 0xefff_fffc;
    let namespace = fs::metadata("/proc/self/ns/pid").ok()?.ino();
    (namespace == INITIAL).then(|| session_of(0)).flatten()
}

/// The process that a thread belongs to, if the thread exists.
pub fn process_of_thread(thread: u32) -> Option<u32> {
    let status = read_text(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
}

/// The name of a thread, if it exists.
pub fn name(thread: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{thread}/comm")).ok()?;
    Some(String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name)).into_owned())
}

/// When a thread began, in nanoseconds of CLOCK_BOOTTIME, if it exists.
pub(crate) fn began_ns(thread: u32) -> Option<u64> {
    /// Index from the state on; proc(5), starttime
    const START: usize = 19;
    // SAFETY: takes a number.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
    Some(stat(thread).get(START)?.parse::<u64>().ok()? * (1_000_000_000 / ticks))
}

/// Index from the state on; proc(5), flags
const STAT_FLAGS: usize = 6;

/// The state of a thread: `T` if a signal has stopped it. `None` if it does not exist.
pub(crate) fn state_of_thread(thread: u32) -> Option<char> {
    stat(thread)[0].chars().next()
}

/// The parent of a process.
pub(crate) fn parent_of(process: u32) -> Option<u32> {
    stat(process).get(1)?.parse().ok()
}

/// Whether it is a thread of the kernel, which makes no calls.
pub fn is_kernel_thread(process: u32) -> bool {
    /// include/linux/sched.h, PF_KTHREAD
    const KERNEL_THREAD: u64 = 0x0020_0000;
    let flags = stat(process).get(STAT_FLAGS).and_then(|flags| flags.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & KERNEL_THREAD != 0)
}

/// Whether the process has ended or is about to: it is a zombie, or it was killed. The kernel may
/// need seconds to end a process with a gate.
pub(crate) fn is_ending(process: u32) -> bool {
    /// include/linux/sched.h, PF_EXITING
    const EXITING: u64 = 4;
    let stat = stat(process);
    let flags = stat.get(STAT_FLAGS).and_then(|flags| flags.parse::<u64>().ok()).unwrap_or(EXITING);
    let status = read_text(format!("/proc/{process}/status")).unwrap_or_default();
    let is_killed = |line: &str| {
        let pending = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"));
        let pending = pending.and_then(|pending| u64::from_str_radix(pending.trim(), 16).ok());
        pending.is_some_and(|pending| pending & 1 << (libc::SIGKILL - 1) != 0)
    };
    stat[0].starts_with(['Z', 'X']) || flags & EXITING != 0 || status.lines().any(is_killed)
}

/// The fields of /proc/PID/stat, from the state on. If the process does not exist, the first field
/// is empty. Times and page faults are those of the whole process, also if PID is the number of a
/// thread.
fn stat(process: u32) -> Vec<String> {
    fields_of_stat(&format!("/proc/{process}/stat"))
}

/// The same for one thread of a process.
fn stat_of_thread(thread: u32) -> Vec<String> {
    fields_of_stat(&format!("/proc/{thread}/task/{thread}/stat"))
}

fn fields_of_stat(path: &str) -> Vec<String> {
    let stat = read_text(path).unwrap_or_default();
    // The name, which comes before the state in parentheses, may contain spaces and parentheses.
    stat.rsplit(") ").next().unwrap_or_default().split(' ').map(str::to_owned).collect()
}

/// The text of a file of /proc. The names of processes and files in it need not be UTF-8.
///
/// # Errors
/// If the file cannot be read.
pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// What the scheduler and the memory management have counted for a thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThreadUsage {
    pub processor_ns: u64,
    /// Its waits for a processor, without one that has not ended.
    pub run_delay_ns: u64,
    /// How often it has got a processor.
    pub runs: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
}

/// The usage of a thread; `None` if it has ended.
pub(crate) fn thread_usage(thread: u32) -> Option<ThreadUsage> {
    /// Indices from the state on; proc(5), minflt and majflt
    const FAULTS: (usize, usize) = (7, 9);
    let schedstat = fs::read_to_string(format!("/proc/{thread}/schedstat")).ok()?;
    let mut times = schedstat.split_whitespace().map(|number| number.parse().ok());
    let stat = stat_of_thread(thread);
    let field = |index: usize| stat.get(index)?.parse().ok();
    Some(ThreadUsage {
        processor_ns: times.next()??,
        run_delay_ns: times.next()??,
        runs: times.next()??,
        minor_faults: field(FAULTS.0)?,
        major_faults: field(FAULTS.1)?,
    })
}

/// The number of threads of a process; 0 if it has ended.
pub fn thread_count(process: u32) -> usize {
    fs::read_dir(format!("/proc/{process}/task")).map_or(0, Iterator::count)
}

/// Whether the process exists and has not ended. A zombie has ended: its parent may wait long
/// before it asks for the status. Its pidfd is asked, because /proc also shows a process as a
/// zombie if only its first thread has ended.
pub fn is_alive(process: u32) -> bool {
    match ProcessRef::open(process) {
        Ok(process) => process.lives(),
        // EINVAL: it is the number of a thread, which may have been the process's before.
        Err(error) => !matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EINVAL)),
    }
}

/// Whether a signal or a debugger has stopped the process.
pub fn is_stopped(process: u32) -> bool {
    stat(process)[0].starts_with(['T', 't'])
}

/// Whether the process has a controlling terminal, at which a user may be.
pub fn has_terminal(process: u32) -> bool {
    /// Index from the state on; proc(5), tty_nr
    const TERMINAL: usize = 4;
    stat(process).get(TERMINAL).is_some_and(|terminal| terminal != "0")
}

/// The POSIX session of a process, if it exists. Number 0 stands for this process.
pub fn session_of(process: u32) -> Option<u32> {
    // SAFETY: takes and returns a number.
    unsafe { libc::getsid(process as i32) }.try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::hint;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_zombie_is_not_alive() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("cat is installed");
        let (process, pidfd) = (child.id(), open_pidfd(child.id()).expect("it is a process"));
        assert!(is_alive(process) && is_alive(std::process::id()));
        drop(child.stdin.take());
        assert!(wait_readable(pidfd.as_raw_fd(), Duration::from_secs(30)));
        // It exists as long as nobody has asked for its status.
        assert!(stat(process)[0].starts_with('Z') && !is_alive(process));
        child.wait().expect("it has ended");
        assert!(!is_alive(process));
    }

    #[test]
    fn page_faults_of_a_thread_are_its_own() {
        let (sender, numbers) = mpsc::channel();
        let (end, wait) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: takes nothing.
            let tid = unsafe { libc::gettid() } as u32;
            sender.send(tid).expect("it is received");
            let _ = wait.recv();
        });
        let tid = numbers.recv().expect("it is sent");
        // Writing to new memory causes faults of this thread. The parts are smaller than a huge
        // page, but a fault may provide several pages.
        const PARTS: usize = 200;
        let memory: Vec<_> = (0..PARTS).map(|_| hint::black_box(vec![1_u8; 256 << 10])).collect();
        // SAFETY: takes nothing.
        let own = unsafe { libc::gettid() } as u32;
        let faults = |tid| thread_usage(tid).expect("it lives").minor_faults;
        let (of_other, of_own) = (faults(tid), faults(own));
        assert!(of_other + PARTS as u64 / 2 < of_own, "{of_other} {of_own}");
        drop((end, memory));
        thread.join().expect("it ends");
    }
}
