//! kill -9 of the daemon, its warden, or both, at any moment: nobody stays held.

use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use stats::order::Random;

use crate::harness::bpf::abandoned_links;
use crate::harness::cgroup::ControlGroup;
use crate::harness::daemon::{Daemon, Servant};
use crate::harness::guarded::Guarded;
use crate::harness::job::{children, comm, kill, stop};
use crate::harness::{Job, Running, eventually, workload};

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Whom {
    Daemon,
    /// It is to have a successor; then the daemon is killed, too.
    Warden,
    /// At once; `tollgate guard off` is left to help.
    Both,
}

/// What the daemon is about then.
#[derive(Debug, Clone, Copy, PartialEq)]
enum While {
    Starting,
    HoldsBegin,
    Holding,
    Stopping,
}

const WHOM: [Whom; 3] = [Whom::Daemon, Whom::Warden, Whom::Both];
const WHILE: [While; 4] = [While::Starting, While::HoldsBegin, While::Holding, While::Stopping];
/// A process with this many BPF maps takes the kernel seconds to end on a busy machine.
const SHORT: Duration = Duration::from_secs(20);
/// For each victim: so it still makes unusual calls when its hold ends, and there is room for them in its pipe.
const PLENTY: usize = 10_000;

struct Range {
    it: Guarded,
    group: ControlGroup,
    victims: Vec<Servant>,
    random: Random,
    /// How long a daemon takes until it is at work.
    start: Duration,
    /// Rounds in which somebody was held when the shot fell.
    hits: usize,
}

fn wardens(daemon: u32) -> Vec<u32> {
    let is_warden = |pid: &u32| comm(*pid).as_deref() == Some("tollgate-warden");
    children(daemon).into_iter().filter(is_warden).collect()
}

impl Range {
    fn new(random: Random) -> Self {
        let it = Guarded::new();
        let group = ControlGroup::new();
        let daemon = Daemon::start(&it, &group, "--guard=watch");
        let mut victims: Vec<_> = [0, 4, 0].map(|threads| Servant::with_threads(&it, &group, threads)).into();
        eventually("they are learned", || {
            victims.iter_mut().for_each(|victim| victim.serve(&[b'u'; 1000]));
            daemon.program().is_some_and(|program| program["calls"].as_u64() > Some(20_000))
        });
        daemon.running.signal(libc::SIGTERM);
        daemon.running.finish().success();
        it.change("normalize");
        Self { it, group, victims, random, start: Duration::from_millis(300), hits: 0 }
    }

    fn some(&mut self, most: Duration) -> Duration {
        most.mul_f64(self.random.unit())
    }

    /// Until then they make unusual calls, as long as they are not held.
    #[track_caller]
    fn go_on_until(&mut self, what: &str, mut condition: impl FnMut(&mut Vec<Servant>) -> bool) {
        eventually(what, || {
            for victim in &mut self.victims {
                if victim.unanswered() < PLENTY / 2 {
                    victim.tell(&[b'x'; PLENTY]);
                }
            }
            condition(&mut self.victims)
        });
    }

