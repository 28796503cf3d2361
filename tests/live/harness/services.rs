//! A daemon with active services, of which a machine has only one, and programs that work for
//! tenants.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;

use super::job::{copy, folder};
use super::{Finished, Job, Running, eventually, tollgate, words, workloads};

/// Rules for two tenants, and a back end that works for either.
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

/// Services that are active until dropped.
pub struct ActiveServices {
    pub folder: TempDir,
    pub daemon: Running,
    alone: File,
}

/// The files of services that are no longer active. No other test's services can become active
/// until it is dropped.
pub struct EndedServices {
    folder: TempDir,
    _alone: File,
}

impl EndedServices {
    /// Allows services of other tests.
    pub fn into_folder(self) -> TempDir {
        self.folder
    }
}

/// The lock of the test whose services are active.
pub fn take_services_lock() -> File {
    let path = std::env::temp_dir().join("tollgate-test-services.lock");
    let lock = File::create(path).expect("a file for a lock");
    lock.lock().expect("a file can be locked");
    lock
}

/// Copies of programs for one test, which no other test's rules name.
pub fn programs(names: &[&str]) -> TempDir {
    let folder = folder();
    names.iter().for_each(|name| copy(&workloads(), &folder.path().join(name)));
    folder
}

impl ActiveServices {
    /// Starts services with these rules, in which FOLDER stands for the folder of the programs.
    #[track_caller]
    pub fn start(folder: TempDir, rules: &str) -> Self {
        let job = Self::job(folder.path());
        Self::start_by(job, folder, rules)
    }

    /// The same with a changed `job()`.
    #[track_caller]
    pub fn start_by(job: Job, folder: TempDir, rules: &str) -> Self {
        let alone = take_services_lock();
        write(folder.path(), "services.toml", rules);
        let daemon = job.start();
        let active = Self { folder, daemon, alone };
        eventually("the services", || {
            assert!(!active.daemon.is_over(), "{}", active.daemon.read("err"));
            active.daemon.read("err").contains(" are active")
        });
        active
    }

    pub fn job(folder: &Path) -> Job {
        let mut job = Job::from_command_line("daemon").with_row_lock_shared();
        job.command.arg("--services").arg(folder.join("services.toml"));
        job.command.env("TOLLGATE_SOCKET", folder.join("control"));
        job
    }

