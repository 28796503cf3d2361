//! Decides when a benchmark is precise enough, by looks at its measurements after fixed numbers of
//! quads. runner.rs ends a run whose time is used up, and a benchmark whose time is below the
//! noise.

use stats::interval::median_interval;
use stats::sequential::{MAX_QUADS, is_look, is_precise, rightspeed};

use super::analysis::{BlockPair, CONFIDENCE, StoppedBy, can_detect_injection, differences};
use super::arguments::StopRule;
use super::measured::Measured;
use super::plan::{AA, BASE, INJECTED, Plan};
use super::progress::LeastPrecise;

/// The maximum number of quads of a run.
pub fn max_quads(stop: StopRule) -> usize {
    match stop {
        StopRule::Precision => MAX_QUADS,
        // RightSpeed counts each block of an arm as a run, and a quad has two blocks of each arm.
        StopRule::Rightspeed => rightspeed::RUNS / 2,
    }
}

impl Plan {
    /// Closes the benchmarks whose rows are as precise as requested and whose controls are
    /// conclusive.
    pub fn interim_look(&self, quads: usize, measured: &mut Measured) {
        if self.stop == StopRule::Precision && !is_look(quads) {
            return;
        }
        for index in measured.open() {
            let times = &measured.times[index];
            let is_precise = |arm: usize| match self.stop {
                StopRule::Precision => is_precise(
                    &differences(&times[arm], &times[BASE]).logs,
                    self.precision,
                    CONFIDENCE,
                ),
                StopRule::Rightspeed => rightspeed::is_mean_precise(&runs(&times[arm])),
            };
            // The base is not compared with anything, but RightSpeed's rule applies to each arm by
            // itself.
            let first = if self.stop == StopRule::Precision { AA } else { BASE };
            let are_controls_conclusive = || {
                let injected = differences(&times[INJECTED], &times[BASE]).logs;
                self.stop == StopRule::Rightspeed
                    || can_detect_injection(&injected, 2 * self.benchmarks.len())
            };
            if (first..self.arms.len()).all(is_precise) && are_controls_conclusive() {
                measured.stopped_by[index] = Some(StoppedBy::Precision);
            }
        }
    }

    /// The least precise row of the open benchmarks.
    pub fn widest(&self, measured: &Measured) -> Option<LeastPrecise> {
        let mut widest: Option<LeastPrecise> = None;
        for index in measured.open() {
            let placed = &self.benchmarks[index];
            let times = &measured.times[index];
            for arm in AA..self.arms.len() {
                let logs = differences(&times[arm], &times[BASE]).logs;
                let Some(interval) = median_interval(&logs, CONFIDENCE) else {
                    continue;
                };
                let half = (interval.high - interval.low) / 2.0;
                if widest.as_ref().is_none_or(|(_, _, most)| half > *most) {
                    widest = Some((placed.name.to_string(), self.arms[arm].name.to_string(), half));
                }
            }
        }
        widest
    }
}

/// The means of an arm's blocks.
fn runs(pairs: &[BlockPair]) -> Vec<f64> {
    pairs.iter().flatten().map(|time| time.mean).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::analysis::BlockTime;
    use super::super::arms::{Arm, ArmKind};
    use super::*;

    #[test]
    fn look_leaves_benchmarks_that_have_ended() {
        let plan = Plan {
            arms: ["off", "aa", "injected"].map(|name| Arm::new(name, ArmKind::Off)).into(),
            benchmarks: Vec::new(),
            stop: StopRule::Precision,
            precision: 0.01,
            settle: Duration::ZERO,
            budget: Duration::ZERO,
            seed: 1,
        };
        let quads = 12;
        assert!(is_look(quads));
        let pair = |ns| [BlockTime::of(&[ns]), BlockTime::of(&[ns])];
        let times = [100.0, 100.0, 102.0].map(|ns| vec![pair(ns); quads]);
        let mut measured = Measured {
            times: vec![times.to_vec(); 2],
            stopped_by: vec![None, Some(StoppedBy::Noise)],
            ..Measured::default()
        };
        plan.interim_look(quads, &mut measured);
        assert_eq!(measured.stopped_by, [Some(StoppedBy::Precision), Some(StoppedBy::Noise)]);
    }
}
