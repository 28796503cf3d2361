//! Several sessions on one process.

use std::fs;
use std::io::Write as _;
use std::process::{ChildStdin, Stdio};

use serde_json::Value;

use crate::harness::job::{is_in_read, sleeps_of, stop, watches};
use crate::harness::{Job, Running, eventually, report, workload};

/// A process for which a task begins with each byte that it reads.
pub struct ByteReader {
    running: Running,
    stdin: ChildStdin,
}

const TASKS: u64 = 20;
/// The name of the loss of a second watch.
const OTHER_SESSION: &str = "threads whose tasks with deadlines another session follows";

impl ByteReader {
    pub fn new() -> Self {
        Self::of("calls-on-input 1")
    }

    fn of(program: &str) -> Self {
        let mut job = Job::of(workload(program));
        job.command.stdin(Stdio::piped());
        let mut running = job.start();
        let stdin = running.stdin();
        Self { running, stdin }
    }

    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    fn begin_tasks(&mut self) {
        let pid = self.pid();
        for _ in 0..TASKS {
            eventually("its read", || is_in_read(pid));
            let before = sleeps_of(pid);
            self.stdin.write_all(b".").expect("it reads");
            eventually("its next read", || sleeps_of(pid) > before && is_in_read(pid));
        }
    }

    /// Starts a session on it, which is there when this returns.
    fn session(&self, command: &str) -> Running {
        let job = match command {
            "lens" => Job::lens(&format!("-p {}", self.pid())),
            _ => self.watch(""),
        };
        let session = job.start();
        watches(&session);
        session
    }

    /// A watch of it, whose file of rules begins with these lines.
    pub fn watch(&self, lines: &str) -> Job {
        let mut job = Job::watch_process(self.pid());
        let rules = job.path("rules.toml");
        let rule = "[[rule]]\nname = \"byte\"\ncalls = \"read\"\ndescriptor = \"pipe\"\n";
        fs::write(&rules, format!("{lines}{rule}")).expect("the folder is ours");
        job.command.arg("--rules").arg(rules);
        job
    }

    pub fn end(self) {
        drop(self.stdin);
        self.running.finish().success();
    }
}

pub fn interrupted(session: Running) -> Value {
    session.signal(libc::SIGINT);
    session.finish().success().document("report")
}

fn tasks(document: &Value) -> u64 {
    let types = document["pace"]["types"].as_array().expect("an array").iter();
    types.map(|one| one["tasks"].as_u64().expect("a number")).sum()
}

/// The read during which the first session attached began earlier. It begins a task only if another
/// session that gates the whole machine had reported its begin.
#[track_caller]
fn has_tasks(document: &Value, expected: u64) {
    let tasks = tasks(document);
    assert!([expected - 1, expected].contains(&tasks), "{tasks} tasks, not {expected}");
}

#[test]
fn lens_leaves_tasks_to_the_watch() {
    let mut subject = ByteReader::new();
    let watch = subject.session("watch");
    subject.begin_tasks();
    let lens = subject.session("lens");
    subject.begin_tasks();
    interrupted(lens);
    subject.begin_tasks();
    let document = interrupted(watch);
    subject.end();
    report::none_lost(&document);
    has_tasks(&document, 3 * TASKS);
}

#[test]
fn first_watch_keeps_its_tasks() {
    let mut subject = ByteReader::new();
    let first = subject.session("watch");
    subject.begin_tasks();
    let second = subject.session("watch");
    subject.begin_tasks();
    let document = interrupted(first);
    report::none_lost(&document);
    has_tasks(&document, 2 * TASKS);
    // From now on, the second one follows the tasks.
    subject.begin_tasks();
    let document = interrupted(second);
    subject.end();
    assert_eq!(document["losses"][OTHER_SESSION], 1);
    assert_eq!(tasks(&document), TASKS);
}

#[test]
fn watch_begins_under_a_lens() {
    let mut subject = ByteReader::new();
    let lens = subject.session("lens");
    subject.begin_tasks();
    let watch = subject.session("watch");
    subject.begin_tasks();
    interrupted(lens);
    subject.begin_tasks();
    let document = interrupted(watch);
    subject.end();
    report::none_lost(&document);
    assert_eq!(tasks(&document), 2 * TASKS);
}

#[test]
fn names_that_are_not_read_in_time_are_lost() {
    // More than the buffer has room for (RING_BYTES in bpf/wire/gate.h).
    let mut subject = ByteReader::of("named-types 20000");
    let watch = subject.session("watch");
    stop(watch.pid());
    subject.stdin.write_all(b".").expect("it reads");
    subject.end();
    watch.signal(libc::SIGCONT);
    let document = watch.finish().success().document("report");
    let lost = &document["losses"]["names of types of tasks not reported (buffer full)"];
    assert!(lost.as_u64().is_some_and(|lost| lost > 0), "{}", document["losses"]);
}
