//! `--why`: what has woken a thread, and who held the lock that it waited for, in programs that
//! know it.

use crate::harness::report::{Call, LockWait, Party, SlowCall, WokenBy};
use crate::harness::{Job, Report, workload};

/// All waits of the workload last at least this long.
const WAIT_NS: u64 = 50_000_000;

fn report_of(options: &str, what: &str) -> Report {
    let options = format!("--why {options}");
    Job::run(&options, workload(&format!("waits-for {what}")))
        .finish()
        .success()
        .report()
        .complete()
}

/// What has woken a call for the longest time, over all its sites.
fn main_waker(call: &Call) -> &WokenBy {
    let wakers = call.blocked_in.iter().flat_map(|site| &site.woken_by);
    wakers.max_by_key(|waker| waker.ns).unwrap_or_else(|| panic!("it has wakers: {call:?}"))
}

fn main_lock(call: &Call) -> &LockWait {
    let locks = call.blocked_in.iter().flat_map(|site| &site.locks);
    locks.max_by_key(|lock| lock.ns).unwrap_or_else(|| panic!("it waits for locks: {call:?}"))
}

#[track_caller]
fn assert_thread(party: &Party, thread: &str, call: &str) {
    let found = (party.kind.as_str(), party.program.as_str(), party.thread.as_str());
    assert_eq!(found, ("thread", "workloads", thread), "{party:?}");
    assert_eq!(party.call.as_deref(), Some(call), "{party:?}");
}

/// The times of wakers add up to those of their sites.
#[track_caller]
fn assert_sums(call: &Call) {
    for site in &call.blocked_in {
        let sum: u64 = site.woken_by.iter().map(|waker| waker.ns).sum();
        assert!(sum.abs_diff(site.ns) <= site.woken_by.len() as u64, "{site:?}");
        let count: u64 = site.woken_by.iter().map(|waker| waker.count).sum();
        assert_eq!(count, site.count, "{site:?}");
    }
}

#[test]
fn pipe_is_written_by_a_thread() {
    let report = report_of("", "pipe");
    let read = report.call("read");
    assert_sums(read);
    let waker = main_waker(read);
    assert_thread(&waker.party, "ponger", "write");
    assert!(waker.count <= 10 && waker.party.pid.is_some(), "{waker:?}");
}

#[test]
fn timer_ends_a_sleep() {
    let done = Job::run("--why", workload("sleep 20 5")).finish().success();
    let report = done.report().complete();
    let sleep = report.call("nanosleep");
    assert_sums(sleep);
    let waker = main_waker(sleep);
    assert_eq!(waker.party.kind, "timer", "{waker:?}");
    assert_eq!(waker.party.function.as_deref(), Some("hrtimer_wakeup"));
    assert!((4..=5).contains(&waker.count), "{waker:?}");
}

#[test]
fn mutex_has_an_owner() {
    for what in ["mutex", "robust-mutex", "pi-mutex"] {
        let report = report_of("", what);
        let futex = report.call("futex");
        assert_thread(&main_waker(futex).party, "holder", "futex");
        let wait = main_lock(futex);
        let holder = wait.holder.as_ref().unwrap_or_else(|| panic!("{what}: {wait:?}"));
        assert_eq!(wait.lock, "futex");
        assert_thread(holder, "holder", "nanosleep");
        assert!(holder.is_asleep && wait.ns >= WAIT_NS / 2, "{what}: {wait:?}");
    }
}

#[test]
fn condition_is_signalled_by_a_thread() {
    let report = report_of("", "condition");
    let futex = report.call("futex");
    assert_thread(&main_waker(futex).party, "signaler", "futex");
    // A condition has no owner.
    let is_long = |lock: &&LockWait| lock.ns >= WAIT_NS / 2;
    let locks = futex.blocked_in.iter().flat_map(|site| &site.locks);
    assert_eq!(locks.filter(is_long).count(), 0, "{futex:?}");
}

