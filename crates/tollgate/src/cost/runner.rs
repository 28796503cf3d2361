//! The run: a pilot determines the counts, then quads of blocks are measured, with looks that
//! decide when to stop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kernel::benchmark::Benchmark;
use serde::{Deserialize, Serialize};
use stats::interval::{median, median_interval};
use stats::order::{Quads, Random};
use stats::sequential::{MAX_QUADS, is_look, is_precise, rightspeed};

use super::analysis::{
    ArmTimes, BlockPair, BlockTime, CONFIDENCE, StoppedBy, can_detect_injection, differences,
};
use super::arguments::StopRule;
use super::arms::Arm;
use super::block::{BlockResult, run_block};
use super::interleave::Interleave;
use super::progress::{LeastPrecise, Progress};
use super::worker::{TimedBenchmark, WorkerReply, WorkerRequest};

/// The indices of the arms that every run has.
pub const BASE: usize = 0;
pub const AA: usize = 1;
pub const INJECTED: usize = 2;

/// The injected time, as a fraction of the benchmark's own time.
pub const INJECTION: f64 = 0.02;

/// How long a benchmark's part of a block takes. With the slowest arm, it takes not much longer
/// than `MAX_DURATION`.
const TARGET_DURATION: Duration = Duration::from_millis(12);
const MAX_DURATION: Duration = Duration::from_millis(250);
const MIN_BATCHES: usize = 7;
const MAX_BATCHES: usize = 101;
const PILOT_BATCHES: usize = 7;

/// A benchmark in one placement.
#[derive(Clone)]
pub struct BenchmarkRun {
    pub name: Arc<str>,
    pub benchmark: &'static Benchmark,
    pub cpu: Option<usize>,
}

/// What a run measures, and when it stops.
pub struct Plan {
    /// Off, A/A and injected first.
    pub arms: Vec<Arm>,
    pub benchmarks: Vec<BenchmarkRun>,
    pub stop: StopRule,
    pub precision: f64,
    /// The minimum time between two workers.
    pub settle: Duration,
    pub budget: Duration,
    pub seed: u64,
}

/// The most quads of a run.
fn max_quads(stop: StopRule) -> usize {
    match stop {
        StopRule::Precision => MAX_QUADS,
        // A quad has two runs of each arm.
        StopRule::Rightspeed => rightspeed::RUNS / 2,
    }
}

/// Every batch of one benchmark in one block.
#[derive(Debug, Serialize, Deserialize)]
pub struct RawBlock {
    pub quad: usize,
    /// The position in the quad.
    #[serde(rename = "place")]
    pub position: usize,
    pub arm: Arc<str>,
    pub benchmark: Arc<str>,
    /// In nanoseconds per unit; the worker's own clock and loop, below, are subtracted already.
    pub ns: Vec<f64>,
    pub clock_ns: f64,
    pub loop_ns: f64,
    /// Nanoseconds per batch that the injected chain took; 0 without one.
    pub injected_ns: f64,
}

/// Counts that are the same for all arms.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BatchCounts {
    pub benchmark: String,
    pub units: u32,
    pub batches: usize,
    /// Steps of the injected chain per batch.
    pub spin: u64,
}

/// The measurements so far. The vectors are filled as the run proceeds.
#[derive(Default)]
pub struct Measured {
    pub counts: Vec<BatchCounts>,
    /// By benchmark and arm.
    pub times: Vec<ArmTimes>,
    /// By benchmark: the injected time relative to the benchmark's own, one value for each quad.
    pub injected: Vec<Vec<f64>>,
    /// By benchmark and preceding arm: log ratios of a base block to the other one of the quad.
    pub after: Vec<BTreeMap<String, Vec<f64>>>,
    pub stopped_by: Vec<Option<StoppedBy>>,
    /// By arm.
    pub losses: Vec<Option<u64>>,
    pub raw: Vec<RawBlock>,
    pub pace: Interleave,
    pub clock_ns: f64,
    pub loop_ns: f64,
    pub elapsed: Duration,
    pub was_interrupted: bool,
}

impl Plan {
    /// Runs the plan and fills `measured` on the way, so that after an error or an interrupt it has
    /// all that was measured before.
    pub fn run(
        &self,
        measured: &mut Measured,
        cancelled: &AtomicBool,
        progress: &mut Progress,
    ) -> Result<()> {
        let began = Instant::now();
        let result = self.measure(measured, began, cancelled, progress);
        measured.elapsed = began.elapsed();
        measured.was_interrupted = cancelled.load(Ordering::Relaxed);
        for stopped in measured.stopped_by.iter_mut().filter(|stopped| stopped.is_none()) {
            *stopped = Some(StoppedBy::Interrupt);
        }
        result
    }

