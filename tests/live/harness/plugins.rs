//! A daemon that runs plugins for the processes of one cgroup.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;

use super::cgroup::TestCgroup;
use super::job::folder;
use super::{Finished, Job, Running, eventually, tollgate, words, workload};

pub struct PluginDaemon {
    pub daemon: Running,
    pub cgroup: TestCgroup,
    folder: TempDir,
}

impl PluginDaemon {
    /// Starts a daemon with one plugin of this name.
    #[track_caller]
    pub fn start(name: &str, text: &str) -> Self {
        let cgroup = TestCgroup::new();
        let scope = format!("--cgroup {}", cgroup.0.display());
        Self::of(name, text, cgroup, &scope)
    }

    /// Starts a daemon for the processes that `scope` selects, such as `--unit NAME`. `cgroup` is
    /// where its workloads start.
    #[track_caller]
    pub fn start_for(scope: &str, cgroup: TestCgroup, name: &str, text: &str) -> Self {
        Self::of(name, text, cgroup, scope)
    }

    /// Starts a daemon with a plugin that is at no hook.
    #[track_caller]
    pub fn start_idle() -> Self {
        Self::start("nothing", "on call {}")
    }

    /// Starts a daemon whose plugins apply to all processes of the machine.
    #[track_caller]
    pub fn start_for_all(name: &str, text: &str) -> Self {
        Self::of(name, text, TestCgroup::new(), "")
    }

    /// Starts another daemon for the same processes.
    #[track_caller]
    pub fn start_beside(other: &Self, name: &str, text: &str) -> Self {
        Self::of(name, text, TestCgroup::new(), &format!("--cgroup {}", other.cgroup.0.display()))
    }

    #[track_caller]
    fn of(name: &str, text: &str, cgroup: TestCgroup, scope: &str) -> Self {
        let folder = folder();
        let file = folder.path().join(format!("{name}.ec"));
        fs::write(&file, text).expect("a file can be written");
        let mut job = Job::from_command_line("daemon");
        job.command.arg("--plugin").arg(file).args(words(scope));
        job.command.env("TOLLGATE_SOCKET", folder.path().join("socket"));
        let daemon = job.start();
        eventually("the daemon", || {
            assert!(!daemon.is_over(), "{}", daemon.read("err"));
            daemon.read("err").contains("1 plugin loaded")
        });
        Self { daemon, cgroup, folder }
    }

    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let file = self.folder.path().join(format!("{name}.ec"));
        fs::write(&file, text).expect("a file can be written");
        file
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn request(&self, arguments: &str) -> Finished {
        self.start_request(arguments).finish()
    }

    pub fn start_request(&self, arguments: &str) -> Running {
        let mut job = Job::of(vec![tollgate().into(), "plugin".into()]);
        job.command
            .args(words(arguments))
            .env("TOLLGATE_SOCKET", self.folder.path().join("socket"));
        job.start()
    }

    /// Loads a plugin with `options`, such as --priority.
    #[track_caller]
    pub fn load(&self, name: &str, text: &str, options: &str) -> Value {
        let file = self.file(name, text);
        self.request(&format!("load --json {} {options}", file.display())).success().json()
    }

    #[track_caller]
    pub fn swap(&self, name: &str, text: &str) -> Value {
        let file = self.file("swapped", text);
        self.request(&format!("swap --json {name} {}", file.display())).success().json()
    }

    #[track_caller]
    pub fn show(&self, name: &str) -> Value {
        self.request(&format!("show --json {name}")).success().json()["plugin"].clone()
    }

    /// Reads a global variable of a plugin.
    #[track_caller]
    pub fn number(&self, name: &str, variable: &str) -> u64 {
        number(&self.show(name), variable)
    }

    /// Sends bytes to the task, which makes a call for each, until the plugin's `n` has counted
    /// one.
    #[track_caller]
    pub fn wait_until_counted(&self, name: &str, task: &mut Running) {
        let before = self.number(name, "n");
        eventually(name, || {
            task.input().write_all(b"x").expect("it reads");
            self.number(name, "n") > before
        });
    }

    /// Starts a workload in the daemon's cgroup. It begins when a byte is written to its stdin.
    pub fn workload(&self, arguments: &str) -> Running {
        workload_in(&self.cgroup, arguments)
    }
}

/// Starts a workload in a cgroup, as [`PluginDaemon::workload`] does.
pub fn workload_in(cgroup: &TestCgroup, arguments: &str) -> Running {
    job_in(cgroup, arguments).start()
}

/// Prepares a workload in a cgroup.
pub fn job_in(cgroup: &TestCgroup, arguments: &str) -> Job {
    let mut job = Job::of(workload(arguments));
    job.command.stdin(Stdio::piped());
    let procs =
        OpenOptions::new().write(true).open(cgroup.0.join("cgroup.procs")).expect("our cgroup");
    let join = move || {
        // SAFETY: two valid bytes; "0" stands for the writing process.
        let written = unsafe { libc::write(procs.as_raw_fd(), c"0".as_ptr().cast(), 1) };
        if written == 1 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    job.before_exec(join)
}

/// The complete report of a `tollgate run`.
#[track_caller]
pub fn report(ran: &Finished) -> Value {
    ran.document("report")
}

/// The plugins in a report.
#[track_caller]
pub fn plugins(ran: &Finished) -> Vec<Value> {
    report(ran)["plugins"].as_array().expect("plugins").clone()
}

/// A global variable in a plugin's state.
#[track_caller]
pub fn number(state: &Value, variable: &str) -> u64 {
    let variables = state["variables"].as_array().expect("variables").iter();
    let mut found = variables.filter(|it| it["name"] == variable);
    found.next().unwrap_or_else(|| panic!("{variable} in {state}"))["value"]
        .as_u64()
        .expect("a number")
}

/// The entries of a plugin's map whose keys and values are numbers.
#[track_caller]
pub fn entries(state: &Value, map: &str) -> Vec<(u64, u64)> {
    let mut maps = state["maps"].as_array().expect("maps").iter();
    let map = maps.find(|it| it["name"] == map).expect("the map");
    let entry = |entry: &Value| Some((entry["key"].as_u64()?, entry["value"].as_u64()?));
    let entries = map["shown"].as_array().expect("entries").iter();
    entries.map(|it| entry(it).expect("numbers")).collect()
}
