//! `--why`: what has woken the threads that slept, and who held the locks that they waited for.

use std::collections::BTreeMap;

use calls::Abi;
use kernel::lens::causes::{AwaitedLock, CauseStats, Causes, PartyName, of_call};
use kernel::symbols::KernelSymbols;
use kernel::wire;
use serde::{Deserialize, Serialize};

use crate::call_name::call_name;

/// At most this many parties of each blocking site are in the JSON, those with the longest times.
const MAX_PARTIES: usize = 50;

/// The kind of a lock that is in the memory of the program.
pub const FUTEX: &str = "futex";

/// Functions of the kernel that wake a thread because a time has come.
const TIMERS: [&str; 6] = [
    "alarm_timer_callback",
    "hrtimer_wakeup",
    "it_real_fn",
    "posix_timer_fn",
    "process_timeout",
    "timerfd_tmrproc",
];

/// What a party is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartyKind {
    Thread,
    KernelThread,
    Timer,
    /// An interrupt of a device.
    Interrupt,
    Softirq,
    /// The wake-up was not seen.
    #[default]
    Unknown,
}

/// What has woken a thread, or holds a lock.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Party {
    pub kind: PartyKind,
    /// The name of the process's first thread.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub program: String,
    /// The name of the thread, unless it is the same.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub thread: String,
    /// `None`: it is none, or there are several of the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Only of the parties of single calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// The call that it was in. The call of a thread that is not watched is known only if it has
    /// woken another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_outside_of_calls: bool,
    /// It held the lock and was asleep when the other thread began to wait.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_asleep: bool,
    /// The kernel function that has woken the thread, if the call does not say enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
}

/// What has woken a call from its sleeps in a blocking site.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WokenBy {
    #[serde(flatten)]
    pub party: Party,
    pub ns: u64,
    /// The number of sleeps.
    pub count: u64,
}

/// A lock, and who held it when the wait began.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HeldLock {
    /// `futex`, `mutex`, `rwsem`, `percpu-rwsem`, `rtmutex` or `semaphore`.
    pub lock: String,
    /// `read` or `write`: for what the thread wanted the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
    /// The name of the kernel's variable, or `mmap_lock`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `None`: it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Party>,
}

/// A lock for which a call waited in a blocking site.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LockWait {
    #[serde(flatten)]
    pub lock: HeldLock,
    pub ns: u64,
    /// The number of sleeps.
    pub count: u64,
}

/// Why a slow call slept longest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlowWhy {
    pub slept_ns: u64,
    pub woken_by: Party,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<HeldLock>,
    /// In what the holder of the lock, or the waker, slept meanwhile, then the waker from that
    /// sleep, and so on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<ChainedSleep>,
}

/// A sleep of a thread for which another one waited.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChainedSleep {
    pub sleeper: Party,
    /// The part of it that is within the wait of the other thread.
    pub slept_ns: u64,
    pub call: String,
    /// The blocking site.
    pub function: String,
    pub woken_by: Party,
}

/// What the parts of the kernel are called.
pub struct PartyNames<'a> {
    pub functions: &'a KernelSymbols,
    pub variables: &'a KernelSymbols,
}

impl PartyNames<'_> {
    pub fn function(&self, address: u64) -> String {
        let name = self.functions.function(address);
        name.map_or_else(|| format!("{address:#x}"), str::to_owned)
    }

    /// What is known of a party, except its numbers.
    fn party(&self, name: &PartyName) -> Party {
        let function = (name.function != 0).then(|| self.function(name.function));
        let is_timer = function.as_ref().is_some_and(|name| TIMERS.contains(&name.as_str()));
        let kind = match name.kind {
            wire::WHY_KERNEL_THREAD => PartyKind::KernelThread,
            _ if is_timer => PartyKind::Timer,
            wire::WHY_CALL | wire::WHY_OUTSIDE | wire::WHY_BYSTANDER => PartyKind::Thread,
            wire::WHY_SOFTIRQ => PartyKind::Softirq,
            wire::WHY_INTERRUPT => PartyKind::Interrupt,
            _ => PartyKind::Unknown,
        };
        if !matches!(kind, PartyKind::Thread | PartyKind::KernelThread) {
            return Party { kind, function, ..Party::default() };
        }
        let is_first = name.thread == name.program || kind == PartyKind::KernelThread;
        Party {
            kind,
            program: name.program.clone(),
            thread: if is_first { String::new() } else { name.thread.clone() },
            call: (name.kind == wire::WHY_CALL).then(|| shown_call(name.call)),
            is_outside_of_calls: name.kind == wire::WHY_OUTSIDE,
            is_asleep: name.is_asleep,
            function,
            ..Party::default()
        }
    }

    /// A party of a single call.
    pub fn single(&self, party: &wire::why_party) -> Party {
        let named = self.party(&PartyName::new(party));
        let numbers = match named.kind {
            PartyKind::Thread => (Some(party.tgid), Some(party.pid)),
            _ => (None, None),
        };
        Party { pid: numbers.0, tid: numbers.1, ..named }
    }

    fn lock(&self, lock: AwaitedLock, holder: Option<Party>) -> HeldLock {
        let has = |flag| lock.flags & flag != 0;
        let kind = match lock.flags {
            _ if has(wire::WHY_LOCK_FUTEX) => FUTEX,
            _ if has(wire::WHY_LOCK_MUTEX) => "mutex",
            _ if has(wire::WHY_LOCK_PERCPU) => "percpu-rwsem",
            _ if has(wire::WHY_LOCK_RT) => "rtmutex",
            _ if has(wire::WHY_LOCK_SEMAPHORE) => "semaphore",
            _ => "rwsem",
        };
        let access = match lock.flags {
            _ if has(wire::WHY_LOCK_READ) => Some("read".into()),
            _ if has(wire::WHY_LOCK_WRITE) => Some("write".into()),
            _ => None,
        };
        // Modules are behind the last variable.
        let bounds = self.variables.bounds();
        let is_variable =
            bounds.is_some_and(|(first, last)| (first..last).contains(&lock.variable));
        let variable = || self.variables.function(lock.variable).map(str::to_owned);
        let name = match lock.flags {
            _ if has(wire::WHY_LOCK_MMAP) => Some("mmap_lock".into()),
            _ => is_variable.then(variable).flatten(),
        };
        HeldLock { lock: kind.into(), access, name, holder }
    }
}

