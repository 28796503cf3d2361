//! The pauses between the workers of a run.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::process_group;

/// Keeps the pauses between workers the same for all arms. Waiting itself changes the state of a
/// machine, so an arm that takes long to switch on would otherwise seem more expensive.
#[derive(Debug, Default)]
pub struct Interleave {
    /// From the end of a worker to the start of the next.
    pub gap: Duration,
    worker_ended: Option<Instant>,
    /// The longest switching times so far.
    longest_on: Duration,
    longest_off: Duration,
}

impl Interleave {
    pub fn wait(&mut self, took: Duration, cancelled: &AtomicBool) {
        self.longest_on = self.longest_on.max(took);
        let since = self.worker_ended.map_or(Duration::ZERO, |ended| ended.elapsed());
        process_group::pause(self.gap.saturating_sub(since), cancelled);
    }

    pub fn worker_ended(&mut self) {
        self.worker_ended = Some(Instant::now());
    }

    pub fn switched_off(&mut self) {
        let took = self.worker_ended.map_or(Duration::ZERO, |ended| ended.elapsed());
        self.longest_off = self.longest_off.max(took);
    }

    /// Sets the gap to what the slowest arms need plus `settle`. Every arm must have been on
    /// before.
    pub fn settle(&mut self, settle: Duration) {
        self.gap = self.longest_off + self.longest_on + settle;
    }
}
