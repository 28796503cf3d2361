//! Where threads spend their lives, in calls and outside of them.

use kernel::lens::call_stats::{CallStats, RowStats};
use kernel::wire;

use super::report::{Call, ThreadAccount};

/// The account of a row's threads. `calls`: the row's calls in the report. `None` if no thread's
/// life was counted.
pub fn account(row: &RowStats, calls: &[Call]) -> Option<ThreadAccount> {
    let life = row.parts.get(&wire::ACCOUNT_LIFE)?;
    let sum = |parts: &[u32], of: fn(&CallStats) -> u64| {
        parts.iter().filter_map(|part| row.parts.get(part)).map(of).sum::<u64>()
    };
    let of_calls = |of: fn(&Call) -> u64| calls.iter().map(of).sum::<u64>();
    let outside_calls = [
        wire::ACCOUNT_READY,
        wire::ACCOUNT_FAULTS,
        wire::ACCOUNT_STOPPED,
        wire::ACCOUNT_HELD,
        wire::ACCOUNT_THROTTLED,
    ];
    let blocked = |part: u32| sum(&[part], |stats| stats.blocked_ns);
    let unfinished = [wire::ACCOUNT_UNFINISHED, wire::ACCOUNT_OUTER];
    let mut account = ThreadAccount {
        threads: life.count,
        lifetime_ns: life.wall_ns,
        calls_ns: of_calls(|call| call.wall_ns) + sum(&unfinished, |stats| stats.wall_ns),
        cpu_ns: 0,
        runqueue_ns: sum(&outside_calls, |stats| stats.runqueue_ns),
        faults_ns: blocked(wire::ACCOUNT_FAULTS),
        stopped_ns: blocked(wire::ACCOUNT_STOPPED),
        held_ns: blocked(wire::ACCOUNT_HELD),
        throttled_ns: blocked(wire::ACCOUNT_THROTTLED),
        unaccounted_ns: life.blocked_ns,
        minor_faults: life.minor_faults.saturating_sub(of_calls(|call| call.minor_faults)),
        major_faults: life.major_faults.saturating_sub(of_calls(|call| call.major_faults)),
    };
    let known: u64 = account.parts().iter().map(|(_, ns)| ns).sum();
    account.cpu_ns = account.lifetime_ns.saturating_sub(known);
    Some(account)
}

impl ThreadAccount {
    /// The parts whose sum is the lifetime, with the text for each.
    pub fn parts(&self) -> [(&'static str, u64); 8] {
        [
            ("in calls", self.calls_ns),
            ("on CPU outside of calls", self.cpu_ns),
            ("waiting for a CPU there", self.runqueue_ns),
            ("in page faults there", self.faults_ns),
            ("stopped", self.stopped_ns),
            ("held by the guard", self.held_ns),
            ("throttled by a limit", self.throttled_ns),
            ("unaccounted", self.unaccounted_ns),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_what_calls_leave_of_lives() {
        let stats = |wall_ns: u64, blocked_ns: u64, runqueue_ns: u64, faults: u64| CallStats {
            count: 2,
            wall_ns,
            blocked_ns,
            runqueue_ns,
            minor_faults: faults,
            ..CallStats::default()
        };
        let mut row = RowStats::default();
        row.parts.insert(wire::ACCOUNT_LIFE, stats(1000, 70, 0, 30));
        row.parts.insert(wire::ACCOUNT_UNFINISHED, stats(100, 80, 10, 0));
        row.parts.insert(wire::ACCOUNT_FAULTS, stats(160, 150, 10, 0));
        row.parts.insert(wire::ACCOUNT_READY, stats(40, 0, 40, 0));
        let call = Call { wall_ns: 300, minor_faults: 10, ..Call::default() };
        let account = account(&row, &[call]).unwrap();
        let expected = ThreadAccount {
            threads: 2,
            lifetime_ns: 1000,
            calls_ns: 400,
            // What is left of the lifetime.
            cpu_ns: 330,
            runqueue_ns: 50,
            faults_ns: 150,
            unaccounted_ns: 70,
            minor_faults: 20,
            ..ThreadAccount::default()
        };
        assert_eq!(account, expected);
    }
}
