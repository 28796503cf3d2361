//! A daemon that has services in force, of which a machine has one, and programs that work for tenants.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;

use super::job::{copy, folder};
use super::{Finished, Job, Running, eventually, tollgate, words, workloads};

/// Two tenants, and a back end that works for either.
pub const TENANTS: &str = r#"
[service.shop]
[service.blog]

[[rule]]
name = "the shop's"
exe = "FOLDER/shop"
belongs-to = "shop"

[[rule]]
exe = "FOLDER/blog"
belongs-to = "blog"

[[rule]]
name = "works for others"
exe = "FOLDER/backend"
adopts-peer = true
"#;

/// Services in force, until dropped.
pub struct InForce {
    pub folder: TempDir,
    pub daemon: Running,
    alone: File,
}

/// What is left of services that were in force. Nobody else's are, until it is dropped.
pub struct Ended {
    folder: TempDir,
    _alone: File,
}

impl Ended {
    /// From here on others' may be.
    pub fn into_folder(self) -> TempDir {
        self.folder
    }
}

/// Held by whoever has services in force.
pub fn alone() -> File {
    let path = std::env::temp_dir().join("tollgate-test-services.lock");
    let lock = File::create(path).expect("a file for a lock");
    lock.lock().expect("a file can be locked");
    lock
}

/// Programs of the test's own, which no other test's rules name.
pub fn programs(names: &[&str]) -> TempDir {
    let folder = folder();
    names.iter().for_each(|name| copy(&workloads(), &folder.path().join(name)));
    folder
}

impl InForce {
    /// In `rules`, FOLDER is where the programs are.
    #[track_caller]
    pub fn start(folder: TempDir, rules: &str) -> Self {
        let job = Self::job(folder.path());
        Self::start_by(job, folder, rules)
    }

    /// By such a `job()`, changed.
    #[track_caller]
    pub fn start_by(job: Job, folder: TempDir, rules: &str) -> Self {
        let alone = alone();
        write(folder.path(), "services.toml", rules);
        let daemon = job.start();
        let in_force = Self { folder, daemon, alone };
        eventually("the services", || {
            assert!(!in_force.daemon.is_over(), "{}", in_force.daemon.read("err"));
            in_force.daemon.read("err").contains("in force")
        });
        in_force
    }

    pub fn job(folder: &Path) -> Job {
        let mut job = Job::typed("daemon").with_some_rows();
        job.command.arg("--services").arg(folder.join("services.toml"));
        job.command.env("TOLLGATE_SOCKET", folder.join("control"));
        job
    }

    /// Once the daemon has gone, however that is.
    pub fn end(self) -> Ended {
        self.daemon.finish();
        Ended { folder: self.folder, _alone: self.alone }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `tollgate service …`
    pub fn ask_job(&self, arguments: &str) -> Job {
        let mut job = Job::of(vec![tollgate().into(), "service".into()]);
        job.command.args(words(arguments)).env("TOLLGATE_SOCKET", self.path("control"));
        job
    }

    #[track_caller]
    pub fn ask(&self, arguments: &str) -> Finished {
        self.ask_job(arguments).finish().success()
    }

    /// Puts other rules in force.
    #[track_caller]
    pub fn apply(&self, rules: &str) -> Finished {
        write(self.folder.path(), "services.toml", rules);
        self.ask("apply")
    }

    pub fn report(&self) -> Value {
        self.ask("report --json").json()
    }

    /// A figure of each service.
    pub fn figures(&self, figure: &str) -> BTreeMap<String, u64> {
        let report = self.report();
        let rows = report["services"].as_array().expect("services").iter();
        rows.map(|row| {
            (row["name"].as_str().expect("a name").into(), row[figure].as_u64().expect("a figure"))
        })
        .collect()
    }

    #[track_caller]
    pub fn explain(&self, pid: u32) -> Value {
        self.ask(&format!("explain --json {pid}")).json()["threads"][0].clone()
    }

    #[track_caller]
    pub fn service_of(&self, pid: u32) -> String {
        self.explain(pid)["service"].as_str().expect("a name").into()
    }

    /// The command, of a program of the test's own.
    pub fn program(&self, command: &str) -> Job {
        program(self.folder.path(), command)
    }
}

pub fn write(folder: &Path, name: &str, rules: &str) {
    let rules = rules.replace("FOLDER", folder.to_str().expect("text"));
    std::fs::write(folder.join(name), rules).expect("a file");
}

pub fn program(folder: &Path, command: &str) -> Job {
    let mut command = words(command).into_iter();
    let path = folder.join(command.next().expect("a program"));
    let mut job = Job::of([path.into()].into_iter().chain(command).collect());
    job.command.stdin(Stdio::piped());
    job
}

/// `workloads consumer`
pub struct Consumer(pub Running);

impl Consumer {
    pub fn start(services: &InForce, name: &str) -> Self {
        Self(services.program(&format!("{name} consumer")).start())
    }

