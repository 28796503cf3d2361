//! Where a call's time went, against the kernel's other accounts of it, in the same run.
//!
//! Two accounts of one thing differ by what one of them does not see, and so much is allowed beyond the 2 %:
//! - A thread's CPU clock leaves out what the hypervisor took, and on some kernels interrupts.
//! - A thread that is to make room for one that wakes up leaves its CPU, by the scheduler's account, as the
//!   other wakes; by the gate's, as it leaves, with the rest of the interrupt in between.

use serde_json::Value;

use crate::harness::{Job, Report, agree, unseen_ns, workload};

struct Split {
    report: Report,
    /// What the workload printed.
    own: Value,
    unseen_ns: u64,
}

impl Split {
    #[track_caller]
    fn of(arguments: &str) -> Self {
        let before = unseen_ns();
        let ran = Job::run("", workload(arguments)).finish().success();
        Self { report: ran.report().complete(), own: ran.json(), unseen_ns: unseen_ns() - before }
    }

    #[track_caller]
    fn own(&self, path: &str) -> u64 {
        match self.own.pointer(path).and_then(Value::as_u64) {
            Some(ns) => ns,
            None => panic!("no {path} in {}", self.own),
        }
    }

    /// CPU and waiting time of the reads, by the gate, the CPU clock and schedstat.
    #[track_caller]
    fn check_reads(&self, path: &str) {
        let read = self.report.call("read");
        let own = |name: &str| self.own(&format!("{path}/{name}"));
        assert_eq!(read.count, own("reads"));
        agree("wall", read.wall_ns, own("wall_ns"), 0);
        let switches = own("slices") * SWITCH_NS;
        agree("on CPU", read.cpu_ns, own("cpu_ns"), self.unseen_ns + switches);
        // Little waiting is no measure. And one wait of a slice may fall between two calls.
        let part = own("wall_ns") / 100;
        agree("waiting", read.runqueue_ns, own("wait_ns"), switches + part);
        agree("blocked", read.blocked_ns, 0, part);
    }
}

/// The rest of the interrupt that wakes another thread up, which has the timer set anew by the hypervisor.
const SWITCH_NS: u64 = 10_000;

#[test]
fn a_sleep_is_blocked() {
    let split = Split::of("sleep 400 3");
    let sleep = split.report.call("nanosleep");
    assert_eq!(sleep.count, 3);
    // Once on 6.18 the kernel's counter took nearly all of one sleep for waiting.
    let (slept, waited) = (split.own("/wall_ns"), split.own("/wait_ns"));
    agree("waiting", sleep.runqueue_ns, waited, slept / 100);
    assert!(sleep.blocked_ns + waited >= 1_200_000_000 - 1_200_000, "{sleep:?}");
    agree("blocked", sleep.blocked_ns, 1_200_000_000_u64.saturating_sub(waited), 0);
    agree("wall", sleep.wall_ns, slept, 0);
    // Less than the workload's own, which has its other calls in it.
    assert!(sleep.cpu_ns <= split.own("/cpu_ns") + split.unseen_ns, "{sleep:?}");
}

#[test]
fn reading_zeros_is_cpu_time() {
    Split::of("spin-read 300").check_reads("");
}

#[test]
fn a_starved_reader_waits_for_its_cpu() {
    let split = Split::of("starved 120 0");
    split.check_reads("");
    let read = split.report.call("read");
    assert!(read.runqueue_ns > read.cpu_ns, "{read:?}");
}

#[test]
fn sleeping_and_waiting_are_told_apart() {
    let split = Split::of("mixed 300 30 0");
    split.check_reads("/read");
    let sleep = split.report.call("nanosleep");
    assert_eq!(sleep.count, 4);
    agree("blocked", sleep.blocked_ns, 1_200_000_000, 0);
    let (waited, slept) = (split.own("/sleep/wait_ns"), split.own("/sleep/wall_ns"));
    agree("waiting", sleep.runqueue_ns, waited, slept / 100);
    agree("wall", sleep.wall_ns, slept, 0);
}

#[test]
fn a_pipes_reader_is_blocked() {
    let split = Split::of("pipe-block 200 6");
    let read = split.report.call("read");
    assert_eq!(read.count, 6);
    let own = split.own("/blocked_ns");
    agree("wall", read.wall_ns, own, 0);
    agree("off CPU", read.blocked_ns + read.runqueue_ns, own, 0);
    assert!(read.blocked_ns > read.runqueue_ns, "{read:?}");
}
