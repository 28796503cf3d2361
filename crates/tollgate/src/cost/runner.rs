//! Runs a plan. A pilot determines the counts. Then quads of blocks are measured until the looks of
//! stopping.rs have found each benchmark precise enough, or the time is used up.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use stats::interval::median;
use stats::order::{Quads, Random};

use super::analysis::{BlockPair, BlockTime, StoppedBy};
use super::block::{BlockResult, run_block};
use super::interleave::Interleave;
use super::measured::{BatchCounts, Measured, RawBlock};
use super::plan::{BASE, INJECTED, Plan};
use super::progress::Progress;
use super::stopping::max_quads;
use super::worker::{TimedBenchmark, WorkerReply, WorkerRequest};

/// The injected time, as a fraction of the benchmark's own time.
pub const INJECTION: f64 = 0.02;

/// How long a benchmark's part of a block should take. With the slowest arm, it should not take
/// much longer than `MAX_DURATION`.
const TARGET_DURATION: Duration = Duration::from_millis(12);
const MAX_DURATION: Duration = Duration::from_millis(250);
const MIN_BATCHES: usize = 7;
const MAX_BATCHES: usize = 101;
const PILOT_BATCHES: usize = 7;

impl Plan {
    /// Runs the plan and fills `measured` on the way, so that an error or an interrupt does not
    /// lose what was measured before.
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
        measured.stop(StoppedBy::Interrupt);
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
            let open = measured.open();
            if open.is_empty() {
                return Ok(());
            }
            // A quad that would exceed the budget is not started; at least one is measured in any
            // case.
            let a_quad = first.elapsed().checked_div(quad as u32).unwrap_or_default();
            if quad > 0 && began.elapsed() + a_quad > self.budget {
                measured.stop(StoppedBy::Time);
                return Ok(());
            }
            let order = quads.next_quad();
            let Some(blocks) = self.quad(&order, &open, measured, &mut random, cancelled)? else {
                return Ok(());
            };
            self.record_quad(quad, &order, previous, &open, &blocks, measured);
            previous = order[order.len() - 1];
            self.interim_look(quad + 1, measured);
            progress.quad(quad + 1, began.elapsed(), || self.widest(measured));
        }
        measured.stop(StoppedBy::Runs);
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
        let interleave = &mut measured.interleave;
        let Some(base) = self.block(BASE, &tasks, interleave, cancelled)? else { return Ok(None) };
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
            let Some(block) = self.block(arm, &tasks, interleave, cancelled)? else {
                return Ok(None);
            };
            for (slowest, ns) in slowest.iter_mut().zip(batch_ns(&block.reply)) {
                *slowest = slowest.max(ns);
            }
        }
        interleave.settle(self.settle);
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
        interleave: &mut Interleave,
        cancelled: &AtomicBool,
    ) -> Result<Option<BlockResult>> {
        run_block(&self.arms[arm], &WorkerRequest { tasks: tasks.to_vec() }, interleave, cancelled)
    }

    /// Measures a quad. Returns the reply of each block, with its tasks in the order of `open`.
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
            // The benchmarks are shuffled, so that none of them always follows the same other one.
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
            let Some(block) = self.block(*arm, &tasks, &mut measured.interleave, cancelled)? else {
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
            // A benchmark's time is a difference, which noise can make zero or negative. Such a
            // time has no logarithm.
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
