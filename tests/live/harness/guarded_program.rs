//! Programs with baselines, and the guard's reports about them.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use super::job::{copy, folder};
use super::report::none_lost;
use super::{Finished, Job, tollgate, words, workloads};

/// A copy of a program for one test, with its own store of baselines.
pub struct Guarded {
    pub folder: TempDir,
    pub program: PathBuf,
}

impl Guarded {
    pub fn new() -> Self {
        Self::named("guarded")
    }

    pub fn named(name: &str) -> Self {
        let folder = folder();
        let program = folder.path().join(name);
        copy(&workloads(), &program);
        Self { folder, program }
    }

    /// Creates a program with other content but the same behaviour.
    pub fn changed_copy(&self, name: &str) -> PathBuf {
        let (content, program) =
            (self.folder.path().join("content"), self.folder.path().join(name));
        let bytes = [&std::fs::read(&self.program).expect("a program"), name.as_bytes()].concat();
        std::fs::write(&content, bytes).expect("a file");
        copy(&content, &program);
        program
    }

    /// A plugin that makes this call anomalous, whatever the baseline.
    pub fn denouncing_plugin(&self, call: &str) -> PathBuf {
        let file = self.folder.path().join("denounce.ec");
        std::fs::write(&file, format!("on guard({call}) {{ return 1; }}\n")).expect("a file");
        file
    }

    pub fn job(&self, options: &str, command: &str) -> Job {
        let command: Vec<OsString> =
            [self.program.clone().into()].into_iter().chain(words(command)).collect();
        let mut job = Job::run(options, command);
        job.command.env("TOLLGATE_STORE", self.folder.path().join("store"));
        job
    }

    pub fn run(&self, options: &str, command: &str) -> GuardSection {
        GuardSection::of(&self.job(options, command).finish().success())
    }

    /// Creates a program with a normal baseline, learned from these commands.
    pub fn normal(commands: &[&str]) -> Self {
        let it = Self::new();
        for command in commands {
            it.run("--guard=learn", command);
        }
        it.run_transition("normalize");
        it
    }

    /// The output of `guard show` for each stored baseline.
    pub fn stored(&self) -> Vec<Value> {
        let mut show = Job::of(vec![tollgate().into()]);
        show.command
            .args(["guard", "show", "--json", "--store"])
            .arg(self.folder.path().join("store"));
        show.finish().success().json()["baselines"].as_array().expect("a list").clone()
    }

    pub fn run_transition(&self, verb: &str) {
        self.run_transition_on(verb, &self.program);
    }

    /// Runs a transition on a program, or on one of its scopes, named as on the command line.
    pub fn run_transition_on(&self, verb: &str, program: impl AsRef<OsStr>) {
        let mut command = std::process::Command::new(tollgate());
        command.args(["guard", verb]).arg(program);
        let done = command
            .env("TOLLGATE_STORE", self.folder.path().join("store"))
            .output()
            .expect("it starts");
        assert!(done.status.success(), "{done:?}");
    }
}

/// The guard's part of a report.
pub struct GuardSection(pub Value);

impl GuardSection {
    pub fn of(ran: &Finished) -> Self {
        let report = ran.document("report");
        none_lost(&report);
        Self(report["guard"].clone())
    }

    #[track_caller]
    pub fn program(&self) -> &Value {
        let programs = self.0["programs"].as_array().expect("programs");
        let mut found = programs
            .iter()
            .filter(|program| program["path"].as_str().expect("a path").ends_with("/guarded"));
        found.next().unwrap_or_else(|| panic!("it is not in {}", self.0))
    }

    /// Returns the only program in this scope, or without a scope.
    #[track_caller]
    pub fn in_scope(&self, scope: Option<&str>) -> &Value {
        let programs = self.0["programs"].as_array().expect("programs").iter();
        let found: Vec<_> = programs.filter(|program| program["scope"].as_str() == scope).collect();
        let [one] = found[..] else {
            panic!("{scope:?} has {} programs in {}", found.len(), self.0)
        };
        one
    }

    #[track_caller]
    pub fn number(&self, name: &str) -> u64 {
        self.program()[name].as_u64().unwrap_or_else(|| panic!("no {name} in {}", self.0))
    }

    pub fn events(&self) -> &Vec<Value> {
        self.0["events"].as_array().expect("events")
    }

    /// The calls that a plugin has denounced.
    pub fn denounced_calls(&self) -> Vec<&str> {
        let denounced = self.events().iter().filter(|event| event["is_denounced"] == true);
        denounced.map(|event| event["call"].as_str().expect("a name")).collect()
    }
}
