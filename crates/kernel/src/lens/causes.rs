//! Why calls slept: what has woken their threads, and who held the locks that they waited for. This
//! module does not use libbpf, so that it can be tested without a kernel.

use std::collections::BTreeMap;

use crate::wire;

/// A cause of sleeps of a call in a blocking site.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cause {
    /// The call that slept.
    pub call: u32,
    /// The blocking site.
    pub site: u64,
    /// The lock that the party held. `None`: the party has woken the thread.
    pub lock: Option<AwaitedLock>,
    /// What has woken the thread, or held the lock.
    pub party: PartyName,
}

/// A lock, as far as the kernel says which one it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AwaitedLock {
    /// Bits of [`wire::why_lock_flag`].
    pub flags: u32,
    /// The address of a lock that may be a variable of the kernel; otherwise 0.
    pub variable: u64,
}

/// What has woken threads, or held locks. Those with equal names are counted together.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartyName {
    /// One of [`wire::why_kind`].
    pub kind: u32,
    /// An address in the kernel function that has woken the thread; 0 if it is not known.
    pub function: u64,
    /// The index of its call, with [`wire::WHY_CALL`]; otherwise 0.
    pub call: u32,
    /// The holder of a lock slept when the wait began.
    pub is_asleep: bool,
    /// The name of its process's first thread.
    pub program: String,
    /// The name of the thread.
    pub thread: String,
}

/// How much a cause has let threads sleep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CauseStats {
    /// Time asleep.
    pub blocked_ns: u64,
    /// The number of sleeps.
    pub sleeps: u64,
    /// The process of the first party with this name; 0: it has none.
    pub tgid: u32,
    /// There were parties with this name in other processes, too.
    pub is_several: bool,
}

/// By cause.
pub type Causes = BTreeMap<Cause, CauseStats>;

impl Cause {
    pub(crate) fn new(key: &wire::why_key) -> Self {
        let kind = u32::from(key.kind);
        let lock = AwaitedLock { flags: key.lock_flags, variable: key.lock };
        Self {
            call: u32::from(key.call),
            site: key.site,
            lock: (key.is_holder != 0).then_some(lock),
            party: PartyName {
                kind,
                function: key.function,
                call: u32::from(key.party_call),
                is_asleep: key.is_asleep != 0,
                program: wire::text(&key.program),
                thread: wire::text(&key.thread),
            },
        }
    }
}

impl PartyName {
    /// The name of a single party.
    pub fn new(party: &wire::why_party) -> Self {
        let kind = u32::from(party.kind);
        let is_known = kind != wire::WHY_UNKNOWN;
        let text = |name| if is_known { wire::text(name) } else { String::new() };
        Self {
            kind,
            function: party.function,
            call: if kind == wire::WHY_CALL { u32::from(party.call) } else { 0 },
            is_asleep: is_known && party.is_asleep != 0,
            program: text(&party.program),
            thread: text(&party.thread),
        }
    }
}

impl CauseStats {
    pub(crate) fn new(value: &wire::why_value) -> Self {
        Self {
            blocked_ns: value.blocked_ns,
            sleeps: value.sleeps,
            tgid: value.tgid,
            is_several: value.is_several != 0,
        }
    }

    /// Adds what the same cause did in another row.
    pub fn add(&mut self, other: &Self) {
        if self.sleeps == 0 {
            self.tgid = other.tgid;
        }
        self.is_several |= other.is_several || self.tgid != other.tgid;
        self.blocked_ns += other.blocked_ns;
        self.sleeps += other.sleeps;
    }
}

/// The causes of the sleeps of a call, by blocking site.
pub fn of_call(causes: &Causes, call: u32) -> impl Iterator<Item = (&Cause, &CauseStats)> {
    causes.range(first(call)..).take_while(move |(cause, _)| cause.call == call)
}

fn first(call: u32) -> Cause {
    Cause { call, site: 0, lock: None, party: PartyName::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(tgid: u32, sleeps: u64) -> CauseStats {
        CauseStats { blocked_ns: 10 * sleeps, sleeps, tgid, is_several: false }
    }

    #[test]
    fn equal_names_of_several_processes_are_told() {
        let mut sum = CauseStats::default();
        sum.add(&stats(7, 2));
        assert_eq!(sum, stats(7, 2));
        sum.add(&stats(7, 3));
        assert_eq!(sum, stats(7, 5));
        sum.add(&stats(8, 1));
        assert_eq!(sum, CauseStats { is_several: true, ..stats(7, 6) });
    }

    #[test]
    fn causes_are_found_by_their_call() {
        let cause = |call, site| Cause { site, ..first(call) };
        let causes = [(1, 9), (2, 0), (2, 5), (3, 1)].map(|(call, site)| cause(call, site));
        let causes: Causes = causes.into_iter().map(|cause| (cause, stats(1, 1))).collect();
        let sites: Vec<_> = of_call(&causes, 2).map(|(cause, _)| cause.site).collect();
        assert_eq!(sites, [0, 5]);
        assert_eq!(of_call(&causes, 4).count(), 0);
    }

    #[test]
    fn a_key_says_who_did_what() {
        let mut key = wire::why_key { call: 202, kind: wire::WHY_CALL as u8, ..Default::default() };
        key.program[0] = b'p' as std::ffi::c_char;
        key.thread[0] = b't' as std::ffi::c_char;
        key.party_call = 1;
        let waker = Cause::new(&key);
        assert_eq!((waker.call, waker.lock, waker.party.call), (202, None, 1));
        assert_eq!((waker.party.program.as_str(), waker.party.thread.as_str()), ("p", "t"));
        (key.is_holder, key.lock_flags, key.is_asleep) = (1, wire::WHY_LOCK_FUTEX, 1);
        let holder = Cause::new(&key);
        assert_eq!(holder.lock, Some(AwaitedLock { flags: wire::WHY_LOCK_FUTEX, variable: 0 }));
        assert!(holder.party.is_asleep);
    }
}
