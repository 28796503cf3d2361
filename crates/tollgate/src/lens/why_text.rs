//! The text of `--why`.

use super::report::BlockedIn;
use super::why_report::{HeldLock, Party, PartyKind, SlowWhy};
use crate::format::{count, duration, printable};

/// Causes with less than this share of a site's time are only in the JSON.
const SHARE_MIN: f64 = 0.05;
const CAUSES_SHOWN: usize = 3;

/// The lines below a blocking site.
pub fn of_site(site: &BlockedIn) -> Vec<String> {
    let wakers = site.woken_by.iter().map(|waker| {
        (waker.ns, format!("woken by {}: {}", party(&waker.party), spent(waker.ns, waker.count)))
    });
    let locks = site.locks.iter().map(|lock| {
        (lock.ns, format!("lock: {}: {}", held_lock(&lock.lock), spent(lock.ns, lock.count)))
    });
    let mut lines = most_important(site.ns, wakers.collect());
    lines.extend(most_important(site.ns, locks.collect()));
    lines
}

fn most_important(of: u64, lines: Vec<(u64, String)>) -> Vec<String> {
    let all = lines.len();
    let is_shown = |(ns, _): &(u64, String)| *ns as f64 >= of as f64 * SHARE_MIN;
    let mut shown: Vec<_> =
        lines.into_iter().filter(is_shown).take(CAUSES_SHOWN).map(|(_, line)| line).collect();
    if !shown.is_empty() && shown.len() < all {
        shown.push(format!("{} more, which are in the JSON", all - shown.len()));
    }
    shown
}

fn spent(ns: u64, times: u64) -> String {
    if times == 1 {
        return format!("{}, once", duration(ns));
    }
    format!("{}, {} times", duration(ns), count(times))
}

/// The lines of a slow call.
pub fn of_slow_call(why: &SlowWhy) -> Vec<String> {
    let slept = duration(why.slept_ns);
    let mut lines = vec![format!("longest sleep: {slept}, woken by {}", party(&why.woken_by))];
    lines.extend(why.lock.iter().map(|lock| format!("lock: {}", held_lock(lock))));
    lines.extend(why.chain.iter().map(|link| {
        format!(
            "meanwhile {} slept {} in {} ({}), woken by {}",
            party(&link.sleeper),
            duration(link.slept_ns),
            printable(&link.call),
            printable(&link.function),
            party(&link.woken_by)
        )
    }));
    lines
}

/// What a party is, in words.
pub fn party(party: &Party) -> String {
    let function = party.function.as_deref().map(|name| format!(" ({})", printable(name)));
    let function = function.unwrap_or_default();
    match party.kind {
        PartyKind::Thread => thread(party) + &function,
        PartyKind::KernelThread => {
            format!("the kernel thread {}{function}", printable(&party.program))
        }
        PartyKind::Timer => format!("a timer{function}"),
        PartyKind::Interrupt => format!("an interrupt{function}"),
        PartyKind::Softirq => format!("a softirq{function}"),
        PartyKind::Unknown => "an unknown waker".into(),
    }
}

fn thread(party: &Party) -> String {
    let mut name = printable(&party.program);
    if !party.thread.is_empty() {
        name = format!("{name}/{}", printable(&party.thread));
    }
    let number = match (party.pid, party.tid) {
        (Some(pid), Some(tid)) => format!("process {pid}, thread {tid}"),
        (Some(pid), None) => format!("process {pid}"),
        _ => "several processes".into(),
    };
    let call = match &party.call {
        Some(call) if party.is_asleep => format!(", asleep in {}", printable(call)),
        Some(call) => format!(" in {}", printable(call)),
        None if party.is_asleep => ", asleep".into(),
        None if party.is_outside_of_calls => " outside of calls".into(),
        None => String::new(),
    };
    format!("{name} ({number}){call}")
}

fn held_lock(lock: &HeldLock) -> String {
    let name = lock.name.as_deref().map(|name| format!(" {}", printable(name)));
    let access = lock.access.as_deref().map(|access| format!(", to {}", printable(access)));
    let holder = lock.holder.as_ref().map(|holder| format!(", held by {}", party(holder)));
    [Some(printable(&lock.lock)), name, access, holder].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::super::why_report::{ChainedSleep, LockWait, WokenBy};
    use super::*;

    fn thread(program: &str, call: Option<&str>) -> Party {
        Party {
            kind: PartyKind::Thread,
            program: program.into(),
            pid: Some(7),
            call: call.map(str::to_owned),
            ..Party::default()
        }
    }

    #[test]
    fn causes_are_below_their_site() {
        let timer = Party { kind: PartyKind::Timer, ..Party::default() };
        let holder = Party { is_asleep: true, ..thread("b", Some("fsync")) };
        let lock = HeldLock { lock: "futex".into(), holder: Some(holder), ..HeldLock::default() };
        let site = BlockedIn {
            function: "futex_wait_queue".into(),
            ns: 1_000_000,
            count: 12,
            woken_by: vec![
                WokenBy { party: thread("b", Some("futex")), ns: 960_000, count: 11 },
                WokenBy { party: timer, ns: 40_000, count: 1 },
            ],
            locks: vec![LockWait { lock, ns: 900_000, count: 1 }],
        };
        assert_eq!(
            of_site(&site),
            [
                "woken by b (process 7) in futex: 960 us, 11 times",
                "1 more, which are in the JSON",
                "lock: futex, held by b (process 7), asleep in fsync: 900 us, once",
            ]
        );
    }

    #[test]
    fn a_slow_call_has_a_chain() {
        let kernel = Party {
            kind: PartyKind::KernelThread,
            program: "kworker/0:1".into(),
            function: Some("end_bio".into()),
            ..Party::default()
        };
        let why = SlowWhy {
            slept_ns: 5_000_000,
            woken_by: Party { tid: Some(9), ..thread("b", Some("futex")) },
            lock: Some(HeldLock {
                lock: "rwsem".into(),
                access: Some("write".into()),
                name: Some("mmap_lock".into()),
                holder: None,
            }),
            chain: vec![ChainedSleep {
                sleeper: Party { tid: Some(9), thread: "io".into(), ..thread("b", None) },
                slept_ns: 4_000_000,
                call: "fsync".into(),
                function: "wait".into(),
                woken_by: kernel,
            }],
        };
        assert_eq!(
            of_slow_call(&why),
            [
                "longest sleep: 5.00 ms, woken by b (process 7, thread 9) in futex",
                "lock: rwsem mmap_lock, to write",
                "meanwhile b/io (process 7, thread 9) slept 4.00 ms in fsync (wait), woken by the \
                kernel thread kworker/0:1 (end_bio)",
            ]
        );
    }
}
