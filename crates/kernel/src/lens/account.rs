//! The account of a thread that has not ended: what the gate adds when a thread ends.

use super::call_stats::CallStats;
use crate::clock::now_ns;
use crate::process::{self, ThreadUsage};
use crate::session::LiveThread;
use crate::wire;

/// The parts of a live thread's account, by [`wire::account_part`].
pub(super) fn live_parts(thread: &LiveThread) -> Vec<(u32, CallStats)> {
    if thread.life.began_ns == 0 {
        return Vec::new();
    }
    let Some(usage) = process::thread_usage(thread.pid) else { return Vec::new() };
    let mut parts = parts(thread, &usage, now_ns());
    let call = if u32::from(thread.state.in_call) == wire::IN_OUTER_CALL {
        Some(wire::ACCOUNT_OUTER)
    } else if !thread.has_crossed && process::current_call(thread.pid).is_some() {
        // A thread that has slept in one call since it was attached is known from /proc only.
        Some(wire::ACCOUNT_UNFINISHED)
    } else {
        None
    };
    if let Some(part) = call {
        // The sleeps of a call that was not seen from its beginning were not seen either.
        parts[0].1.blocked_ns = 0;
        parts.push((part, parts[0].1.clone()));
    }
    parts
}

fn parts(thread: &LiveThread, usage: &ThreadUsage, now_ns: u64) -> Vec<(u32, CallStats)> {
    let life = &thread.life;
    let (hot, switch) = (&thread.state.lens, &thread.state.lens_switch);
    let since = |ns: u64| if ns == 0 { 0 } else { now_ns.saturating_sub(ns) };
    let off_outside = since(life.left_ns);
    let off_in_call = if hot.is_off_cpu == 0 { 0 } else { since(switch.switched_out_ns) };
    let wall = since(life.began_ns);
    let processor = usage.processor_ns.saturating_sub(life.processor_ns);
    let known = processor + life.off_ns + off_outside + off_in_call;
    let whole = CallStats {
        count: 1,
        wall_ns: wall,
        blocked_ns: wall.saturating_sub(known),
        // The kernel's side counts with 32 bits.
        minor_faults: u64::from((usage.minor_faults as u32).wrapping_sub(life.minor_faults)),
        major_faults: u64::from((usage.major_faults as u32).wrapping_sub(life.major_faults)),
        ..CallStats::default()
    };
    let waited_since = |before: u64| usage.run_delay_ns.saturating_sub(before);
    let part = |wall: u64, off: u64, runqueue: u64| CallStats {
        count: 1,
        wall_ns: wall,
        runqueue_ns: runqueue.min(off),
        blocked_ns: off.saturating_sub(runqueue),
        ..CallStats::default()
    };
    let mut parts = vec![(wire::ACCOUNT_LIFE, whole)];
    if off_outside > 0 {
        // The kernel adds a wait for a processor to its counter when it has ended.
        let (index, runqueue) = match life.left_part {
            wire::ACCOUNT_THROTTLED => (wire::ACCOUNT_READY, off_outside),
            other => (other, waited_since(life.left_delay_ns)),
        };
        parts.push((index, part(off_outside, off_outside, runqueue)));
    }
    if thread.call.is_some_and(|(_, entered_ns)| entered_ns != 0) {
        let off = hot.off_ns + off_in_call;
        let call = part(since(hot.entered_ns), off, waited_since(switch.run_delay_first));
        parts.push((wire::ACCOUNT_UNFINISHED, call));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(call: Option<(u32, u64)>, state: wire::thread_state, left_ns: u64) -> LiveThread {
        let life = wire::lens_life {
            began_ns: 1000,
            processor_ns: 50,
            off_ns: 300,
            minor_faults: u32::MAX,
            left_ns,
            left_delay_ns: 30,
            left_part: wire::ACCOUNT_FAULTS,
            ..Default::default()
        };
        LiveThread { slot: 1, pid: 2, has_crossed: true, call, row: 3, state, life }
    }

    const USAGE: ThreadUsage = ThreadUsage {
        processor_ns: 250,
        run_delay_ns: 110,
        minor_faults: 1 << 32,
        major_faults: 2,
    };

    #[test]
    fn time_that_the_scheduler_has_not_counted_is_unaccounted() {
        let all = parts(&thread(None, wire::thread_state::default(), 0), &USAGE, 2000);
        assert_eq!(all.len(), 1);
        let (part, life) = &all[0];
        assert_eq!((*part, life.count, life.wall_ns), (wire::ACCOUNT_LIFE, 1, 1000));
        assert_eq!(life.blocked_ns, 500);
        assert_eq!((life.minor_faults, life.major_faults), (1, 2));
    }

    #[test]
    fn call_and_wait_in_progress_are_parts() {
        let mut state = wire::thread_state::default();
        state.lens = wire::lens_hot { entered_ns: 1200, off_ns: 300, is_off_cpu: 1, ..state.lens };
        state.lens_switch =
            wire::lens_switch { switched_out_ns: 1900, run_delay_first: 90, ..state.lens_switch };
        let all = parts(&thread(Some((0, 1200)), state, 0), &USAGE, 2000);
        assert_eq!(all[0].1.blocked_ns, 400);
        let (part, call) = &all[1];
        assert_eq!((*part, call.wall_ns), (wire::ACCOUNT_UNFINISHED, 800));
        assert_eq!((call.runqueue_ns, call.blocked_ns), (20, 380));

        let mut ready = thread(None, wire::thread_state::default(), 1500);
        ready.life.left_part = wire::ACCOUNT_THROTTLED;
        let (part, wait) = &parts(&ready, &USAGE, 2000)[1];
        assert_eq!((*part, wait.runqueue_ns, wait.blocked_ns), (wire::ACCOUNT_READY, 500, 0));

        let all = parts(&thread(None, wire::thread_state::default(), 1500), &USAGE, 2000);
        assert_eq!(all[0].1.blocked_ns, 0);
        let (part, wait) = &all[1];
        assert_eq!((*part, wait.wall_ns), (wire::ACCOUNT_FAULTS, 500));
        assert_eq!((wait.runqueue_ns, wait.blocked_ns), (80, 420));
    }
}
