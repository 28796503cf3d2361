//! The experiment with one server: the server is trained, used in another way, and attacked without
//! and with the guard.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::client::{Rng, many};
use crate::harness::job::folder;
use crate::harness::{eventually, tollgate};
use crate::timeline::{TimelineEvent, seconds, table};
use crate::up::{RunningServers, ServerProgram};

/// The attack must have no effect for this long after its start.
const HELD_FOR: Duration = Duration::from_secs(60);
/// Time within which the attack succeeds without the guard.
const UNGUARDED: Duration = Duration::from_secs(5);

/// Full holds would leave no time for the other requests, and after 31 anomalies the baseline would
/// return to training.
const COUNT_HOLDS: &str = "--guard=enforce --delay-cap 1ms --anomaly-limit 1000000";
/// A guarded server that does not reply within this time is held.
const START_LIMIT: Duration = Duration::from_secs(20);
const STARTS: usize = 5;
/// The server also learns how it behaves after a stop.
const LEARN: &str = "--guard=learn --train-on-stops 50ms";
const EVENTS: usize = 4;
const FALSE_ALARMS_SHOWN: usize = 4;
const HOLDS_SHOWN: usize = 20;
/// Limit of anomalies in a million calls of normal use. The worst server in docs/attacks.md has a
/// fifth of it; the goal is none.
const MAX_ANOMALIES_PER_MILLION: f64 = 5000.0;
/// The shortest hold, at the first anomaly: twice the default factor (pH's).
pub const ONE_HOLD: Duration = Duration::from_millis(80);
/// The accuracy of the attack's start in the timeline.
const EXACTLY: Duration = Duration::from_millis(20);

/// Script A.
pub struct Training {
    /// Starts of the server, each with its own random numbers.
    pub times: u64,
    pub rounds: u64,
    pub most_clients: usize,
    /// Requests of all clients in a round.
    pub requests: usize,
    /// Requests on one connection.
    pub longest: usize,
}

pub trait AttackedServer: Sync {
    const NAME: &'static str;
    const TRAINING: Training;

    /// A description of the attack.
    fn attack_description(&self) -> &'static str;
    /// The programs of the server, in the order in which they start.
    fn programs(&self) -> Vec<ServerProgram>;
    fn is_ready(&self) -> bool;
    /// Prepares the server's files before each start.
    fn prepare(&self) {}
    /// Makes `count` typical requests, up to `longest` over one connection.
    fn requests(&self, dice: &mut Rng, count: usize, longest: usize);
    /// Causes one of four events that happen to a server besides requests.
    fn event(&self, up: &RunningServers, number: usize);
    /// Uses the server in another way (script B), and returns the number of requests.
    fn use_normally(&self, up: &RunningServers) -> usize;
    /// Attacks; returns when the server replies or has ended.
    fn attack(&self);
    /// The file that a successful attack creates.
    fn effect(&self) -> PathBuf;
}

pub struct Experiment<S> {
    pub server: S,
    store: TempDir,
}

/// What the guard reported of an attacked server.
pub struct AttackResult {
    /// The time after which the attack had its effect.
    pub took: Option<Duration>,
    pub moments: Vec<TimelineEvent>,
}

impl<S: AttackedServer> Experiment<S> {
    /// Trains the server.
    pub fn new(server: S) -> Self {
        let it = Self { server, store: folder() };
        it.train();
        it
    }

    /// Counts anomalies in normal use, then checks that the guard holds the attack.
    pub fn is_held(&self) {
        let anomalies = self.use_normally();
        assert!(
            anomalies < MAX_ANOMALIES_PER_MILLION,
            "{anomalies} of a million calls were anomalous in normal use"
        );
        self.attack_unguarded();
        let attacked = self.attack_guarded("--guard=enforce", HELD_FOR);
        assert!(attacked.took.is_none(), "the attack's effect is there after {:?}", attacked.took);
        let is_hold = |moment: &TimelineEvent| moment.action == "delay" && moment.held >= ONE_HOLD;
        assert!(
            attacked.moments.iter().any(is_hold),
            "it was held by something else than the guard"
        );
    }

    pub fn print_line(&self, text: &str) {
        for line in text.lines() {
            eprintln!("{:<9} {line}", S::NAME);
        }
    }

    fn start(&self, options: Option<&str>) -> RunningServers {
        self.start_with(options, self.store.path())
    }

    /// Starts the server with a copy of the trained baselines, so that this run does not change
    /// them. Tries again if false alarms hold the server before its first reply.
    fn start_guarded(&self, options: &str) -> (RunningServers, TempDir) {
        for _ in 0..STARTS {
            let store = self.copy_of_store();
            let up = self.start_servers(Some(options), store.path());
            let began = Instant::now();
            while began.elapsed() < START_LIMIT {
                if self.server.is_ready() {
                    return (up, store);
                }
                thread::sleep(Duration::from_millis(10));
            }
            let alarms = sum(&self.server_reports(&up.kill().1), "anomalies");
            self.print_line(&format!(
                "its start was held by {alarms} false alarms, and is tried again"
            ));
        }
        panic!("false alarms held each of {STARTS} starts for {START_LIMIT:?}");
    }

    fn start_servers(&self, options: Option<&str>, store: &Path) -> RunningServers {
        assert!(!self.server.is_ready(), "something of the server before is left");
        self.server.prepare();
        RunningServers::start(self.server.programs(), options.map(|options| (options, store)))
    }