#[test]
fn child_wakes_its_parent_when_it_ends() {
    let report = report_of("", "child");
    assert_thread(&main_waker(report.call("wait4")).party, "", "exit_group");
}

#[test]
fn sender_wakes_the_receiver_over_loopback() {
    // The receiver is woken in a softirq, which runs within the sender's call.
    let report = report_of("", "socket");
    let received = report.call("recvfrom");
    // It sleeps in wait_woken(), which is not in the scheduler's section.
    assert!(received.blocked_share("sk_wait_data") >= 0.9, "{:?}", received.blocked_in);
    let waker = main_waker(received);
    assert_thread(&waker.party, "sender", "sendto");
    assert!(waker.party.function.is_some(), "{waker:?}");
}

#[test]
fn kernel_mutex_has_a_holder() {
    let report = report_of("", "kernel-mutex");
    let write = report.call("write");
    let wait = main_lock(write);
    assert_eq!(wait.lock, "mutex", "{wait:?}");
    let holder = wait.holder.as_ref().expect("a mutex has an owner");
    assert_thread(holder, "reader", "read");
    assert!(holder.is_asleep && wait.ns >= WAIT_NS / 2, "{wait:?}");
    assert_thread(&main_waker(write).party, "reader", "read");
}

#[test]
fn slow_call_has_a_chain() {
    let report = report_of("--slower-than 30ms", "chain");
    let slow = |name: &str| -> &SlowCall {
        let of_name = report.slow.iter().find(|call| call.name == name);
        of_name.unwrap_or_else(|| panic!("no slow {name}: {:?}", report.slow))
    };
    // The first thread waits in a futex also for its threads to end, but that is short.
    let why = slow("futex").why.as_ref().expect("a reason");
    assert_thread(&why.woken_by, "holder", "futex");
    let lock = why.lock.as_ref().expect("a lock");
    assert_eq!(lock.lock, "futex");
    assert_thread(lock.holder.as_ref().expect("an owner"), "holder", "read");
    let [first, second] = &why.chain[..] else { panic!("not two links: {why:?}") };
    assert_eq!((first.sleeper.thread.as_str(), first.call.as_str()), ("holder", "read"));
    assert_thread(&first.woken_by, "writer", "write");
    assert_eq!((second.sleeper.thread.as_str(), second.call.as_str()), ("writer", "nanosleep"));
    assert_eq!(second.woken_by.kind, "timer");
    assert!(first.slept_ns <= why.slept_ns && second.slept_ns <= first.slept_ns, "{why:?}");
    assert!(second.slept_ns >= WAIT_NS / 2, "{why:?}");
    assert_eq!(first.sleeper.tid, lock.holder.as_ref().and_then(|holder| holder.tid));
}

#[test]
fn without_the_option_there_are_no_causes() {
    let done = Job::run("", workload("waits-for mutex")).finish().success();
    let report = done.report().complete();
    let sites = report.calls.iter().flat_map(|call| &call.blocked_in);
    assert!(sites.into_iter().all(|site| site.woken_by.is_empty() && site.locks.is_empty()));
}

/// Occupies a processor.
mod alone {
    use super::WAIT_NS;
    use crate::harness::{Job, workload};

    /// The wait for a processor after the wake-up is no part of the sleep.
    #[test]
    fn sleep_ends_with_the_wake_up() {
        let run = Job::run("--why --slower-than 100ms", workload("overslept 200"));
        let report = run.finish().success().report().complete();
        let sleep = report.slow.iter().find(|call| call.name == "nanosleep");
        let sleep = sleep.unwrap_or_else(|| panic!("no slow nanosleep: {:?}", report.slow));
        assert!(sleep.runqueue_ns >= WAIT_NS, "{sleep:?}");
        let why = sleep.why.as_ref().expect("a reason");
        assert!(why.slept_ns.abs_diff(sleep.blocked_ns) < WAIT_NS / 2, "{sleep:?}");
    }
}
