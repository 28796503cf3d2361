//! A program under test: it starts in its own process group, writes its output to files, and never
//! outlives its test.

use std::ffi::{CStr, CString, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use kernel::process::{open_pidfd, wait_readable};
use tempfile::TempDir;

use super::pty::Terminal;
use super::table_locks::Rows;
use super::{LIMIT, Report, eventually, tollgate, words};

const NO_TOLL: &str = "TOLLGATE_NO_TOLL";

/// A command to start.
pub struct Job {
    pub command: Command,
    folder: TempDir,
    leads_session: bool,
    rows: Option<Rows>,
}

pub struct Running {
    child: Child,
    /// Then its process ID may be another process's.
    is_reaped: bool,
    folder: TempDir,
    _rows: Option<Rows>,
}

pub struct Finished {
    /// Exit status as in a shell: 128 + N for signal N.
    pub status: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    pub out: Vec<u8>,
    pub err: String,
    folder: TempDir,
}

/// Creates a folder that all users may read.
pub fn folder() -> TempDir {
    let folder = TempDir::with_prefix("tollgate-live-").expect("a temporary folder can be made");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("it is ours");
    folder
}

/// Resets signals that are ignored: by nohup, or a shell in background jobs, in case the tests run
/// as one; and SIGXFSZ in each program with Tollgate's start-up code, so also in the tests.
fn reset_signals() -> io::Result<()> {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGXFSZ] {
        // SAFETY: async-signal-safe, and a valid disposition.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    Ok(())
}

fn mount(path: &CStr, kind: &CStr, flags: libc::c_ulong) -> io::Result<()> {
    // SAFETY: NUL-terminated strings.
    let done = unsafe {
        libc::mount(kind.as_ptr(), path.as_ptr(), kind.as_ptr(), flags, std::ptr::null())
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Job {
    pub fn of(command: Vec<OsString>) -> Self {
        let folder = folder();
        let file = |name| File::create(folder.path().join(name)).expect("a file can be made");
        let (out, err) = (file("out"), file("err"));
        let mut words = command.into_iter();
        let mut command = Command::new(words.next().expect("a command has a name"));
        command.args(words).stdin(Stdio::null());
        command.stdout(out).stderr(err);
        command.env(NO_TOLL, "1");
        let job = Self { command, folder, leads_session: false, rows: None };
        job.before_exec(reset_signals)
    }

    /// Lets Tollgate measure its toll at the end, which most tests skip because it takes most of
    /// the time of a short command.
    pub fn with_toll(mut self) -> Self {
        self.command.env_remove(NO_TOLL);
        self
    }

    /// A `tollgate run` that writes its report to a file.
    pub fn run(options: &str, command: Vec<OsString>) -> Self {
        let mut job = Self::tollgate("run", options);
        job.command.arg("--").args(command);
        job
    }

    /// A `tollgate pace watch` of a command, which writes its report to a file.
    pub fn pace_watch(options: &str, command: Vec<OsString>) -> Self {
        let mut job = Self::tollgate("pace watch", options);
        job.command.arg("--").args(command);
        job
    }

    /// A `tollgate pace watch` of a process, which writes its report to a file.
    pub fn watch_process(pid: u32) -> Self {
        Self::tollgate("pace watch", &format!("--levels rightspeed -p {pid}"))
    }

    /// A `tollgate lens` that writes its report to a file.
    pub fn lens(options: &str) -> Self {
        Self::tollgate("lens", options)
    }

    fn tollgate(what: &str, options: &str) -> Self {
        let mut job = Self::of([tollgate().into()].into_iter().chain(words(what)).collect());
        let report = job.path("report");
        job.command.args(["--json", "-o"]).arg(report);
        job.command.args(words(options));
        job.rows = Some(Rows::shared());
        job
    }

    /// Takes the row lock in shared mode, for a job that starts a Tollgate indirectly.
    pub fn with_row_lock_shared(mut self) -> Self {
        self.rows = Some(Rows::shared());
        self
    }

    /// Takes the row lock exclusively, for a job that may use all rows or all threads of the gate.
    pub fn with_row_lock_exclusive(mut self) -> Self {
        self.rows = None;
        self.rows = Some(Rows::exclusive());
        self
    }

    /// A `tollgate` as a user types it.
    pub fn from_command_line(options: &str) -> Self {
        let mut job = Self::of(vec![tollgate().into()]);
        job.command.args(words(options));
        job.rows = Some(Rows::shared());
        job
    }

    /// A path in the job's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs `action` in the child before it executes the program. The action follows a fork of a
    /// process with many threads, so it must only make system calls.
    pub fn before_exec(
        mut self,
        action: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        // SAFETY: the callers' actions only make system calls.
        unsafe { self.command.pre_exec(action) };
        self
    }

    /// Makes it the leader of a session with this terminal as its input, output and errors.
    pub fn on(mut self, terminal: &Terminal) -> Self {
        let [input, output, errors] = std::array::from_fn(|_| Stdio::from(terminal.open()));
        self.command.stdin(input).stdout(output).stderr(errors);
        self.leads_session = true;
        self.before_exec(Terminal::take)
    }

    /// Runs it in a session (setsid) of its own instead of the tests' session.
    pub fn in_own_session(mut self) -> Self {
        self.leads_session = true;
        // SAFETY: a plain system call.
        self.before_exec(|| unsafe {
            if libc::setsid() > 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        })
    }

    /// Gives it a BPF file system of its own, in which it finds no guards of other tests.
    pub fn in_own_bpf_fs(self) -> Self {
        self.with_own_mounts(|| mount(c"/sys/fs/bpf", c"bpf", 0))
    }

    /// Mounts a file system of 16 KiB for it at this folder.
    pub fn with_small_disk(self, at: &Path) -> Self {
        let at = CString::new(at.as_os_str().as_bytes()).expect("no NUL in it");
        self.with_own_mounts(move || {
            let (kind, options) = (c"tmpfs", c"size=16k");
            // SAFETY: NUL-terminated strings.
            let done = unsafe {
                libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast())
            };
            if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        })
    }

    /// Makes cgroups read-only for it.
    pub fn with_fixed_cgroups(self) -> Self {
        let paths = cgroup_mounts();
        self.with_own_mounts(move || remount(&paths, libc::MS_RDONLY))
    }

    /// Gives it a mount namespace, in which cgroups can later become read-only.
    pub fn with_own_cgroup_mounts(self) -> Self {
        self.with_own_mounts(|| Ok(()))
    }

    fn with_own_mounts(
        self,
        mut action: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.before_exec(move || {
            // SAFETY: a plain system call.
            if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
                return Err(io::Error::last_os_error());
            }
            mount(c"/", c"none", libc::MS_REC | libc::MS_PRIVATE)?;
            action()
        })
    }

    #[track_caller]
    pub fn start(mut self) -> Running {
        if !self.leads_session {
            self.command.process_group(0);
        }
        let child = loop {
            match self.command.spawn() {
                Ok(child) => break child,
                // A child that another test forked may still have the copied program open for
                // writing.
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                    std::thread::yield_now()
                }
                Err(error) => panic!("cannot start {:?}: {error}", self.command.get_program()),
            }
        };
        Running { child, is_reaped: false, folder: self.folder, _rows: self.rows }
    }

    #[track_caller]
    pub fn finish(self) -> Finished {
        self.start().finish()
    }
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("the job was given a pipe as stdin")
    }

    /// The pipe to its stdin, which stays open.
    pub fn input(&mut self) -> &mut ChildStdin {
        self.child.stdin.as_mut().expect("the job was given a pipe as stdin")
    }

    pub fn stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("the job was given a pipe as stdout")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Sends a signal to the program itself.
    pub fn signal(&self, signal: i32) {
        kill(self.pid() as i32, signal);
    }

    /// Sends a signal to the program and its descendants, as a terminal does.
    pub fn signal_group(&self, signal: i32) {
        kill(-(self.pid() as i32), signal);
    }

    /// Waits for a child of this process that runs `name`, and returns its PID.
    #[track_caller]
    pub fn child_running(&self, name: &str) -> u32 {
        let mut found = None;
        eventually(&format!("a child that runs {name}"), || {
            found =
                children(self.pid()).into_iter().find(|pid| comm(*pid).as_deref() == Some(name));
            found.is_some()
        });
        found.expect("just found")
    }

    pub fn is_over(&self) -> bool {
        !is_running(self.pid())
    }

    #[track_caller]
    pub fn finish(mut self) -> Finished {
        let has_ended = open_pidfd(self.pid()).expect("it is our child");
        wait_readable(has_ended.as_raw_fd(), LIMIT);
        let Some(status) = self.child.try_wait().expect("it is our child") else {
            panic!("it did not end within {LIMIT:?}; its stderr: {}", self.read("err"));
        };
        self.is_reaped = true;
        let out = fs::read(self.path("out")).unwrap_or_default();
        let err = strip_notice(&self.read("err"));
        Finished {
            status: shell_status(status),
            signal: status.signal(),
            out,
            err,
            // A replacement, so that dropping `self` does not remove the report.
            folder: std::mem::replace(&mut self.folder, folder()),
        }
    }

    pub fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.path(name)).unwrap_or_default()).into_owned()
    }
}