fn shown_call(index: u32) -> String {
    let (abi, name) = call_name(index);
    if abi == Abi::X86_64 { name } else { format!("{name} ({})", abi.as_str()) }
}

/// What has woken a call in a blocking site and the locks that it waited for there, the longest
/// times first. `scale`: as of the site.
pub fn of_site(
    causes: &Causes,
    call: u32,
    site: impl Fn(u64) -> bool,
    scale: f64,
    names: &PartyNames<'_>,
) -> (Vec<WokenBy>, Vec<LockWait>) {
    let mut wakers: BTreeMap<Party, CauseStats> = BTreeMap::new();
    let mut locks: BTreeMap<(HeldLock, Party), CauseStats> = BTreeMap::new();
    for (cause, stats) in of_call(causes, call).filter(|(cause, _)| site(cause.site)) {
        let party = names.party(&cause.party);
        match cause.lock {
            None => wakers.entry(party).or_default().add(stats),
            Some(lock) => {
                locks.entry((names.lock(lock, None), party)).or_default().add(stats);
            }
        }
    }
    let ns = |stats: &CauseStats| (stats.blocked_ns as f64 * scale).round() as u64;
    let mut wakers: Vec<_> = wakers
        .into_iter()
        .map(|(party, stats)| WokenBy {
            party: with_process(party, &stats),
            ns: ns(&stats),
            count: stats.sleeps,
        })
        .collect();
    let mut locks: Vec<_> = locks
        .into_iter()
        .map(|((lock, holder), stats)| {
            let holder = with_process(holder, &stats);
            let holder = (holder.kind != PartyKind::Unknown).then_some(holder);
            let lock = HeldLock { holder, ..lock };
            LockWait { lock, ns: ns(&stats), count: stats.sleeps }
        })
        .collect();
    wakers.sort_by_key(|waker| std::cmp::Reverse(waker.ns));
    locks.sort_by_key(|lock| std::cmp::Reverse(lock.ns));
    wakers.truncate(MAX_PARTIES);
    locks.truncate(MAX_PARTIES);
    (wakers, locks)
}

fn with_process(party: Party, stats: &CauseStats) -> Party {
    let has_number = party.kind == PartyKind::Thread && !stats.is_several;
    Party { pid: has_number.then_some(stats.tgid), ..party }
}

/// Why a slow call slept longest; `None` if that is not recorded.
pub fn of_slow_call(record: &wire::slow_call, names: &PartyNames<'_>) -> Option<SlowWhy> {
    let why = &record.why;
    if record.has_why == 0 {
        return None;
    }
    let holder = names.single(&why.holder);
    let lock = (why.lock.flags != 0).then(|| {
        let lock = AwaitedLock { flags: why.lock.flags, variable: why.lock.address };
        names.lock(lock, (holder.kind != PartyKind::Unknown).then(|| holder.clone()))
    });
    let mut sleeper =
        if why.begins_at_holder != 0 { holder } else { names.single(&why.sleep.waker) };
    let (mut from, mut to) = (why.sleep.began_ns, why.sleep.ended_ns);
    let mut chain = Vec::new();
    for link in why.link.iter().take(why.links as usize) {
        (from, to) = (from.max(link.began_ns), to.min(link.ended_ns));
        let woken_by = names.single(&link.waker);
        chain.push(ChainedSleep {
            // What it did later is in the sleep.
            sleeper: Party { call: None, is_asleep: false, ..sleeper },
            slept_ns: to.saturating_sub(from),
            call: shown_call(link.call),
            function: names.function(link.site),
            woken_by: woken_by.clone(),
        });
        sleeper = woken_by;
    }
    Some(SlowWhy {
        slept_ns: why.sleep.ended_ns.saturating_sub(why.sleep.began_ns),
        woken_by: names.single(&why.sleep.waker),
        lock,
        chain,
    })
}

