//! A daemon that guards one cgroup, and a program in it that obeys commands.

use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Stdio};

use serde_json::Value;

use super::cgroup::TestCgroup;
use super::guarded_program::Guarded;
use super::job::{is_in_call, state};
use super::{Finished, Job, Running, eventually, tollgate, words};

pub struct GuardDaemon {
    pub running: Running,
    pub store: PathBuf,
    pub socket: PathBuf,
}

impl GuardDaemon {
    pub fn job(it: &Guarded, options: &str) -> Job {
        let mut job = Job::from_command_line("daemon").with_row_lock_shared();
        let folder = it.folder.path();
        job.command
            .env("TOLLGATE_STORE", folder.join("store"))
            .env("TOLLGATE_SOCKET", folder.join("socket"));
        job.command.args(words(options));
        job
    }

    /// Prepares a daemon that guards the processes in the cgroup.
    pub fn job_in(it: &Guarded, cgroup: &TestCgroup, options: &str) -> Job {
        let mut job = Self::job(it, options);
        job.command.arg("--cgroup").arg(&cgroup.0);
        job
    }

    #[track_caller]
    pub fn start(it: &Guarded, cgroup: &TestCgroup, options: &str) -> Self {
        Self::start_ready(Self::job_in(it, cgroup, options), it)
    }

    /// Starts the daemon and waits until it guards.
    #[track_caller]
    pub fn start_ready(job: Job, it: &Guarded) -> Self {
        let daemon = Self::of(job.start(), it);
        eventually("the daemon", || daemon.is_ready());
        daemon
    }

    #[track_caller]
    pub fn is_ready(&self) -> bool {
        assert!(!self.running.is_over(), "{}", self.running.read("err"));
        self.running.read("err").contains("guarding ")
    }

    pub fn of(running: Running, it: &Guarded) -> Self {
        let folder = it.folder.path();
        Self { running, store: folder.join("store"), socket: folder.join("socket") }
    }

    pub fn client_job(&self, arguments: &str) -> Job {
        let mut job = Job::of(vec![tollgate().into(), "guard".into()]);
        job.command.args(words(arguments));
        job.command.env("TOLLGATE_STORE", &self.store).env("TOLLGATE_SOCKET", &self.socket);
        job
    }

    #[track_caller]
    pub fn request(&self, arguments: &str) -> Finished {
        self.client_job(arguments).finish().success()
    }

    pub fn status(&self) -> Value {
        self.request("status --json").json()
    }

    /// The daemon's entry of the guarded program.
    pub fn program(&self) -> Option<Value> {
        self.program_named("guarded")
    }

    pub fn program_named(&self, name: &str) -> Option<Value> {
        let status = self.status();
        let programs = status["programs"].as_array().expect("programs").iter();
        let mut found = programs.filter(|it| {
            it["path"].as_str().and_then(|path| path.rsplit('/').next()) == Some(name)
        });
        found.next().cloned()
    }

    /// Limits the daemon to this many more open files than it has now.
    pub fn limit_open_files(&self, more: usize) {
        let most = (self.open_files() + more) as libc::rlim_t;
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: a valid limit; no old value is requested.
        let set = unsafe {
            libc::prlimit(
                self.running.pid() as i32,
                libc::RLIMIT_NOFILE,
                &limit,
                std::ptr::null_mut(),
            )
        };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }

    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.running.pid())).expect("it runs").count()
    }

    pub fn events(&self) -> Vec<Value> {
        let lines = self.request("events --json").text();
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

/// A process that makes calls on command, and the number of its replies.
pub struct CommandServer {
    running: Running,
    replies: ChildStdout,
    replied: usize,
    sent: usize,
}

impl CommandServer {
    #[track_caller]
    pub fn start(it: &Guarded, cgroup: &TestCgroup) -> Self {
        Self::with_threads(it, cgroup, 0)
    }

    #[track_caller]
    pub fn with_threads(it: &Guarded, cgroup: &TestCgroup, threads: u32) -> Self {
        Self::of(&it.program, cgroup, threads)
    }

    #[track_caller]
    pub fn of(program: &Path, cgroup: &TestCgroup, threads: u32) -> Self {
        Self::as_user(0, program, cgroup, threads)
    }

    #[track_caller]
    pub fn as_user(user: u32, program: &Path, cgroup: &TestCgroup, threads: u32) -> Self {
        let mut job = Job::of(vec![program.into(), "command-server".into()]);
        job.command.arg("--threads").arg(threads.to_string());
        job.command.uid(user).gid(user).stdin(Stdio::piped()).stdout(Stdio::piped());
        // The daemon never holds processes of its own session, which is also that of the tests.
        let mut running = job.in_own_session().start();
        let pid = running.pid();
        // It enters when it waits for commands. Before that, the daemon would see the tests'
        // program, of which it is a fork, or some of the calls by which this program starts.
        eventually("it waits for commands", || is_in_call(pid, libc::SYS_epoll_wait));
        cgroup.add(pid);
        let replies = running.stdout();
        // SAFETY: our own descriptor.
        unsafe { libc::fcntl(replies.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        Self { running, replies, replied: 0, sent: 0 }
    }

    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Sends commands, one a byte. 'u': a normal call; 'e': it executes a program; any other byte:
    /// an anomalous call.
    pub fn send(&mut self, what: &[u8]) {
        self.running.input().write_all(what).expect("it listens");
        self.sent += what.len();
    }

    /// How many commands have no reply yet.
    pub fn pending_replies(&mut self) -> usize {
        let mut bytes = [0; 4096];
        while let Ok(read) = self.replies.read(&mut bytes)
            && read > 0
        {
            self.replied += read;
        }
        self.sent - self.replied
    }

    #[track_caller]
    pub fn send_and_wait(&mut self, what: &[u8]) {
        self.send(what);
        eventually("its replies", || self.pending_replies() == 0);
    }

    pub fn is_stopped(&self) -> bool {
        state(self.pid()) == Some('T')
    }

    /// Ends it, and returns what it prints at its end.
    pub fn end(mut self) -> String {
        drop(self.running.stdin());
        self.running.finish().success().err
    }
}
