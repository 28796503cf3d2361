//! One server's way through it: trained, used in another way, attacked without and with the guard.

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::job::folder;
use crate::harness::{eventually, tollgate};
use crate::up::{Program, Up};

/// The attack's effect is not there so long after it began.
const HELD_FOR: Duration = Duration::from_secs(60);
/// Without the guard it is there by then.
const UNGUARDED: Duration = Duration::from_secs(5);
const EVENTS_SHOWN: usize = 12;

pub trait Server: Sync {
    const NAME: &'static str;
    const ATTACK: &'static str;
    /// How often it is trained.
    const TRAININGS: u64;

    /// In the order in which they start.
    fn programs(&self) -> Vec<Program>;
    fn is_ready(&self) -> bool;
    /// What it is to be used for: script A, between a start and an end of the server; each time with another seed.
    fn train(&self, up: &Up, seed: u64);
    /// The same in another way: script B. How many requests that were.
    fn use_normally(&self, up: &Up) -> usize;
    /// Returns when the server answers, or is gone.
    fn attack(&self);
    /// The file that the attack makes.
    fn effect(&self) -> PathBuf;
}

pub struct Experiment<S> {
    server: S,
    store: tempfile::TempDir,
}

impl<S: Server> Experiment<S> {
    pub fn new(server: S) -> Self {
        Self { server, store: folder() }
    }

    fn tell(&self, text: &str) {
        eprintln!("{:<10} {text}", S::NAME);
    }

    fn start(&self, options: Option<&str>) -> Up {
        let up = Up::start(self.server.programs(), options.map(|options| (options, self.store.path())));
        eventually("the server's first answer", || {
            assert!(!up.is_over(), "it ended: {}", up.complaints());
            self.server.is_ready()
        });
        up
    }

    pub fn all(&self) {
        self.train();
        self.use_normally(&std::env::var("MODE").unwrap_or("--guard=watch".into()));
        if std::env::var("SHORT").is_ok() { return }
        self.attack_unguarded();
        self.attack_guarded("--guard=enforce");
    }

    pub fn train(&self) {
        let began = Instant::now();
        let mut calls = 0;
        for seed in 0..S::TRAININGS {
            let up = self.start(Some("--guard=learn"));
            self.server.train(&up, seed);
            calls += sum(&self.ours(&up.end()), "calls");
        }
        for program in self.server.programs() {
            let mut command = Command::new(tollgate());
            command.args(["guard", "normalize"]).arg(program.file()).arg("--store").arg(self.store.path());
            let done = command.output().expect("it starts");
            assert!(done.status.success(), "{done:?}");
            self.tell(&format!("  {}", String::from_utf8_lossy(&done.stdout).trim_end()));
        }
        self.tell(&format!("learned from {calls} calls in {:.1} s", began.elapsed().as_secs_f64()));
    }

    pub fn use_normally(&self, options: &str) {
        let began = Instant::now();
        let up = self.start(Some(options));
        let requests = self.server.use_normally(&up);
        let reports = up.end();
        let ours = self.ours(&reports);
        let (calls, holds, anomalies) = (sum(&ours, "calls"), sum(&ours, "holds"), sum(&ours, "anomalies"));
        self.tell(&format!(
            "normal use, another script: {requests} requests in {:.1} s, {calls} calls, {anomalies} anomalies, {holds} holds: {:.1} holds per million calls",
            began.elapsed().as_secs_f64(),
            holds as f64 * 1e6 / calls as f64,
        ));
        for event in events(&reports).filter(|event| event["mismatches"].as_u64() > Some(0)) {
            self.tell(&format!("    {}", in_words(event)));
        }
    }

    pub fn attack_unguarded(&self) {
        let up = self.start(None);
        let began = Instant::now();
        let took = thread::scope(|scope| {
            scope.spawn(|| self.server.attack());
            let took = self.effect_within(began, UNGUARDED);
            up.kill();
            took
        });
        let took = took.expect("the attack works where nothing is guarded");
        self.tell(&format!("attacked without guard: its effect is there after {:.2} ms", took.as_secs_f64() * 1e3));
        std::fs::remove_file(self.server.effect()).expect("it is there");
    }

    pub fn attack_guarded(&self, options: &str) {
        let up = self.start(Some(options));
        let began = Instant::now();
        let (took, reports) = thread::scope(|scope| {
            scope.spawn(|| self.server.attack());
            let took = self.effect_within(began, HELD_FOR);
            (took, up.kill())
        });
        self.tell(&format!("attacked with guard: {took:?}"));
        for event in events(&reports).take(EVENTS_SHOWN) {
            self.tell(&format!("    {}", in_words(event)));
        }
        self.tell(&format!("    {} events", events(&reports).count()));
        assert!(took.is_none(), "the attack's effect is there after {took:?}");
    }

    /// When it was there, if it was.
    fn effect_within(&self, began: Instant, limit: Duration) -> Option<Duration> {
        let effect = self.server.effect();
        while began.elapsed() < limit {
            if effect.exists() {
                return Some(began.elapsed());
            }
            thread::sleep(Duration::from_micros(200));
        }
        None
    }

    /// Of what the guard saw, the server's own programs.
    fn ours<'a>(&self, reports: &'a [Value]) -> Vec<&'a Value> {
        let files: Vec<_> = self.server.programs().iter().map(Program::file).collect();
        let programs = reports.iter().flat_map(|report| report["programs"].as_array().expect("programs"));
        let is_ours = |program: &&Value| {
            files.iter().any(|file| Some(file.to_string_lossy().as_ref()) == program["path"].as_str())
        };
        programs.filter(is_ours).collect()
    }
}

fn sum(programs: &[&Value], figure: &str) -> u64 {
    programs.iter().map(|program| program[figure].as_u64().expect("a number")).sum()
}

fn events(reports: &[Value]) -> impl Iterator<Item = &Value> {
    reports.iter().flat_map(|report| report["events"].as_array().expect("events"))
}

fn in_words(event: &Value) -> String {
    let sequence: Vec<_> =
        event["sequence"].as_array().expect("calls").iter().filter_map(Value::as_str).collect();
    format!(
        "{:>8.1} ms {} {}: {} LFC {} held {:.1} s, {} mismatches",
        event["at_ns"].as_f64().unwrap_or_default() / 1e6,
        event["command"],
        event["tid"],
        sequence.join(" "),
        event["lfc"],
        event["held_ns"].as_f64().unwrap_or_default() / 1e9,
        event["mismatches"],
    )
}
