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
    let mut account = ThreadAccount {
        threads: life.count,
        lifetime_ns: life.wall_ns,
        calls_ns: take(in_calls),
        cpu_ns: 0,
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
    // The gate has the ticks as a time.
    let ticks = (life.sampled_ns + tick_ns / 2) / tick_ns;
    account.user = UserTime::estimate(ticks, left, tick_ns);
    Some(account)
}

impl UserTime {
    /// The part of a time on a processor that was in user mode, if this many ticks have met the
    /// threads there. Each tick within the time is a trial. `None` without a time.
    fn estimate(ticks: u64, cpu_ns: u64, tick_ns: u64) -> Option<Self> {
        let trials = cpu_ns.div_ceil(tick_ns);
        let share = share_interval(ticks.min(trials), trials, CONFIDENCE)?;
        let part = |share: f64| (cpu_ns as f64 * share) as u64;
        Some(Self {
            ns: part(share.estimate),
            low_ns: part(share.low),
            high_ns: part(share.high),
            confidence: CONFIDENCE,
            ticks,
            tick_ns,
        })
    }

    /// That of two times together.
    fn joint(a: &ThreadAccount, b: &ThreadAccount) -> Option<Self> {
        let all = [&a.user, &b.user].into_iter().flatten();
        let tick_ns = all.clone().next()?.tick_ns;
        Self::estimate(all.map(|user| user.ticks).sum(), a.cpu_ns + b.cpu_ns, tick_ns)
    }
}

impl ThreadAccount {
    /// The sum of accounts. `None` if there are none.
    pub fn sum<'a>(all: impl Iterator<Item = &'a Self>) -> Option<Self> {
        all.cloned().reduce(|a, b| Self {
            threads: a.threads + b.threads,
            lifetime_ns: a.lifetime_ns + b.lifetime_ns,
            calls_ns: a.calls_ns + b.calls_ns,
            cpu_ns: a.cpu_ns + b.cpu_ns,
            user: UserTime::joint(&a, &b),
            runqueue_ns: a.runqueue_ns + b.runqueue_ns,
            asleep_ns: a.asleep_ns + b.asleep_ns,
            faulting_ns: a.faulting_ns + b.faulting_ns,
            stopped_ns: a.stopped_ns + b.stopped_ns,
            held_ns: a.held_ns + b.held_ns,
            throttled_ns: a.throttled_ns + b.throttled_ns,
            unaccounted_ns: a.unaccounted_ns + b.unaccounted_ns,
            minor_faults: a.minor_faults + b.minor_faults,
            major_faults: a.major_faults + b.major_faults,
        })
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

    #[test]
    fn time_in_user_mode_is_estimated_by_ticks() {
        let user = |ticks, cpu_ns| UserTime::estimate(ticks, cpu_ns, TICK_NS);
        assert_eq!(user(0, 0), None);
        let half = user(50, 100 * TICK_NS).unwrap();
        assert_eq!((half.ns, half.ticks), (50 * TICK_NS, 50));
        // Clopper and Pearson: 0.3983 to 0.6017.
        assert_eq!((half.low_ns / 1_000_000, half.high_ns / 1_000_000), (159, 240));
        // A tick may meet a thread that hardly runs, and no more ticks than there were are trials.
        let short = user(1, 1000).unwrap();
        assert_eq!((short.ns, short.high_ns), (1000, 1000));
        assert_eq!(user(9, 8 * TICK_NS).unwrap().ns, 8 * TICK_NS);
        let none = user(0, TICK_NS).unwrap();
        assert_eq!((none.ns, none.low_ns), (0, 0));
        assert!(none.high_ns > TICK_NS * 9 / 10);
    }

    /// The ticks of many short lives say what the sum of their estimates does not.
    #[test]
    fn sums_have_the_ticks_of_all() {
        let account = |ticks| {
            let life = CallStats {
                count: 1,
                wall_ns: TICK_NS / 4,
                sampled_ns: ticks * TICK_NS,
                ..CallStats::default()
            };
            let mut row = RowStats::default();
            row.parts.insert(wire::ACCOUNT_LIFE, life);
            account(&row, &[], TICK_NS).unwrap()
        };
        let all: Vec<_> = (0..400).map(|life| account(u64::from(life % 8 == 0))).collect();
        let user = ThreadAccount::sum(all.iter()).unwrap().user.unwrap();
        assert_eq!((user.ticks, user.ns), (50, 50 * TICK_NS));
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
        row.parts.insert(wire::ACCOUNT_LIFE, stats(1000, 70, 0, 30));
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
            user: UserTime::estimate(0, 330, TICK_NS),
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
