//! How a call's time is divided, compared with the kernel's other accounts of the same run.
//!
//! Two accounts of one time differ by what one of them does not see. The tests allow that much
//! beyond the 2 %:
//! - A thread's CPU clock leaves out the time that the hypervisor took, and on some kernels
//!   interrupts.
//! - When a thread is preempted by one that wakes up, the scheduler's account ends when the other
//!   thread wakes up. The gate's account ends at the switch, after the rest of the interrupt.

use serde_json::Value;

use crate::harness::scheduling::unaccounted_ns;
use crate::harness::{Job, Report, assert_close, workload};

struct TimeSplit {
    report: Report,
    /// The output of the workload.
    own: Value,
    unseen_ns: u64,
}

impl TimeSplit {
    #[track_caller]
    fn of(arguments: &str) -> Self {
        let before = unaccounted_ns();
        let ran = Job::run("", workload(arguments)).finish().success();
        Self {
            report: ran.report().complete(),
            own: ran.json(),
            unseen_ns: unaccounted_ns() - before,
        }
    }

    #[track_caller]
    fn own(&self, path: &str) -> u64 {
        match self.own.pointer(path).and_then(Value::as_u64) {
            Some(ns) => ns,
            None => panic!("no {path} in {}", self.own),
        }
    }

    /// Compares the CPU and waiting time of the reads by the gate, the CPU clock and schedstat.
    #[track_caller]
    fn check_reads(&self, path: &str) {
        let read = self.report.call("read");
        let own = |name: &str| self.own(&format!("{path}/{name}"));
        assert_eq!(read.count, own("reads"));
        assert_close("wall", read.wall_ns, own("wall_ns"), 0);
        let switches = own("slices") * SWITCH_NS;
        assert_close("on CPU", read.cpu_ns, own("cpu_ns"), self.unseen_ns + switches);
        // Short waits are too inaccurate to compare, and one wait of a slice may fall between two
        // calls.
        let part = own("wall_ns") / 100;
        assert_close("waiting", read.runqueue_ns, own("wait_ns"), switches + part);
        assert_close("blocked", read.blocked_ns, 0, part);
    }
}

/// The rest of the interrupt that wakes another thread; it includes a call to the hypervisor to set
/// the timer.
const SWITCH_NS: u64 = 10_000;

#[test]
fn sleep_counts_as_blocked() {
    let split = TimeSplit::of("sleep 400 3");
    let sleep = split.report.call("nanosleep");
    assert_eq!(sleep.count, 3);
    // On 6.18, the kernel's counter once took nearly a whole sleep for waiting.
    let (slept, waited) = (split.own("/wall_ns"), split.own("/wait_ns"));
    assert_close("waiting", sleep.runqueue_ns, waited, slept / 100);
    assert!(sleep.blocked_ns + waited >= 1_200_000_000 - 1_200_000, "{sleep:?}");
    assert_close("blocked", sleep.blocked_ns, 1_200_000_000_u64.saturating_sub(waited), 0);
    assert_close("wall", sleep.wall_ns, slept, 0);
    // Less than the CPU time that the workload measured, which includes its other calls.
    assert!(sleep.cpu_ns <= split.own("/cpu_ns") + split.unseen_ns, "{sleep:?}");
}

#[test]
fn read_of_dev_zero_counts_as_cpu() {
    TimeSplit::of("spin-read 300").check_reads("");
}

#[test]
fn starved_reader_counts_as_waiting() {
    let split = TimeSplit::of("starved 120 0");
    split.check_reads("");
    let read = split.report.call("read");
    assert!(read.runqueue_ns > read.cpu_ns, "{read:?}");
}

#[test]
fn sleeping_and_waiting_are_distinguished() {
    let split = TimeSplit::of("mixed 300 30 0");
    split.check_reads("/read");
    let sleep = split.report.call("nanosleep");
    assert_eq!(sleep.count, 4);
    assert_close("blocked", sleep.blocked_ns, 1_200_000_000, 0);
    let (waited, slept) = (split.own("/sleep/wait_ns"), split.own("/sleep/wall_ns"));
    assert_close("waiting", sleep.runqueue_ns, waited, slept / 100);
    assert_close("wall", sleep.wall_ns, slept, 0);
}

#[test]
fn pipe_reader_counts_as_blocked() {
    let split = TimeSplit::of("pipe-block 200 6");
    let read = split.report.call("read");
    assert_eq!(read.count, 6);
    let own = split.own("/blocked_ns");
    assert_close("wall", read.wall_ns, own, 0);
    assert_close("off CPU", read.blocked_ns + read.runqueue_ns, own, 0);
    assert!(read.blocked_ns > read.runqueue_ns, "{read:?}");
}