    fn measure(
        &self,
        measured: &mut Measured,
        began: Instant,
        cancelled: &AtomicBool,
        progress: &mut Progress,
    ) -> Result<()> {
        let benchmarks = self.benchmarks.len();
        measured.times = vec![vec![Vec::new(); self.arms.len()]; benchmarks];
        measured.injected = vec![Vec::new(); benchmarks];
        measured.after = vec![BTreeMap::new(); benchmarks];
        measured.stopped_by = vec![None; benchmarks];
        measured.losses = vec![None; self.arms.len()];
        progress.show("finding the number of repetitions");
        let Some(counts) = self.pilot(measured, cancelled)? else { return Ok(()) };
        measured.counts = counts;
        let mut quads = Quads::new(self.arms.len(), self.seed);
        let mut random = Random::new(self.seed);
        let mut previous = BASE;
        let first = Instant::now();
        for quad in 0..max_quads(self.stop) {
            let open: Vec<_> =
                (0..benchmarks).filter(|index| measured.stopped_by[*index].is_none()).collect();
            if open.is_empty() {
                return Ok(());
            }
            // A quad that would exceed the budget is not started; at least one is measured in any
            // case.
            let a_quad = first.elapsed().checked_div(quad as u32).unwrap_or_default();
            if quad > 0 && began.elapsed() + a_quad > self.budget {
                stop(measured, &open, StoppedBy::Time);
                return Ok(());
            }
            let order = quads.next_quad();
            let Some(blocks) = self.quad(&order, &open, measured, &mut random, cancelled)? else {
                return Ok(());
            };
            self.record_quad(quad, &order, previous, &open, &blocks, measured);
            previous = order[order.len() - 1];
            self.interim_look(quad + 1, &open, measured);
            progress.quad(quad + 1, began.elapsed(), || self.widest(measured));
        }
        let open: Vec<_> =
            (0..benchmarks).filter(|index| measured.stopped_by[*index].is_none()).collect();
        stop(measured, &open, StoppedBy::Runs);
        Ok(())
    }

    /// Determines the units per batch with nothing on, and the batches per block with the slowest
    /// arm.
    fn pilot(
        &self,
        measured: &mut Measured,
        cancelled: &AtomicBool,
    ) -> Result<Option<Vec<BatchCounts>>> {
        let mut tasks: Vec<_> = self
            .benchmarks
            .iter()
            .map(|placed| TimedBenchmark {
                benchmark: placed.benchmark.name.into(),
                cpu: placed.cpu,
                units: 0,
                batches: PILOT_BATCHES,
                spin: 0,
            })
            .collect();
        let pace = &mut measured.pace;
        let Some(base) = self.block(BASE, &tasks, pace, cancelled)? else { return Ok(None) };
        (measured.clock_ns, measured.loop_ns) = (base.reply.clock_ns, base.reply.loop_ns);
        let batch_ns = |reply: &WorkerReply| -> Vec<f64> {
            reply.tasks.iter().map(|timing| median(&timing.ns) * f64::from(timing.units)).collect()
        };
        let own = batch_ns(&base.reply);
        for (task, timing) in tasks.iter_mut().zip(&base.reply.tasks) {
            task.units = timing.units;
        }
        let mut slowest = own.clone();
        for arm in INJECTED + 1..self.arms.len() {
            let Some(block) = self.block(arm, &tasks, pace, cancelled)? else { return Ok(None) };
            for (slowest, ns) in slowest.iter_mut().zip(batch_ns(&block.reply)) {
                *slowest = slowest.max(ns);
            }
        }
        pace.settle(self.settle);
        let counts = self.benchmarks.iter().zip(&tasks).zip(own.iter().zip(&slowest));
        Ok(Some(
            counts
                .map(|((placed, task), (own, slowest))| BatchCounts {
                    benchmark: placed.name.to_string(),
                    units: task.units,
                    batches: batches(*own, *slowest),
                    spin: (own * INJECTION / base.reply.spin_ns).round().max(1.0) as u64,
                })
                .collect(),
        ))
    }

    fn block(
        &self,
        arm: usize,
        tasks: &[TimedBenchmark],
        pace: &mut Interleave,
        cancelled: &AtomicBool,
    ) -> Result<Option<BlockResult>> {
        run_block(&self.arms[arm], &WorkerRequest { tasks: tasks.to_vec() }, pace, cancelled)
    }

    /// Measures a quad. Returns the reply of each block, in the order of `open`.
    fn quad(
        &self,
        order: &[usize],
        open: &[usize],
        measured: &mut Measured,
        random: &mut Random,
        cancelled: &AtomicBool,
    ) -> Result<Option<Vec<WorkerReply>>> {
        let mut replies = Vec::new();
        for arm in order {
            // Shuffled, so that a benchmark does not always follow the same one.
            let mut shuffled: Vec<_> = (0..open.len()).collect();
            random.shuffle(&mut shuffled);
            let task = |part: &usize| {
                let (index, counts) = (open[*part], &measured.counts[open[*part]]);
                TimedBenchmark {
                    benchmark: self.benchmarks[index].benchmark.name.into(),
                    cpu: self.benchmarks[index].cpu,
                    units: counts.units,
                    batches: counts.batches,
                    spin: if *arm == INJECTED { counts.spin } else { 0 },
                }
            };
            let tasks: Vec<_> = shuffled.iter().map(task).collect();
            let Some(block) = self.block(*arm, &tasks, &mut measured.pace, cancelled)? else {
                return Ok(None);
            };
            if let Some(lost) = block.loss {
                *measured.losses[*arm].get_or_insert(0) += lost;
            }
            let mut reply = block.reply;
            let mut timings: Vec<_> =
                shuffled.into_iter().zip(std::mem::take(&mut reply.tasks)).collect();
            timings.sort_by_key(|(part, _)| *part);
            reply.tasks = timings.into_iter().map(|(_, timing)| timing).collect();
            replies.push(reply);
        }
        Ok((!cancelled.load(Ordering::Relaxed)).then_some(replies))
    }

