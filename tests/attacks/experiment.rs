//! One server's way through it: trained, used in another way, attacked without and with the guard.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::client::{Dice, many};
use crate::harness::job::folder;
use crate::harness::{eventually, tollgate};
use crate::timeline::{Moment, seconds, table};
use crate::up::{Program, Up};

/// The attack's effect is not there so long after it began.
const HELD_FOR: Duration = Duration::from_secs(60);
/// Without the guard it is there by then.
const UNGUARDED: Duration = Duration::from_secs(5);

/// Full holds would leave no time for the rest of the requests; and at 31 anomalies, the baseline would be training again.
const COUNT_HOLDS: &str = "--guard=enforce --delay-cap 1ms --anomaly-limit 1000000";
/// A guarded server answers by then, or is held.
const START_LIMIT: Duration = Duration::from_secs(20);
const STARTS: usize = 5;
/// It also learns what holds make it do.
const LEARN: &str = "--guard=learn --rehearse 50ms";
const EVENTS: usize = 4;
const FALSE_ALARMS_SHOWN: usize = 4;
const HOLDS_SHOWN: usize = 20;
/// Of a million calls of normal use. The worst server of docs/attacks.md has a fifth of it; the goal is none.
const MOST_UNUSUAL: f64 = 5000.0;
/// The shortest, of the first anomaly: twice the default factor (pH's).
pub const ONE_HOLD: Duration = Duration::from_millis(80);
/// How exactly it is known when an attack began.
const EXACTLY: Duration = Duration::from_millis(20);

/// Script A.
pub struct Training {
    /// Starts of the server, each with dice of its own.
    pub times: u64,
    pub rounds: u64,
    pub most_clients: usize,
    /// In a round, of all clients.
    pub requests: usize,
    /// Requests on one connection.
    pub longest: usize,
}

pub trait Server: Sync {
    const NAME: &'static str;
    const TRAINING: Training;

    /// What is done to it, in words.
    fn attack_in_words(&self) -> &'static str;
    /// In the order in which they start.
    fn programs(&self) -> Vec<Program>;
    fn is_ready(&self) -> bool;
    /// Before each start.
    fn prepare(&self) {}
    /// What it is to be used for, on connections for up to `longest` requests each.
    fn requests(&self, dice: &mut Dice, count: usize, longest: usize);
    /// One of four things that happen to a server beside.
    fn event(&self, up: &Up, number: usize);
    /// The same in another way: script B. How many requests that were.
    fn use_normally(&self, up: &Up) -> usize;
    /// Returns when the server answers, or is gone.
    fn attack(&self);
    /// The file that the attack makes.
    fn effect(&self) -> PathBuf;
}

pub struct Experiment<S> {
    pub server: S,
    store: TempDir,
}

/// What the guard saw of one that was attacked.
pub struct Attacked {
    /// When the attack had its effect.
    pub took: Option<Duration>,
    pub moments: Vec<Moment>,
}

impl<S: Server> Experiment<S> {
    /// The server is trained.
    pub fn new(server: S) -> Self {
        let it = Self { server, store: folder() };
        it.train();
        it
    }

    /// Normal use is counted, and the attack is held.
    pub fn is_held(&self) {
        let unusual = self.use_normally();
        assert!(unusual < MOST_UNUSUAL, "{unusual} of a million calls were unusual in normal use");
        self.attack_unguarded();
        let attacked = self.attack_guarded("--guard=enforce", HELD_FOR);
        assert!(attacked.took.is_none(), "the attack's effect is there after {:?}", attacked.took);
        let is_hold = |moment: &Moment| moment.action == "delay" && moment.held >= ONE_HOLD;
        assert!(attacked.moments.iter().any(is_hold), "it was held by something else than the guard");
    }

    pub fn tell(&self, text: &str) {
        for line in text.lines() {
            eprintln!("{:<9} {line}", S::NAME);
        }
    }

    fn start(&self, options: Option<&str>) -> Up {
        self.start_with(options, self.store.path())
    }

    /// With what was learned, whatever happens to it. False alarms may hold it before it answers at all.
    fn start_guarded(&self, options: &str) -> (Up, TempDir) {
        for _ in 0..STARTS {
            let store = self.copy_of_store();
            let up = self.begin(Some(options), store.path());
            let began = Instant::now();
            while began.elapsed() < START_LIMIT {
                if self.server.is_ready() {
                    return (up, store);
                }
                thread::sleep(Duration::from_millis(10));
            }
            let alarms = sum(&self.ours(&up.kill().1), "anomalies");
            self.tell(&format!("its start was held by {alarms} false alarms, and is tried again"));
        }
        panic!("false alarms held each of {STARTS} starts for {START_LIMIT:?}");
    }

    fn begin(&self, options: Option<&str>, store: &Path) -> Up {
        assert!(!self.server.is_ready(), "something of the server before is left");
        self.server.prepare();
        Up::start(self.server.programs(), options.map(|options| (options, store)))
    }

    fn start_with(&self, options: Option<&str>, store: &Path) -> Up {
        let up = self.begin(options, store);
        eventually("the server's first answer", || {
            assert!(!up.is_over(), "it ended: {}", up.complaints());
            self.server.is_ready()
        });
        up
    }

    fn train(&self) {
        let began = Instant::now();
        let mut calls = 0;
        for seed in 0..S::TRAINING.times {
            let up = self.start(Some(LEARN));
            self.rounds(&up, seed);
            calls += sum(&self.ours(&up.end()), "calls");
        }
        self.tell(&format!("learned from {calls} calls in {}", seconds(began.elapsed())));
        self.normalize();
    }

