//! Where threads spend their lives, in calls and outside of them.

use kernel::lens::call_stats::{CallStats, RowStats};
use kernel::wire;
use stats::interval::share_interval;

use super::report::{Call, ThreadAccount, UserTime};

const CONFIDENCE: f64 = 0.95;

/// The account of a row's threads. `calls`: the row's calls in the report. `tick_ns`: the time
/// between two ticks of the kernel. `None` if no thread's life was counted.
pub fn account(row: &RowStats, calls: &[Call], tick_ns: u64) -> Option<ThreadAccount> {
    let life = row.parts.get(&wire::ACCOUNT_LIFE)?;
    let sum = |parts: &[u32], of: fn(&CallStats) -> u64| {
        parts.iter().filter_map(|part| row.parts.get(part)).map(of).sum::<u64>()
    };
    let of_calls = |of: fn(&Call) -> u64| calls.iter().map(of).sum::<u64>();
    let outside_calls = [
        wire::ACCOUNT_READY,
        wire::ACCOUNT_ASLEEP,
        wire::ACCOUNT_FAULTING,
        wire::ACCOUNT_STOPPED,
        wire::ACCOUNT_HELD,
        wire::ACCOUNT_THROTTLED,
    ];
    let blocked = |part: u32| sum(&[part], |stats| stats.blocked_ns);
    let wall = |parts: &[u32]| sum(parts, |stats| stats.wall_ns);
    let in_calls = (of_calls(|call| call.wall_ns)
        + wall(&[wire::ACCOUNT_UNFINISHED, wire::ACCOUNT_OUTER]))
    .saturating_sub(wall(&[wire::ACCOUNT_REPEATED]));
    // What is left of the lifetime after the parts so far. Time that is unaccounted may also be in
    // a call, and times of calls may be estimates, but the parts must not exceed the lifetime.
    let mut left = life.wall_ns;
    let mut take = |ns: u64| {
        let taken = ns.min(left);
        left -= taken;
        taken
    };
    // The gate has the ticks as a time.
    let ticks = |ns: u64| (ns + tick_ns / 2) / tick_ns;
    let mut account = ThreadAccount {
        threads: life.count,
        lifetime_ns: life.wall_ns,
        calls_ns: take(in_calls),
        cpu_ns: 0,
        processor_ns: life.runqueue_ns,
        user_ticks: ticks(life.sampled_ns),
        system_ticks: ticks(life.sampled_ns2),
        user: None,
        runqueue_ns: take(sum(&outside_calls, |stats| stats.runqueue_ns)),
        asleep_ns: take(blocked(wire::ACCOUNT_ASLEEP)),
        faulting_ns: take(blocked(wire::ACCOUNT_FAULTING)),
        stopped_ns: take(blocked(wire::ACCOUNT_STOPPED)),
        held_ns: take(blocked(wire::ACCOUNT_HELD)),
        throttled_ns: take(blocked(wire::ACCOUNT_THROTTLED)),
        unaccounted_ns: take(life.blocked_ns),
        minor_faults: life.minor_faults.saturating_sub(of_calls(|call| call.minor_faults)),
        major_faults: life.major_faults.saturating_sub(of_calls(|call| call.major_faults)),
    };
    account.cpu_ns = left;
    account.user = UserTime::estimate(&account);
    Some(account)
}

impl UserTime {
    /// The part of a time on a processor that was in user mode. Each tick that has met the threads
    /// is a trial. `None` without a tick.
    fn estimate(account: &ThreadAccount) -> Option<Self> {
        let ticks = account.user_ticks + account.system_ticks;
        let share = share_interval(account.user_ticks, ticks, CONFIDENCE)?;
        let part = |share: f64| {
            // All of it is outside of calls. The two times have different sources.
            ((account.processor_ns as f64 * share) as u64).min(account.cpu_ns)
        };
        Some(Self {
            ns: part(share.estimate),
            low_ns: part(share.low),
            high_ns: part(share.high),
            confidence: CONFIDENCE,
        })
    }
}