/// Removes the notice that Tollgate prints if it has to wait for the session of another test.
fn strip_notice(err: &str) -> String {
    let notice = "tollgate: waiting for another Tollgate";
    err.split_inclusive('\n').filter(|line| !line.starts_with(notice)).collect()
}

impl Drop for Running {
    /// Kills what is left of a job that is not finished, so that a test leaves no process. A
    /// Tollgate that was killed leaves its command.
    fn drop(&mut self) {
        if !self.is_reaped {
            self.signal_group(libc::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

impl Finished {
    #[track_caller]
    pub fn success(self) -> Self {
        self.exits_with(0)
    }

    #[track_caller]
    pub fn exits_with(self, status: i32) -> Self {
        assert_eq!(self.status, status, "its stderr: {}", self.err);
        self
    }

    /// Checks that Tollgate printed these words on stderr.
    #[track_caller]
    pub fn says(self, words: &str) -> Self {
        assert!(self.err.contains(words), "{words:?} is not in its stderr: {:?}", self.err);
        assert!(!self.err.contains("panicked"), "it panicked: {:?}", self.err);
        self
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    #[track_caller]
    pub fn report(&self) -> Report {
        Report::read(&self.path("report"))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    /// A file of the job's folder as JSON.
    #[track_caller]
    pub fn document(&self, name: &str) -> serde_json::Value {
        let text = fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The program's stdout as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        match serde_json::from_slice(&self.out) {
            Ok(value) => value,
            Err(error) => panic!("{error} in {:?}; its stderr: {}", self.text(), self.err),
        }
    }
}

fn shell_status(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().expect("it exited or was killed"))
}

fn cgroup_mounts() -> Vec<CString> {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("there are mounts");
    let lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let cgroups =
        lines.filter(|words| words[2].starts_with("cgroup")).map(|words| words[1].to_owned());
    cgroups.map(|path| CString::new(path).expect("no NUL in it")).collect()
}

fn remount(paths: &[CString], options: libc::c_ulong) -> io::Result<()> {
    paths
        .iter()
        .try_for_each(|path| mount(path, c"none", libc::MS_REMOUNT | libc::MS_BIND | options))
}

/// Makes cgroups read-only for a process in its own mount namespace, until dropped.
pub struct ReadOnlyCgroups(File);

impl ReadOnlyCgroups {
    pub fn of(pid: u32) -> Self {
        let fixed = Self(File::open(format!("/proc/{pid}/ns/mnt")).expect("it runs"));
        fixed.remount(libc::MS_RDONLY).expect("these are its own mounts");
        fixed
    }

    fn remount(&self, options: libc::c_ulong) -> io::Result<()> {
        let (mounts, paths) = (self.0.as_raw_fd(), cgroup_mounts());
        // setns to a mount namespace fails in a thread that shares its root directory with others.
        let there = move || {
            // SAFETY: plain system calls, of a thread that ends then.
            let is_there = unsafe {
                libc::unshare(libc::CLONE_FS) == 0 && libc::setns(mounts, libc::CLONE_NEWNS) == 0
            };
            if is_there { remount(&paths, options) } else { Err(io::Error::last_os_error()) }
        };
        std::thread::spawn(there).join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    }
}

/// Makes cgroups writable again, after a failed test too, so that the watchdog can migrate all
/// threads out of them.
impl Drop for ReadOnlyCgroups {
    fn drop(&mut self) {
        let _ = self.remount(0);
    }
}

/// Returns the processor time of a process's first thread.
#[track_caller]
pub fn cpu_ns(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).expect("it runs");
    text.split(' ').next().and_then(|number| number.parse().ok()).expect("its time on a processor")
}

pub fn kill(pid: i32, signal: i32) {
    // SAFETY: takes no pointers; the process, or process group, is one that the test started.
    unsafe { libc::kill(pid, signal) };
}

/// Stops a process, and waits until each of its threads has stopped or ended: some may still run on
/// other processors.
#[track_caller]
pub fn stop(pid: u32) {
    kill(pid as i32, libc::SIGSTOP);
    let stands = |state: &char| matches!(state, 'T' | 'Z' | 'X');
    eventually("all its threads are stopped", || states_of(pid).iter().all(stands));
}

/// Returns the command name of a process that has not ended.
pub fn comm(pid: u32) -> Option<String> {
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    // The process still runs if only its first thread has ended.
    (is_running(pid) || threads_of(pid).len() > 1).then(|| comm.trim_end().to_owned())
}

/// Returns the TIDs of a process's threads, or none if it has ended.
pub fn threads_of(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok()).collect()
}

/// Whether a process exists and is not a zombie.
pub fn is_running(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != 'Z' && state != 'X')
}

/// Whether a process sleeps in read(2), and so has read all its input.
pub fn is_in_read(pid: u32) -> bool {
    is_in_call(pid, libc::SYS_read)
}

/// Whether a process sleeps in this call; on a kernel that does not show the call's number, whether
/// it sleeps.
pub fn is_in_call(pid: u32, number: libc::c_long) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/syscall")) {
        Ok(call) => call.starts_with(&format!("{number} ")),
        Err(_) => state(pid) == Some('S'),
    }
}