    pub fn tell(&mut self, order: &str) -> usize {
        let answers = self.0.read("out").lines().count();
        writeln!(self.0.input(), "{order}").expect("it listens");
        answers
    }

    #[track_caller]
    pub fn answer(&self, number: usize) -> String {
        eventually("an answer", || {
            let is_over = self.0.is_over();
            let is_there = self.0.read("out").lines().count() > number;
            assert!(is_there || !is_over, "{}", self.0.read("err"));
            is_there
        });
        self.0.read("out").lines().nth(number).expect("an answer").to_owned()
    }

    #[track_caller]
    pub fn ask(&mut self, order: &str) -> String {
        let number = self.tell(order);
        self.answer(number)
    }

    /// How many it got, and the errno of the first that it did not get.
    #[track_caller]
    pub fn takes(&mut self, order: &str) -> (u64, i32) {
        let answer = self.ask(order);
        let (got, errno) = answer.split_once(' ').expect("two numbers");
        (got.parse().expect("a number"), errno.parse().expect("an errno"))
    }
}

/// A server that works for tenants (`workloads backend`).
pub struct Backend {
    pub running: Running,
    /// Its port, address, name, or the path of its socket.
    pub place: String,
}

impl Backend {
    /// Listens at a port where `place` is 0; a plain word is a socket in the folder.
    #[track_caller]
    pub fn start(folder: &Path, name: &str, place: &str, options: &str) -> Self {
        let is_word = place.chars().all(char::is_alphabetic);
        let place = if is_word { folder.join(place).display().to_string() } else { place.into() };
        let running = program(folder, &format!("{name} backend {place} {options}")).start();
        eventually("the backend", || running.read("out").ends_with('\n'));
        let place = running.read("out").trim().to_owned();
        Self { running, place }
    }

    /// One that waits to be told to begin.
    #[track_caller]
    pub fn tenant(&self, folder: &Path, name: &str, work: &str) -> Running {
        let tenant = program(folder, &format!("{name} tenant {} {work}", self.place)).start();
        eventually("the tenant", || tenant.read("out").starts_with("ready"));
        tenant
    }

    /// Ends it. Nanoseconds that it has worked for each tenant.
    #[track_caller]
    pub fn end(self, folder: &Path, name: &str) -> BTreeMap<String, u64> {
        over(begin(self.tenant(folder, name, "z 0 1")));
        let said = self.running.finish().success().text();
        let lines = said.lines().skip(1).filter_map(|line| line.split_once(' '));
        lines.map(|(tag, ns)| (tag.into(), ns.parse().expect("a time"))).collect()
    }
}

pub fn begin(mut tenant: Running) -> Running {
    tenant.input().write_all(b"\n").expect("it waits");
    tenant
}

/// Nanoseconds that a tenant has worked itself, once it has done so. It is still there.
#[track_caller]
pub fn own_work(tenant: &Running) -> u64 {
    eventually("the tenant's work", || tenant.read("out").lines().count() == 2);
    tenant.read("out").lines().nth(1).and_then(|line| line.parse().ok()).expect("its time")
}

#[track_caller]
pub fn over(mut tenant: Running) {
    drop(tenant.stdin());
    tenant.finish().success();
}

/// To within 2 % of all tenants' work, and 3 ms for the threads' beginnings and ends, which are in nobody's count.
#[track_caller]
pub fn is_charged(what: &str, charged: u64, work: u64, all: u64) {
    let slack = all / 50 + 3_000_000;
    assert!(
        charged.abs_diff(work) <= slack,
        "{what}: {charged} ns were charged of {work} ns, of {all} ns in all"
    );
}