    /// Adds a finished quad to the measurements.
    fn record_quad(
        &self,
        quad: usize,
        order: &[usize],
        previous: usize,
        open: &[usize],
        replies: &[WorkerReply],
        measured: &mut Measured,
    ) {
        for (part, index) in open.iter().enumerate() {
            let time = |position: usize| BlockTime::of(&replies[position].tasks[part].ns);
            // A time that is a difference can be below an arm's noise; then it has no logarithm.
            if (0..order.len()).any(|position| time(position).median <= 0.0) {
                measured.stopped_by[*index] = Some(StoppedBy::Noise);
                continue;
            }
            let positions = |arm: usize| -> [usize; 2] {
                let mut positions = order
                    .iter()
                    .enumerate()
                    .filter(|(_, of)| **of == arm)
                    .map(|(position, _)| position);
                [
                    positions.next().expect("twice in each quad"),
                    positions.next().expect("twice in each quad"),
                ]
            };
            for arm in 0..self.arms.len() {
                let pair: BlockPair = positions(arm).map(time);
                measured.times[*index][arm].push(pair);
            }
            let base = positions(BASE);
            for (own, other) in [(base[0], base[1]), (base[1], base[0])] {
                let before = if own == 0 { previous } else { order[own - 1] };
                let log = (time(own).median / time(other).median).ln();
                measured.after[*index]
                    .entry(self.arms[before].name.to_string())
                    .or_default()
                    .push(log);
            }
            // The time of the injected chain in this quad, relative to the benchmark's own time.
            let units = f64::from(measured.counts[*index].units);
            let chain: f64 = positions(INJECTED)
                .map(|position| replies[position].tasks[part].injected_ns)
                .iter()
                .sum();
            let own: f64 = base.map(|position| time(position).median * units).iter().sum();
            measured.injected[*index].push(chain / own);
            for (position, arm) in order.iter().enumerate() {
                measured.raw.push(RawBlock {
                    quad,
                    position,
                    arm: self.arms[*arm].name.clone(),
                    benchmark: self.benchmarks[*index].name.clone(),
                    ns: replies[position].tasks[part].ns.clone(),
                    clock_ns: replies[position].clock_ns,
                    loop_ns: replies[position].loop_ns,
                    injected_ns: replies[position].tasks[part].injected_ns,
                });
            }
        }
    }

    /// Closes the benchmarks whose rows are as precise as requested and whose controls are
    /// conclusive.
    fn interim_look(&self, quads: usize, open: &[usize], measured: &mut Measured) {
        if self.stop == StopRule::Precision && !is_look(quads) {
            return;
        }
        for index in open {
            let times = &measured.times[*index];
            let is_precise = |arm: usize| match self.stop {
                StopRule::Precision => is_precise(
                    &differences(&times[arm], &times[BASE]).logs,
                    self.precision,
                    CONFIDENCE,
                ),
                StopRule::Rightspeed => rightspeed::is_precise(&runs(&times[arm])),
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
                measured.stopped_by[*index] = Some(StoppedBy::Precision);
            }
        }
    }

    /// The least precise row of the open benchmarks.
    fn widest(&self, measured: &Measured) -> Option<LeastPrecise> {
        let mut widest: Option<LeastPrecise> = None;
        for (index, placed) in self.benchmarks.iter().enumerate() {
            if measured.stopped_by[index].is_some() {
                continue;
            }
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

fn stop(measured: &mut Measured, open: &[usize], by: StoppedBy) {
    for index in open {
        measured.stopped_by[*index] = Some(by);
    }
}

/// The number of batches that fit; odd, so that the median is one of them.
fn batches(own_ns: f64, slowest_ns: f64) -> usize {
    let fit = (TARGET_DURATION.as_nanos() as f64 / own_ns)
        .min(MAX_DURATION.as_nanos() as f64 / slowest_ns);
    (fit as usize).clamp(MIN_BATCHES, MAX_BATCHES) | 1
}

/// The processor that benchmarks are pinned to: the last one that this process may use, because the
/// first takes most interrupts.
pub fn pinned_cpu() -> Result<usize> {
    kernel::cpus::allowed().last().copied().context("this process may run on no processor")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_arms_have_fewer_batches() {
        assert_eq!(batches(60_000.0, 60_000.0), 101);
        assert_eq!(batches(120_000.0, 240_000.0), 101);
        assert_eq!(batches(600_000.0, 700_000.0), 21);
        assert_eq!(batches(60_000.0, 20_000_000.0), 13);
        assert_eq!(batches(5e6, 5e9), 7);
    }
}
