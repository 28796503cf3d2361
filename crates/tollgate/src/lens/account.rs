//! Where threads spend their lives, in calls and outside of them.

use kernel::lens::call_stats::{CallStats, RowStats};
use kernel::wire;

use super::report::{Account, Call};

/// The account of a row's threads. `calls`: the row's calls in the report. `None` if no thread's
/// life was counted.
pub fn account(row: &RowStats, calls: &[Call]) -> Option<Account> {
    let life = row.parts.get(&wire::ACCOUNT_LIFE)?;
    let part = |part: u32| row.parts.get(&part);
    let blocked = |index: u32| part(index).map_or(0, |stats| stats.blocked_ns);
    let unfinished = |of: fn(&CallStats) -> u64| part(wire::ACCOUNT_UNFINISHED).map_or(0, of);
    let sum = |of: fn(&Call) -> u64| calls.iter().map(of).sum::<u64>();
    let calls_ns = sum(|call| call.wall_ns) + unfinished(|call| call.wall_ns);
    let calls_runqueue = sum(|call| call.runqueue_ns) + unfinished(|call| call.runqueue_ns);
    let calls_blocked = sum(|call| call.blocked_ns) + unfinished(|call| call.blocked_ns);
    let processor = |wall: u64, blocked: u64, runqueue: u64| wall.saturating_sub(blocked + runqueue);
    let calls_cpu = processor(calls_ns, calls_blocked, calls_runqueue);
    let mut account = Account {
        threads: life.count,
        lifetime_ns: life.wall_ns,
        calls_ns,
        cpu_ns: processor(life.wall_ns, life.blocked_ns, life.runqueue_ns)
            .saturating_sub(calls_cpu),
        runqueue_ns: life.runqueue_ns.saturating_sub(calls_runqueue),
        faults_ns: blocked(wire::ACCOUNT_FAULTS),
        stopped_ns: blocked(wire::ACCOUNT_STOPPED),
        held_ns: blocked(wire::ACCOUNT_HELD),
        throttled_ns: blocked(wire::ACCOUNT_THROTTLED),
        unaccounted_ns: 0,
        minor_faults: life.minor_faults.saturating_sub(sum(|call| call.minor_faults)),
        major_faults: life.major_faults.saturating_sub(sum(|call| call.major_faults)),
    };
    let known: u64 = account.parts().iter().map(|(_, ns)| ns).sum();
    account.unaccounted_ns = account.lifetime_ns as i64 - known as i64;
    Some(account)
}

impl Account {
    /// The parts whose sum is the lifetime, with the text for each.
    pub fn parts(&self) -> [(&'static str, u64); 7] {
        [
            ("in calls", self.calls_ns),
            ("on CPU outside of calls", self.cpu_ns),
            ("waiting for a CPU there", self.runqueue_ns),
            ("in page faults there", self.faults_ns),
            ("stopped", self.stopped_ns),
            ("held by the guard", self.held_ns),
            ("throttled by a limit", self.throttled_ns),
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
        row.parts.insert(wire::ACCOUNT_LIFE, stats(1000, 500, 100, 30));
        row.parts.insert(wire::ACCOUNT_UNFINISHED, stats(100, 80, 10, 0));
        row.parts.insert(wire::ACCOUNT_FAULTS, stats(160, 150, 10, 0));
        let call = Call {
            wall_ns: 300,
            blocked_ns: 200,
            runqueue_ns: 40,
            minor_faults: 10,
            ..Call::default()
        };
        let account = account(&row, &[call]).unwrap();
        let expected = Account {
            threads: 2,
            lifetime_ns: 1000,
            calls_ns: 400,
            // 400 of all, and 60 and 10 in calls.
            cpu_ns: 330,
            runqueue_ns: 50,
            faults_ns: 150,
            // Asleep 500, of which 280 in calls and 150 in faults.
            unaccounted_ns: 70,
            minor_faults: 20,
            ..Account::default()
        };
        assert_eq!(account, expected);
    }
}
