//! What a run measures, and when it stops.

use std::sync::Arc;
use std::time::Duration;

use kernel::benchmark::Benchmark;

use super::arguments::StopRule;
use super::arms::Arm;

/// The indices of the arms that every run has.
pub const BASE: usize = 0;
pub const AA: usize = 1;
pub const INJECTED: usize = 2;

/// A benchmark in one placement.
#[derive(Clone)]
pub struct BenchmarkRun {
    pub name: Arc<str>,
    pub benchmark: &'static Benchmark,
    pub cpu: Option<usize>,
}

/// What a run measures, and when it stops.
pub struct Plan {
    /// The first three are off, A/A and injected.
    pub arms: Vec<Arm>,
    pub benchmarks: Vec<BenchmarkRun>,
    pub stop: StopRule,
    pub precision: f64,
    /// The minimum time between two workers.
    pub settle: Duration,
    pub budget: Duration,
    pub seed: u64,
}
