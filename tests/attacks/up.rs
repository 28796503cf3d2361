//! A running server: each of its programs runs under a Tollgate of its own, or without one.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::job::{children, kill};
use crate::harness::{Finished, Job, Running, eventually};

/// How long to wait for the end of a server before the signal is sent again.
const RESEND_INTERVAL: Duration = Duration::from_secs(1);

/// One program of a server.
pub struct ServerProgram {
    /// The name of its process.
    pub name: &'static str,
    pub command: Vec<OsString>,
    pub environment: Vec<(&'static str, OsString)>,
    /// The signal for an orderly shutdown.
    pub end: i32,
}

impl ServerProgram {
    /// The path by which the kernel and the guard know the program.
    pub fn file(&self) -> PathBuf {
        Path::new(&self.command[0]).canonicalize().expect("it is there")
    }
}

pub struct RunningServers {
    running: Vec<(ServerProgram, Running)>,
    guarded: bool,
}

impl RunningServers {
    /// Starts the programs with these options and this store of the guard, or without Tollgate.
    pub fn start(programs: Vec<ServerProgram>, guard: Option<(&str, &Path)>) -> Self {
        let start = |program: ServerProgram| {
            let mut job = match guard {
                Some((options, _)) => Job::run(options, program.command.clone()),
                None => Job::of(program.command.clone()),
            };
            if let Some((_, store)) = guard {
                job.command.env("TOLLGATE_STORE", store);
            }
            job.command.envs(program.environment.clone());
            (program, job.start())
        };
        Self { running: programs.into_iter().map(start).collect(), guarded: guard.is_some() }
    }

    fn find(&self, name: &str) -> &(ServerProgram, Running) {
        self.running
            .iter()
            .find(|(program, _)| program.name == name)
            .expect("it is one of its programs")
    }

    /// The process that was started as this program.
    fn main_of(&self, (program, running): &(ServerProgram, Running)) -> u32 {
        if self.guarded { running.child_running(program.name) } else { running.pid() }
    }

    pub fn signal(&self, name: &str, signal: i32) {
        kill(self.main_of(self.find(name)) as i32, signal);
    }

    /// Ends the program's newest worker, which the program replaces.
    pub fn restart_worker(&self, name: &str, signal: i32) {
        let main = self.main_of(self.find(name));
        eventually("a worker", || {
            let worker = children(main).into_iter().max();
            worker.inspect(|worker| kill(*worker as i32, signal)).is_some()
        });
    }

    pub fn stderr_text(&self) -> String {
        self.running.iter().map(|(_, running)| running.read("err") + &running.read("out")).collect()
    }

    pub fn is_over(&self) -> bool {
        self.running.iter().any(|(_, running)| running.is_over())
    }

    /// Sends each program its signal to end, and returns the reports. A server that is about to
    /// wait for a client misses a signal, so it is sent again.
    pub fn end(self) -> Vec<Value> {
        let mains: Vec<_> = self.running.iter().map(|program| self.main_of(program)).collect();
        let mut next = Instant::now();
        eventually("the end of the servers", || {
            let mut running =
                self.running.iter().zip(&mains).filter(|((_, one), _)| !one.is_over());
            if Instant::now() < next {
                return running.next().is_none();
            }
            next = Instant::now() + RESEND_INTERVAL;
            running.map(|((program, _), main)| kill(*main as i32, program.end)).count() == 0
        });
        self.reports()
    }

    /// Kills all processes at once, including held ones. Returns when that was, and the reports.
    pub fn kill(self) -> (Instant, Vec<Value>) {
        let mut killed = Instant::now();
        for program in &self.running {
            let processes = stopped_tree(self.main_of(program));
            killed = Instant::now();
            processes.into_iter().for_each(|process| kill(process as i32, libc::SIGKILL));
        }
        (killed, self.reports())
    }

    fn reports(self) -> Vec<Value> {
        let guarded = self.guarded;
        let finished = self.running.into_iter().map(|(_, running)| running.finish());
        finished.filter(|_| guarded).map(|finished| report(&finished)).collect()
    }
}

fn report(finished: &Finished) -> Value {
    let text = fs::read_to_string(finished.path("report"));
    let text = text.unwrap_or_else(|error| panic!("no report: {error}; {}", finished.err));
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["losses"], serde_json::json!({}), "{}", finished.err);
    report
}

/// A process and its descendants.
fn tree(root: u32) -> Vec<u32> {
    let below = children(root).into_iter().flat_map(tree);
    [root].into_iter().chain(below).collect()
}

/// Stops a process and its descendants and returns them. A worker that ended just before is not
/// replaced then.
fn stopped_tree(root: u32) -> Vec<u32> {
    let mut before = Vec::new();
    loop {
        let now = tree(root);
        now.iter().for_each(|process| kill(*process as i32, libc::SIGSTOP));
        if now == before {
            return now;
        }
        before = now;
        thread::sleep(Duration::from_millis(2));
    }
}