    fn rounds(&self, up: &Up, seed: u64) {
        let Training { rounds, most_clients, requests, longest, .. } = S::TRAINING;
        let mut dice = Dice::new(seed);
        for round in 0..rounds {
            let event = dice.below(EVENTS);
            many(
                1 + dice.below(most_clients),
                requests,
                100 * seed + round,
                |dice, count| self.server.requests(dice, count, longest),
                || self.server.event(up, event),
            );
            self.server.event(up, dice.below(EVENTS));
        }
    }

    /// The attack is made so many times while the server learns.
    pub fn learn_attack(&self, times: usize) {
        let up = self.start(Some(LEARN));
        (0..times).for_each(|_| self.server.attack());
        up.end();
        self.normalize();
    }

    /// What its programs have learned is normal.
    fn normalize(&self) {
        for program in self.server.programs() {
            let mut command = Command::new(tollgate());
            command.args(["guard", "normalize"]).arg(program.file()).arg("--store").arg(self.store.path());
            let done = command.output().expect("it starts");
            assert!(done.status.success(), "{done:?}");
            self.tell(&format!("  {}", String::from_utf8_lossy(&done.stdout).trim_end()));
        }
    }

    fn copy_of_store(&self) -> TempDir {
        let copy = folder();
        for entry in fs::read_dir(self.store.path()).expect("it is ours").flatten() {
            fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("it can be copied");
        }
        copy
    }

    /// Tells what of it is unusual and held. Returns how many of a million calls are unusual.
    fn use_normally(&self) -> f64 {
        let began = Instant::now();
        // Too many false alarms, and the server would be in training again.
        let store = self.copy_of_store();
        let up = self.start_with(Some(COUNT_HOLDS), store.path());
        let requests = self.server.use_normally(&up);
        let reports = up.end();
        let took = began.elapsed();
        let ours = self.ours(&reports);
        let [calls, anomalies, holds] = ["calls", "anomalies", "holds"].map(|figure| sum(&ours, figure));
        let per_million = |count: u64| count as f64 * 1e6 / calls as f64;
        self.tell(&format!(
            "normal use by another script: {requests} requests, {calls} calls in {}; a million of them have \
             {:.0} unusual ones ({anomalies} in all) and {:.0} holds ({holds})",
            seconds(took),
            per_million(anomalies),
            per_million(holds),
        ));
        self.tell(&table(&moments(&reports, None), FALSE_ALARMS_SHOWN));
        per_million(anomalies)
    }

    /// How long it takes without the guard.
    pub fn attack_unguarded(&self) -> Duration {
        let up = self.start(None);
        let took = self.attack(up, UNGUARDED).0;
        let took = took.expect("the attack works where nothing is guarded");
        fs::remove_file(self.server.effect()).expect("it is there");
        self.tell(&format!("attack: {}", self.server.attack_in_words()));
        self.tell(&format!(
            "without the guard\n    0 ms  it begins\n{:>8}  its effect is there",
            seconds(took)
        ));
        took
    }

    pub fn attack_guarded(&self, options: &str, limit: Duration) -> Attacked {
        let (up, _store) = self.start_guarded(options);
        self.tell(&format!("with {options}: it is attacked, and looked at for {}", seconds(limit)));
        let (took, reports, end) = self.attack(up, limit);
        let moments = moments(&reports, Some(end));
        let (before, moments): (Vec<_>, Vec<_>) =
            moments.into_iter().partition(|moment| moment.at < -(EXACTLY.as_nanos() as i64));
        self.tell(&format!(
            "with {options}\n    0 ms  it begins; {} events before it were false alarms",
            before.len()
        ));
        self.tell(&table(&moments, HOLDS_SHOWN));
        self.tell(&match took {
            Some(took) => format!("{:>8}  its effect is there", seconds(took)),
            None => format!("{:>8}  its effect is not there, and the server is killed", seconds(end)),
        });
        Attacked { took, moments }
    }

    /// When its effect was there; what the guard reports; when the server was killed.
    fn attack(&self, up: Up, limit: Duration) -> (Option<Duration>, Vec<Value>, Duration) {
        let began = Instant::now();
        let effect = self.server.effect();
        thread::scope(|scope| {
            scope.spawn(|| self.server.attack());
            while began.elapsed() < limit && !effect.exists() {
                thread::sleep(Duration::from_micros(200));
            }
            let took = effect.exists().then(|| began.elapsed());
            let (killed, reports) = up.kill();
            (took, reports, killed - began)
        })
    }

    /// Of what the guard saw, the server's own programs.
    fn ours<'a>(&self, reports: &'a [Value]) -> Vec<&'a Value> {
        let files: Vec<_> = self.server.programs().iter().map(Program::file).collect();
        let programs =
            reports.iter().flat_map(|report| report["guard"]["programs"].as_array().expect("programs"));
        let is_ours = |program: &&Value| {
            files.iter().any(|file| Some(file.to_string_lossy().as_ref()) == program["path"].as_str())
        };
        programs.filter(is_ours).collect()
    }
}

fn sum(programs: &[&Value], figure: &str) -> u64 {
    programs.iter().map(|program| program[figure].as_u64().expect("a number")).sum()
}

/// The events of all reports in order; counted from `end` before their runs' ends, or from their beginnings.
fn moments(reports: &[Value], end: Option<Duration>) -> Vec<Moment> {
    let of = |report: &Value| {
        let elapsed = report["elapsed_ns"].as_i64().expect("a time");
        let before = end.map_or(0, |end| elapsed - end.as_nanos() as i64);
        let events = report["guard"]["events"].as_array().expect("events");
        events.iter().map(|event| Moment::of(event, before)).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = reports.iter().flat_map(of).collect();
    all.sort_by_key(|moment| moment.at);
    all
}
