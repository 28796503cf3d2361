//! What a run has measured so far.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::analysis::{ArmTimes, StoppedBy};
use super::interleave::Interleave;

/// Every batch of one benchmark in one block.
#[derive(Debug, Serialize, Deserialize)]
pub struct RawBlock {
    pub quad: usize,
    /// The position in the quad.
    #[serde(rename = "place")]
    pub position: usize,
    pub arm: Arc<str>,
    pub benchmark: Arc<str>,
    /// In nanoseconds per unit. The times of the worker's clock and loop (the next fields) are
    /// already subtracted.
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
    /// By benchmark and preceding arm: log ratios of a base block to the other base block of the
    /// quad.
    pub after: Vec<BTreeMap<String, Vec<f64>>>,
    pub stopped_by: Vec<Option<StoppedBy>>,
    /// By arm.
    pub losses: Vec<Option<u64>>,
    pub raw: Vec<RawBlock>,
    pub interleave: Interleave,
    pub clock_ns: f64,
    pub loop_ns: f64,
    pub elapsed: Duration,
    pub was_interrupted: bool,
}

impl Measured {
    /// The indices of the benchmarks that are still measured.
    pub fn open(&self) -> Vec<usize> {
        let is_open = |index: &usize| self.stopped_by[*index].is_none();
        (0..self.stopped_by.len()).filter(is_open).collect()
    }

    /// Ends the benchmarks that are still measured.
    pub fn stop(&mut self, by: StoppedBy) {
        for stopped in self.stopped_by.iter_mut().filter(|stopped| stopped.is_none()) {
            *stopped = Some(by);
        }
    }
}