    fn start_with(&self, options: Option<&str>, store: &Path) -> RunningServers {
        let up = self.start_servers(options, store);
        eventually("the server's first reply", || {
            assert!(!up.is_over(), "it ended: {}", up.stderr_text());
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
            calls += sum(&self.server_reports(&up.end()), "calls");
        }
        self.print_line(&format!("learned from {calls} calls in {}", seconds(began.elapsed())));
        self.normalize();
    }

    fn rounds(&self, up: &RunningServers, seed: u64) {
        let Training { rounds, most_clients, requests, longest, .. } = S::TRAINING;
        let mut dice = Rng::new(seed);
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

    /// Attacks the server repeatedly while it learns.
    pub fn learn_attack(&self, times: usize) {
        let up = self.start(Some(LEARN));
        (0..times).for_each(|_| self.server.attack());
        up.end();
        self.normalize();
    }

    /// Makes the baselines of all its programs normal.
    fn normalize(&self) {
        for program in self.server.programs() {
            let mut command = Command::new(tollgate());
            command
                .args(["guard", "normalize"])
                .arg(program.file())
                .arg("--store")
                .arg(self.store.path());
            let done = command.output().expect("it starts");
            assert!(done.status.success(), "{done:?}");
            self.print_line(&format!("  {}", String::from_utf8_lossy(&done.stdout).trim_end()));
        }
    }

    fn copy_of_store(&self) -> TempDir {
        let copy = folder();
        for entry in fs::read_dir(self.store.path()).expect("it is ours").flatten() {
            fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("it can be copied");
        }
        copy
    }

    /// Prints how many calls were anomalous and held, and returns the number of anomalies in a
    /// million calls.
    fn use_normally(&self) -> f64 {
        let began = Instant::now();
        // After too many false alarms, the baselines in a store return to training, so this run
        // uses a copy.
        let store = self.copy_of_store();
        let up = self.start_with(Some(COUNT_HOLDS), store.path());
        let requests = self.server.use_normally(&up);
        let reports = up.end();
        let took = began.elapsed();
        let ours = self.server_reports(&reports);
        let [calls, anomalies, holds] = ["calls", "anomalies", "holds"].map(|key| sum(&ours, key));
        let per_million = |count: u64| count as f64 * 1e6 / calls as f64;
        self.print_line(&format!(
            "normal use by another script: {requests} requests, {calls} calls in {}; a million of \
            them have \
             {:.0} anomalous ones ({anomalies} in all) and {:.0} holds ({holds})",
            seconds(took),
            per_million(anomalies),
            per_million(holds),
        ));
        self.print_line(&table(&moments(&reports, None), FALSE_ALARMS_SHOWN));
        per_million(anomalies)
    }

    /// Returns how long the attack takes without the guard.
    pub fn attack_unguarded(&self) -> Duration {
        let up = self.start(None);
        let took = self.attack(up, UNGUARDED).0;
        let took = took.expect("the attack works where nothing is guarded");
        fs::remove_file(self.server.effect()).expect("it is there");
        self.print_line(&format!("attack: {}", self.server.attack_description()));
        self.print_line(&format!(
            "without the guard\n    0 ms  it begins\n{:>8}  its effect is there",
            seconds(took)
        ));
        took
    }

    pub fn attack_guarded(&self, options: &str, limit: Duration) -> AttackResult {
        let (up, _store) = self.start_guarded(options);
        self.print_line(&format!(
            "with {options}: it is attacked, and observed for {}",
            seconds(limit)
        ));
        let (took, reports, end) = self.attack(up, limit);
        let moments = moments(&reports, Some(end));
        let (before, moments): (Vec<_>, Vec<_>) =
            moments.into_iter().partition(|moment| moment.at < -(EXACTLY.as_nanos() as i64));
        self.print_line(&format!(
            "with {options}\n    0 ms  it begins; {} events before it were false alarms",
            before.len()
        ));
        self.print_line(&table(&moments, HOLDS_SHOWN));
        self.print_line(&match took {
            Some(took) => format!("{:>8}  its effect is there", seconds(took)),
            None => {
                format!("{:>8}  its effect is not there, and the server is killed", seconds(end))
            }
        });
        AttackResult { took, moments }
    }

    /// Returns when the attack had its effect, the guard's reports, and when the server was killed.
    fn attack(
        &self,
        up: RunningServers,
        limit: Duration,
    ) -> (Option<Duration>, Vec<Value>, Duration) {
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

    /// Selects the server's own programs from the guard's reports.
    fn server_reports<'a>(&self, reports: &'a [Value]) -> Vec<&'a Value> {
        let files: Vec<_> = self.server.programs().iter().map(ServerProgram::file).collect();
        let programs = reports
            .iter()
            .flat_map(|report| report["guard"]["programs"].as_array().expect("programs"));
        let is_ours = |program: &&Value| {
            files
                .iter()
                .any(|file| Some(file.to_string_lossy().as_ref()) == program["path"].as_str())
        };
        programs.filter(is_ours).collect()
    }
}

fn sum(programs: &[&Value], key: &str) -> u64 {
    programs.iter().map(|program| program[key].as_u64().expect("a number")).sum()
}

/// Returns the events of all reports in order of time. With `end`, times count from that long
/// before the end of each run, otherwise from its start.
fn moments(reports: &[Value], end: Option<Duration>) -> Vec<TimelineEvent> {
    let of = |report: &Value| {
        let elapsed = report["elapsed_ns"].as_i64().expect("a time");
        let before = end.map_or(0, |end| elapsed - end.as_nanos() as i64);
        let events = report["guard"]["events"].as_array().expect("events");
        events.iter().map(|event| TimelineEvent::of(event, before)).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = reports.iter().flat_map(of).collect();
    all.sort_by_key(|moment| moment.at);
    all
}