    /// Waits for the end of the daemon, for whatever reason it ends.
    pub fn end(self) -> EndedServices {
        self.daemon.finish();
        EndedServices { folder: self.folder, _alone: self.alone }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `tollgate service …`
    pub fn client_job(&self, arguments: &str) -> Job {
        let mut job = Job::of(vec![tollgate().into(), "service".into()]);
        job.command.args(words(arguments)).env("TOLLGATE_SOCKET", self.path("control"));
        job
    }

    #[track_caller]
    pub fn request(&self, arguments: &str) -> Finished {
        self.client_job(arguments).finish().success()
    }

    /// Activates other rules.
    #[track_caller]
    pub fn apply(&self, rules: &str) -> Finished {
        write(self.folder.path(), "services.toml", rules);
        self.request("apply")
    }

    pub fn report(&self) -> Value {
        self.request("report --json").json()
    }

    /// Returns one number of the report for each service.
    pub fn usage_by_service(&self, key: &str) -> BTreeMap<String, u64> {
        let report = self.report();
        let rows = report["services"].as_array().expect("services").iter();
        rows.map(|row| {
            (row["name"].as_str().expect("a name").into(), row[key].as_u64().expect("a number"))
        })
        .collect()
    }

    #[track_caller]
    pub fn explain(&self, pid: u32) -> Value {
        self.request(&format!("explain --json {pid}")).json()["threads"][0].clone()
    }

    #[track_caller]
    pub fn service_of(&self, pid: u32) -> String {
        self.explain(pid)["service"].as_str().expect("a name").into()
    }

    /// A command that runs one of the test's copies of a program.
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
    pub fn start(services: &ActiveServices, name: &str) -> Self {
        Self(services.program(&format!("{name} consumer")).start())
    }

    pub fn send(&mut self, order: &str) -> usize {
        let replies = self.0.read("out").lines().count();
        writeln!(self.0.input(), "{order}").expect("it listens");
        replies
    }

    #[track_caller]
    pub fn reply(&self, number: usize) -> String {
        eventually("a reply", || {
            let is_over = self.0.is_over();
            let is_there = self.0.read("out").lines().count() > number;
            assert!(is_there || !is_over, "{}", self.0.read("err"));
            is_there
        });
        self.0.read("out").lines().nth(number).expect("a reply").to_owned()
    }

    #[track_caller]
    pub fn request(&mut self, order: &str) -> String {
        let number = self.send(order);
        self.reply(number)
    }

    /// Returns how many it got, and the errno of the first failure.
    #[track_caller]
    pub fn request_counts(&mut self, order: &str) -> (u64, i32) {
        let reply = self.request(order);
        let (got, errno) = reply.split_once(' ').expect("two numbers");
        (got.parse().expect("a number"), errno.parse().expect("an errno"))
    }
}

/// A server that works for tenants (`workloads backend`).
pub struct Backend {
    pub running: Running,
    /// Its port, address, abstract name, or the path of its socket.
    pub endpoint: String,
}

impl Backend {
    /// Starts a back end. If the address is 0, it listens at a port; a plain word is a socket in
    /// the folder.
    #[track_caller]
    pub fn start(folder: &Path, name: &str, address: &str, options: &str) -> Self {
        let is_word = address.chars().all(char::is_alphabetic);
        let address =
            if is_word { folder.join(address).display().to_string() } else { address.into() };
        let running = program(folder, &format!("{name} backend {address} {options}")).start();
        eventually("the backend", || running.read("out").ends_with('\n'));
        let endpoint = running.read("out").trim().to_owned();
        Self { running, endpoint }
    }

    /// Starts a tenant that waits for a line before it begins.
    #[track_caller]
    pub fn tenant(&self, folder: &Path, name: &str, work: &str) -> Running {
        let tenant = program(folder, &format!("{name} tenant {} {work}", self.endpoint)).start();
        eventually("the tenant", || tenant.read("out").starts_with("ready"));
        tenant
    }

    /// Ends it, and returns how many nanoseconds it has worked for each tenant.
    #[track_caller]
    pub fn end(self, folder: &Path, name: &str) -> BTreeMap<String, u64> {
        finish_tenant(begin(self.tenant(folder, name, "z 0 1")));
        let said = self.running.finish().success().text();
        let lines = said.lines().skip(1).filter_map(|line| line.split_once(' '));
        lines.map(|(tag, ns)| (tag.into(), ns.parse().expect("a time"))).collect()
    }
}

pub fn begin(mut tenant: Running) -> Running {
    tenant.input().write_all(b"\n").expect("it waits");
    tenant
}

/// Waits until a tenant has done its work, and returns how many nanoseconds it has worked itself.
/// The tenant does not end yet.
#[track_caller]
pub fn own_work(tenant: &Running) -> u64 {
    eventually("the tenant's work", || tenant.read("out").lines().count() == 2);
    tenant.read("out").lines().nth(1).and_then(|line| line.parse().ok()).expect("its time")
}

#[track_caller]
pub fn finish_tenant(mut tenant: Running) {
    drop(tenant.stdin());
    tenant.finish().success();
}

/// Checks a charge to within 2 % of all tenants' work plus 3 ms, for the start and end of threads,
/// which no count includes.
#[track_caller]
pub fn assert_charged(what: &str, charged: u64, work: u64, all: u64) {
    let slack = all / 50 + 3_000_000;
    assert!(
        charged.abs_diff(work) <= slack,
        "{what}: {charged} ns were charged of {work} ns, of {all} ns in all"
    );
}
