//! Training stops: a program that is learning also learns how it behaves when it is stopped.

use std::time::Duration;

use kernel::clock::now_ns;
use kernel::gate::Gate;
use kernel::guard::holds::{self, Holds};

/// Long enough for all threads of a process to stop.
const STOP: Duration = Duration::from_millis(2);
/// The minimum interval, however many processes there are. A poll of the processes costs some
/// microseconds.
const MIN_INTERVAL: Duration = Duration::from_millis(4);

/// Which process is stopped next, and when.
pub struct TrainingStops {
    /// The average interval for each process.
    interval: Duration,
    next_ns: u64,
    latest: u32,
}

impl TrainingStops {
    /// The first stop is due at once.
    pub fn new(interval: Duration) -> Self {
        Self { interval, next_ns: now_ns(), latest: 0 }
    }

    /// If it is time, stops the next of the session's guarded processes for which `is_learning` is
    /// true. `is_learning` receives the PID and the profile slot of the program. Returns the time
    /// of the next stop.
    pub fn tend(
        &mut self,
        gate: &Gate,
        session: u32,
        is_learning: impl Fn(u32, u32) -> bool,
    ) -> u64 {
        let now = now_ns();
        if now < self.next_ns {
            return self.next_ns;
        }
        let mut learning = Holds::new(gate, session).guarded_processes();
        learning.retain(|tgid, slot| is_learning(*tgid, *slot));
        let next = learning.range(self.latest + 1..).next().or_else(|| learning.first_key_value());
        if let Some((tgid, _)) = next {
            self.latest = *tgid;
            holds::hold(gate, session, *tgid, now + STOP.as_nanos() as u64);
        }
        let pause =
            (self.interval / learning.len().max(1) as u32).max(MIN_INTERVAL).as_nanos() as u64;
        // Varies the pause, so that the stops do not stay in step with periodic work of the
        // programs.
        self.next_ns = now + pause / 2 + now % pause;
        self.next_ns
    }
}
