//! Simulates how often intervals and verdicts are right. The simulation has blocks of five arms,
//! the order and the looks of the lab, and noise like that of machines. Seeds are fixed. The
//! ignored tests run more trials (`cargo test --release -p stats --test coverage -- --ignored`).

use std::f64::consts::TAU;

use stats::interval::median_interval;
use stats::order::{Quads, Random};
use stats::sequential::{MAX_QUADS, error_a_look, is_look, is_precise};
use stats::sign::p_value;

/// Generates the logarithms of the times of one machine's blocks, in order.
struct SimulatedMachine {
    noise: Noise,
    random: Random,
    state: f64,
    blocks: u32,
}

#[derive(Debug, Clone, Copy)]
enum Noise {
    Independent,
    /// AR(1) with a coefficient of 0.9.
    Correlated,
    /// One block in a hundred takes five times as long.
    Spikes,
    /// A slowdown of 10 % in 500 blocks, and a wave of 3 % with a period of 97 blocks.
    Drift,
}

const ALL: [Noise; 4] = [Noise::Independent, Noise::Correlated, Noise::Spikes, Noise::Drift];
const SPREAD: f64 = 0.02;
/// The number of arms, as in a run of the lab: off, A/A, injected, the floor and the configuration
/// under test. Only the first two are compared here.
const ARMS: usize = 5;

impl SimulatedMachine {
    fn new(noise: Noise, seed: u64) -> Self {
        Self { noise, random: Random::new(seed), state: 0.0, blocks: 0 }
    }

    /// Box and Muller, "A note on the generation of random normal deviates" (1958).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.random.unit()).ln()).sqrt();
        radius * (TAU * self.random.unit()).cos()
    }

    fn log_time(&mut self) -> f64 {
        self.blocks += 1;
        let fresh = SPREAD * self.normal();
        match self.noise {
            Noise::Independent => fresh,
            Noise::Correlated => {
                self.state = 0.9 * self.state + (1.0_f64 - 0.81).sqrt() * fresh;
                self.state
            }
            Noise::Spikes if self.random.below(100) == 0 => fresh + 5_f64.ln(),
            Noise::Spikes => fresh,
            Noise::Drift => {
                let blocks = f64::from(self.blocks);
                fresh + 0.1 * blocks / 500.0 + 0.03 * (TAU * blocks / 97.0).sin()
            }
        }
    }

    fn quad(&mut self, quads: &mut Quads, effect: f64) -> f64 {
        let mut sums = [0.0; ARMS];
        for arm in quads.next_quad() {
            sums[arm] += self.log_time() + if arm == 1 { effect } else { 0.0 };
        }
        (sums[1] - sums[0]) / 2.0
    }
}

/// The share of trials in which the 95 % interval, once narrow enough, covers an effect of 2 %.
fn coverage(noise: Noise, trials: u64) -> f64 {
    let effect = 1.02_f64.ln();
    let covers = |trial: &u64| {
        let (mut machine, mut quads) =
            (SimulatedMachine::new(noise, *trial), Quads::new(ARMS, !trial));
        let mut logs = Vec::new();
        while logs.len() < MAX_QUADS {
            logs.push(machine.quad(&mut quads, effect));
            if is_look(logs.len()) && is_precise(&logs, 0.005, 0.95) {
                break;
            }
        }
        let interval = median_interval(&logs, 0.95).expect("samples");
        interval.low <= effect && effect <= interval.high
    };
    (0..trials).filter(covers).count() as f64 / trials as f64
}

/// The share of trials without a difference in which a look finds one.
fn false_alarms(noise: Noise, trials: u64, most: usize) -> f64 {
    let alarm = |trial: &u64| {
        let (mut machine, mut quads) =
            (SimulatedMachine::new(noise, *trial), Quads::new(ARMS, !trial));
        let mut logs = Vec::new();
        while logs.len() < most {
            logs.push(machine.quad(&mut quads, 0.0));
            if is_look(logs.len()) && p_value(&logs, 0.0) <= error_a_look(0.05) {
                return true;
            }
        }
        false
    };
    (0..trials).filter(alarm).count() as f64 / trials as f64
}

/// Four standard errors of a share near 95 % in this number of trials.
fn slack(trials: u64) -> f64 {
    4.0 * (0.95 * 0.05 / trials as f64).sqrt()
}

#[test]
fn intervals_cover_as_often_as_they_say() {
    const TRIALS: u64 = 1000;
    for noise in ALL {
        let share = coverage(noise, TRIALS);
        assert!(
            (0.94 - slack(TRIALS)..=0.97 + slack(TRIALS) / 2.0).contains(&share),
            "{noise:?}: {share}"
        );
    }
}

#[test]
fn looks_do_not_raise_false_alarms() {
    for noise in ALL {
        let share = false_alarms(noise, 300, 192);
        assert!(share <= 0.05, "{noise:?}: {share}");
    }
}

#[test]
#[ignore = "long: make bench"]
fn intervals_cover_94_to_97_per_cent() {
    for noise in ALL {
        let share = coverage(noise, 20_000);
        println!("{noise:?}: intervals of 95 % cover {:.2} %", share * 100.0);
        assert!((0.94..=0.97).contains(&share), "{noise:?}: {share}");
    }
}

#[test]
#[ignore = "long: make bench"]
fn false_alarms_stay_below_5_per_cent_at_all_looks() {
    for noise in ALL {
        let share = false_alarms(noise, 2_000, MAX_QUADS);
        println!("{noise:?}: {:.2} % false alarms", share * 100.0);
        assert!(share <= 0.05, "{noise:?}: {share}");
    }
}