fn is_false(value: &bool) -> bool {
    !*value
}

#[cfg(test)]
mod tests {
    use kernel::lens::causes::Cause;

    use super::*;

    const FUTEX_CALL: u32 = 202;

    fn names() -> PartyNames<'static> {
        PartyNames { functions: KernelSymbols::none(), variables: KernelSymbols::none() }
    }

    fn party(kind: u32, thread: &str) -> PartyName {
        let (program, thread) = ("program".into(), thread.into());
        PartyName { kind, program, thread, call: 1, ..PartyName::default() }
    }

    fn cause(site: u64, lock: Option<AwaitedLock>, party: PartyName) -> Cause {
        Cause { call: FUTEX_CALL, site, lock, party }
    }

    fn stats(blocked_ns: u64, tgid: u32) -> CauseStats {
        CauseStats { blocked_ns, sleeps: 1, tgid, is_several: false }
    }

    #[test]
    fn longest_causes_of_a_site_are_first() {
        let lock = AwaitedLock { flags: wire::WHY_LOCK_FUTEX, variable: 0 };
        let thread = |thread| party(wire::WHY_CALL, thread);
        let causes = Causes::from([
            (cause(1, None, thread("a")), stats(10, 7)),
            (cause(1, None, thread("program")), stats(20, 7)),
            (cause(2, None, thread("a")), stats(30, 8)),
            (cause(3, None, thread("elsewhere")), stats(90, 9)),
            (cause(2, Some(lock), party(wire::WHY_UNKNOWN, "")), stats(5, 0)),
        ]);
        let (wakers, locks) = of_site(&causes, FUTEX_CALL, |site| site < 3, 2.0, &names());
        let wakers: Vec<_> = wakers
            .iter()
            .map(|waker| (waker.party.thread.as_str(), waker.party.pid, waker.ns, waker.count))
            .collect();
        assert_eq!(wakers, [("a", None, 80, 2), ("", Some(7), 40, 1)]);
        assert_eq!(locks.len(), 1);
        assert_eq!((locks[0].lock.lock.as_str(), &locks[0].lock.holder), ("futex", &None));
        assert_eq!(locks[0].ns, 10);
    }

    #[test]
    fn a_party_is_a_thread_or_an_interrupt() {
        let shown = |kind| names().party(&PartyName { function: 0x10, ..party(kind, "t") });
        assert_eq!(shown(wire::WHY_CALL).call.as_deref(), Some("write"));
        assert!(shown(wire::WHY_OUTSIDE).is_outside_of_calls);
        let interrupt = shown(wire::WHY_INTERRUPT);
        assert_eq!(interrupt.kind, PartyKind::Interrupt);
        assert_eq!((interrupt.program.as_str(), interrupt.function.as_deref()), ("", Some("0x10")));
        assert_eq!(shown(wire::WHY_UNKNOWN).kind, PartyKind::Unknown);
    }

    #[test]
    fn locks_have_kinds() {
        let lock = |flags| names().lock(AwaitedLock { flags, variable: 0 }, None);
        assert_eq!(lock(wire::WHY_LOCK_MUTEX).lock, "mutex");
        let mmap = lock(wire::WHY_LOCK_READ | wire::WHY_LOCK_MMAP);
        let shown = (mmap.lock.as_str(), mmap.access.as_deref(), mmap.name.as_deref());
        assert_eq!(shown, ("rwsem", Some("read"), Some("mmap_lock")));
        assert_eq!(lock(wire::WHY_LOCK_WRITE | wire::WHY_LOCK_PERCPU).lock, "percpu-rwsem");
        assert_eq!(lock(wire::WHY_LOCK_SEMAPHORE).lock, "semaphore");
    }

    #[test]
    fn a_chain_is_cut_to_the_wait() {
        let thread = |pid| wire::why_party {
            tgid: 5,
            pid,
            kind: wire::WHY_CALL as u8,
            ..Default::default()
        };
        let sleep = |began_ns, ended_ns, waker| wire::why_sleep {
            began_ns,
            ended_ns,
            waker,
            ..Default::default()
        };
        let mut record = wire::slow_call { has_why: 1, ..Default::default() };
        record.why.sleep = sleep(100, 200, thread(2));
        record.why.link[0] = sleep(50, 180, thread(3));
        record.why.link[1] = sleep(120, 300, wire::why_party::default());
        record.why.links = 2;
        let why = of_slow_call(&record, &names()).expect("it is recorded");
        assert_eq!((why.slept_ns, why.woken_by.tid, why.lock), (100, Some(2), None));
        let chain: Vec<_> =
            why.chain.iter().map(|link| (link.sleeper.tid, link.slept_ns)).collect();
        assert_eq!(chain, [(Some(2), 80), (Some(3), 60)]);
        assert_eq!(why.chain[1].woken_by.kind, PartyKind::Unknown);
        record.has_why = 0;
        assert_eq!(of_slow_call(&record, &names()), None);
    }
}