impl ThreadAccount {
    /// The sum of accounts. `None` if there are none.
    pub fn sum<'a>(all: impl Iterator<Item = &'a Self>) -> Option<Self> {
        let sum = all.cloned().reduce(|a, b| Self {
            threads: a.threads + b.threads,
            lifetime_ns: a.lifetime_ns + b.lifetime_ns,
            calls_ns: a.calls_ns + b.calls_ns,
            cpu_ns: a.cpu_ns + b.cpu_ns,
            processor_ns: a.processor_ns + b.processor_ns,
            user_ticks: a.user_ticks + b.user_ticks,
            system_ticks: a.system_ticks + b.system_ticks,
            user: None,
            runqueue_ns: a.runqueue_ns + b.runqueue_ns,
            asleep_ns: a.asleep_ns + b.asleep_ns,
            faulting_ns: a.faulting_ns + b.faulting_ns,
            stopped_ns: a.stopped_ns + b.stopped_ns,
            held_ns: a.held_ns + b.held_ns,
            throttled_ns: a.throttled_ns + b.throttled_ns,
            unaccounted_ns: a.unaccounted_ns + b.unaccounted_ns,
            minor_faults: a.minor_faults + b.minor_faults,
            major_faults: a.major_faults + b.major_faults,
        })?;
        Some(Self { user: UserTime::estimate(&sum), ..sum })
    }

    /// The parts whose sum is the lifetime, with the text for each.
    pub fn parts(&self) -> [(&'static str, u64); 9] {
        [
            ("in calls", self.calls_ns),
            ("on CPU outside of calls", self.cpu_ns),
            ("waiting for a CPU there", self.runqueue_ns),
            ("asleep in page faults", self.faulting_ns),
            ("asleep after calls", self.asleep_ns),
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

    const TICK_NS: u64 = 4_000_000;

    /// A life without sleeps, some of it in a call.
    fn life(calls_ns: u64, cpu_ns: u64, user_ticks: u64, system_ticks: u64) -> ThreadAccount {
        let life = CallStats {
            count: 1,
            wall_ns: calls_ns + cpu_ns,
            runqueue_ns: calls_ns + cpu_ns,
            sampled_ns: user_ticks * TICK_NS,
            sampled_ns2: system_ticks * TICK_NS,
            ..CallStats::default()
        };
        let mut row = RowStats::default();
        row.parts.insert(wire::ACCOUNT_LIFE, life);
        account(&row, &[Call { wall_ns: calls_ns, ..Call::default() }], TICK_NS).unwrap()
    }

    #[test]
    fn time_in_user_mode_is_estimated_by_ticks() {
        const MS: u64 = 1_000_000;
        let half = life(0, 400 * MS, 50, 50).user.unwrap();
        assert_eq!(half.ns, 200 * MS);
        // Clopper and Pearson: 0.3983 to 0.6017.
        assert_eq!((half.low_ns / MS, half.high_ns / MS), (159, 240));
        // The ticks in calls are among those in the kernel. How often ticks come does not matter.
        for ticks in [1, 2] {
            let in_calls = life(300 * MS, 100 * MS, 20 * ticks, 80 * ticks);
            assert_eq!(in_calls.processor_ns, 400 * MS);
            assert_eq!(in_calls.user.unwrap().ns, 80 * MS);
        }
        // It is never longer than the time outside of calls.
        assert_eq!(life(300 * MS, 100 * MS, 5, 5).user.unwrap().ns, 100 * MS);
        assert_eq!(life(0, 400 * MS, 0, 0).user, None);
    }

    /// A single short life has no tick, or one that says little.
    #[test]
    fn sums_have_the_ticks_of_all() {
        let all: Vec<_> = (0..400)
            .map(|n| life(0, TICK_NS / 4, u64::from(n % 8 == 0), u64::from(n % 8 == 4)))
            .collect();
        let sum = ThreadAccount::sum(all.iter()).unwrap();
        assert_eq!((sum.user_ticks, sum.system_ticks), (50, 50));
        assert_eq!(sum.user.unwrap().ns, 50 * TICK_NS);
    }

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
        row.parts.insert(wire::ACCOUNT_LIFE, stats(1000, 70, 7, 30));
        row.parts.insert(wire::ACCOUNT_UNFINISHED, stats(100, 80, 10, 0));
        row.parts.insert(wire::ACCOUNT_ASLEEP, stats(60, 50, 10, 0));
        row.parts.insert(wire::ACCOUNT_FAULTING, stats(100, 100, 0, 0));
        row.parts.insert(wire::ACCOUNT_READY, stats(40, 0, 40, 0));
        let call = Call { wall_ns: 300, minor_faults: 10, ..Call::default() };
        let account = account(&row, &[call], TICK_NS).unwrap();
        let expected = ThreadAccount {
            threads: 2,
            lifetime_ns: 1000,
            calls_ns: 400,
            // What is left of the lifetime.
            cpu_ns: 330,
            processor_ns: 7,
            runqueue_ns: 50,
            faulting_ns: 100,
            asleep_ns: 50,
            unaccounted_ns: 70,
            minor_faults: 20,
            ..ThreadAccount::default()
        };
        assert_eq!(account, expected);
    }

    #[test]
    fn parts_never_exceed_lives() {
        let times = |wall_ns, blocked_ns| CallStats { wall_ns, blocked_ns, ..CallStats::default() };
        let mut row = RowStats::default();
        row.parts.insert(wire::ACCOUNT_LIFE, times(1000, 900));
        row.parts.insert(wire::ACCOUNT_ASLEEP, times(300, 300));
        let call = |wall_ns| Call { wall_ns, ..Call::default() };
        for (call_ns, unaccounted_ns, cpu_ns) in [(500, 200, 0), (2000, 0, 0)] {
            let account = account(&row, &[call(call_ns)], TICK_NS).unwrap();
            assert_eq!((account.unaccounted_ns, account.cpu_ns), (unaccounted_ns, cpu_ns));
            assert_eq!(account.parts().iter().map(|(_, ns)| ns).sum::<u64>(), 1000);
        }
    }

    #[test]
    fn call_that_an_inner_session_also_has_counts_once() {
        let wall = |wall_ns| CallStats { wall_ns, ..CallStats::default() };
        let mut row = RowStats::default();
        row.parts.insert(wire::ACCOUNT_LIFE, wall(1000));
        row.parts.insert(wire::ACCOUNT_OUTER, wall(300));
        row.parts.insert(wire::ACCOUNT_REPEATED, wall(300));
        let account = account(&row, &[Call { wall_ns: 500, ..Call::default() }], TICK_NS).unwrap();
        assert_eq!((account.calls_ns, account.cpu_ns), (500, 500));
    }
}