/// The state of a process or thread, by its letter in ps.
pub fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// The states of all threads of a process.
pub fn states_of(pid: u32) -> Vec<char> {
    threads_of(pid).into_iter().filter_map(state).collect()
}

/// Returns the children of a process, from the parent field of each process, which needs no kernel
/// option.
pub fn children(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        fields.split(' ').nth(1) == Some(&parent.to_string())
    };
    processes().into_iter().filter(is_child).collect()
}

pub fn processes() -> Vec<u32> {
    fs::read_dir("/proc")
        .expect("/proc is mounted")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Held during a fork and while a program is written: a child that inherits the open file would
/// make its execution fail (ETXTBSY).
static FORKING: Mutex<()> = Mutex::new(());

/// Copies a program; all users may execute the copy.
pub fn copy(program: &Path, to: &Path) {
    let _alone = FORKING.lock();
    fs::copy(program, to).expect("a program can be copied");
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).expect("it is ours");
}

/// How often `tollgate lens` polls for new processes.
const REFRESH_INTERVAL: Duration = Duration::from_millis(500);
/// A run or a lens wakes up at least ten times a second, and tends the gate each time. It may also
/// sleep while it tends the gate, so one more sleep would prove nothing.
const SLEEPS: u64 = 5;

/// Waits until a run or a lens has tended the gate once more.
#[track_caller]
pub fn wait_for_tend(tollgate: &Running) {
    let before = sleeps_of(tollgate.pid());
    eventually("the gate is tended again", || sleeps_of(tollgate.pid()) >= before + SLEEPS);
}

/// Waits until a `tollgate lens` without --for prints that it watches.
#[track_caller]
pub fn watches(lens: &Running) {
    eventually("tollgate: watching", || {
        assert!(!lens.is_over(), "it has ended: {}", lens.read("err"));
        lens.read("err").contains("watching")
    });
}

/// Waits until a lens has polled for processes once more.
#[track_caller]
pub fn wait_for_refresh(lens: &Running) {
    std::thread::sleep(REFRESH_INTERVAL);
    wait_for_tend(lens);
}

/// Whether a process has a handler for the signal.
pub fn handles(pid: u32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << (signal - 1) != 0)
}

/// How often a thread has gone to sleep.
pub fn sleeps_of(tid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).expect("a count")
}
