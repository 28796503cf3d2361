//! Rehearsed holds: a program that learns also learns what it does when it is stopped.

use std::time::Duration;

use kernel::clock::now_ns;
use kernel::gate::Gate;

/// Long enough for all threads of a process to stop.
const STOP: Duration = Duration::from_millis(2);
/// With many processes; a look at them costs some microseconds.
const SHORTEST: Duration = Duration::from_millis(4);

/// Whose turn it is, and when.
pub struct Rehearsal {
    /// For each process, on average.
    every: Duration,
    next_ns: u64,
    latest: u32,
}

impl Rehearsal {
    pub fn new(every: Duration) -> Self {
        Self { every, next_ns: now_ns(), latest: 0 }
    }

    /// Stops the next of the processes that the session guards and `is_learning` chooses, by their numbers and their
    /// programs' places, if it is time. Returns when it is time again.
    pub fn tend(&mut self, gate: &Gate, session: u32, is_learning: impl Fn(u32, u32) -> bool) -> u64 {
        let now = now_ns();
        if now < self.next_ns {
            return self.next_ns;
        }
        let mut learning = gate.guarded(session);
        learning.retain(|tgid, place| is_learning(*tgid, *place));
        let next = learning.range(self.latest + 1..).next().or_else(|| learning.first_key_value());
        if let Some((tgid, _)) = next {
            self.latest = *tgid;
            gate.hold(session, *tgid, now + STOP.as_nanos() as u64);
        }
        let pause = (self.every / learning.len().max(1) as u32).max(SHORTEST).as_nanos() as u64;
        // Out of step with what the programs do at regular times.
        self.next_ns = now + pause / 2 + now % pause;
        self.next_ns
    }
}