    fn go_on_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        self.go_on_until("an end", |_| Instant::now() >= end);
    }

    fn daemon(&self) -> Daemon {
        // What they do now stays unusual, however often they do it.
        let options = "--guard=enforce --respond stop --anomaly-limit 4294967295";
        let mut job = Daemon::job_in(&self.it, &self.group, options);
        job.command.arg("--exe").arg(&self.it.program);
        Daemon::of(job.start(), &self.it)
    }

    fn comes_to(&mut self, then: While) -> Daemon {
        let (daemon, began) = (self.daemon(), Instant::now());
        if then == While::Starting {
            let time = self.some(self.start);
            self.go_on_for(time);
            return daemon;
        }
        eventually("the daemon", || daemon.is_at_work());
        self.start = began.elapsed();
        if then == While::HoldsBegin {
            let time = self.some(Duration::from_millis(20));
            self.go_on_for(time);
            return daemon;
        }
        self.go_on_until("the holds", |victims| victims.iter().all(Servant::is_stopped));
        let time = self.some(Duration::from_millis(200));
        self.go_on_for(time);
        if then == While::Stopping {
            daemon.running.signal(libc::SIGTERM);
            std::thread::sleep(self.some(Duration::from_millis(100)));
        }
        daemon
    }

    #[track_caller]
    fn round(&mut self, whom: Whom, then: While) {
        let daemon = self.comes_to(then);
        self.hits += usize::from(self.victims.iter().any(Servant::is_stopped));
        let pid = daemon.running.pid();
        // The gate's answer may be on its way.
        if self.random.unit() < 0.5 {
            self.victims.iter().for_each(|victim| kill(victim.pid() as i32, libc::SIGCONT));
        }
        match whom {
            Whom::Daemon => kill(pid as i32, libc::SIGKILL),
            Whom::Warden => {
                let first = wardens(pid);
                first.iter().for_each(|warden| kill(*warden as i32, libc::SIGKILL));
                // None is needed before it is at work, nor when it has ended.
                let is_at_work = daemon.running.read("err").contains("guarding ");
                eventually("a successor", || {
                    !is_at_work
                        || daemon.running.is_over()
                        || wardens(pid).iter().any(|warden| !first.contains(warden))
                });
                kill(pid as i32, libc::SIGKILL);
            }
            Whom::Both => {
                // So that there is no successor.
                stop(pid);
                wardens(pid).iter().for_each(|warden| kill(*warden as i32, libc::SIGKILL));
                kill(pid as i32, libc::SIGKILL);
            }
        }
        let off = daemon.ask_job("off --killed");
        drop(daemon.running.finish());
        if whom == Whom::Both {
            off.finish().success();
        }
        let began = Instant::now();
        let is_free = |victim: &mut Servant| victim.unanswered() == 0 && !victim.is_stopped();
        eventually("all run again", || {
            assert!(began.elapsed() < SHORT, "{whom:?} killed while {then:?}: somebody is held");
            self.victims.iter_mut().all(is_free)
        });
        self.victims.iter_mut().for_each(|victim| victim.serve(b"xuxuxu"));
        assert!(self.victims.iter_mut().all(is_free), "{whom:?} killed while {then:?}: somebody is held");
    }
}

/// Another session, for which the gate goes on when the daemon is dead.
fn keeper() -> Running {
    let keeper = Job::run("", workload("hang")).start();
    keeper.child_running("workloads");
    keeper
}

fn kill_at_random_moments(rounds: usize) {
    let seed = RandomState::new().hash_one(());
    println!("seed {seed}");
    let mut range = Range::new(Random::new(seed));
    let mut rest = Vec::new();
    let mut kept = None;
    for round in 0..rounds {
        if rest.is_empty() {
            rest = WHOM.iter().flat_map(|whom| WHILE.map(|then| (*whom, then))).collect();
            range.random.shuffle(&mut rest);
        }
        let (whom, then) = rest.pop().expect("just filled");
        if round % 10 == 0 {
            kept = (round % 20 == 10).then(keeper);
        }
        let began = Instant::now();
        range.round(whom, then);
        println!("{round}: {whom:?} while {then:?}, gate kept: {}, {:?}", kept.is_some(), began.elapsed());
    }
    println!("in {} of {rounds} rounds somebody was held then", range.hits);
    drop(kept);
    eventually("an end of all links", || abandoned_links().is_empty());
    // All that it was to wait for the holds in.
    assert!(range.hits >= rounds / 12 * 3, "only in {} of {rounds} rounds somebody was held", range.hits);
    for victim in range.victims {
        victim.end();
    }
}

/// In every other ten rounds the gate goes with its daemon, if no other test's Tollgate keeps it.
mod alone {
    use super::*;

    #[test]
    fn nobody_stays_held_when_daemon_or_warden_are_killed_at_20_random_moments() {
        kill_at_random_moments(20);
    }

    #[test]
    #[ignore = "takes minutes: make bench"]
    fn nobody_stays_held_when_daemon_or_warden_are_killed_at_200_random_moments() {
        kill_at_random_moments(200);
    }
}
