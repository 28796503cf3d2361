//! The account of a thread that has not ended: what the gate adds when a thread ends.

use super::call_stats::CallStats;
use crate::process::{self, ThreadUsage};
use crate::session::LiveThread;
use crate::wire;

/// The parts of a live thread's account until `now_ns`, by [`wire::account_part`]. `None`: it has
/// none, or has ended.
pub(super) fn live_parts(thread: &LiveThread, now_ns: u64) -> Option<Vec<(u32, CallStats)>> {
    if thread.life.began_ns == 0 {
        return None;
    }
    Some(parts(thread, &process::thread_usage(thread.pid)?, now_ns))
}

fn parts(thread: &LiveThread, usage: &ThreadUsage, now_ns: u64) -> Vec<(u32, CallStats)> {
    let life = &thread.life;
    let (hot, switch) = (&thread.state.lens, &thread.state.lens_switch);
    let since = |ns: u64| if ns == 0 { 0 } else { now_ns.saturating_sub(ns) };
    // A thread that has got a processor since then is not off it any more: that switch was not
    // reported, or not yet. The kernel's side compares 32 bits.
    let off_outside = if usage.runs as u32 == life.left_runs { since(life.left_ns) } else { 0 };
    let off_in_call = if hot.is_off_cpu == 0 { 0 } else { since(switch.switched_out_ns) };
    let wall = since(life.began_ns);
    let processor = usage.processor_ns.saturating_sub(life.processor_ns);
    // The time off processors may be negative by itself: see its type.
    let off = (off_outside + off_in_call).saturating_add_signed(life.off_ns);
    let is_unseen = thread.is_in_unseen_call || thread.is_in_outer_call;
    let whole = CallStats {
        count: 1,
        wall_ns: wall,
        runqueue_ns: processor,
        // The sleeps of a call that was not seen from its beginning were not seen either.
        blocked_ns: if is_unseen { 0 } else { wall.saturating_sub(processor + off) },
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
        let index = wire::ACCOUNT_LIFE + u32::from(life.left_part);
        let runqueue = match index {
            wire::ACCOUNT_READY => off_outside,
            wire::ACCOUNT_THROTTLED => 0,
            _ => waited_since(life.left_delay_ns),
        };
        parts.push((index, part(off_outside, off_outside, runqueue)));
    }
    if is_unseen {
        let index =
            if thread.is_in_outer_call { wire::ACCOUNT_OUTER } else { wire::ACCOUNT_UNFINISHED };
        parts.push((index, part(wall, 0, 0)));
    } else if u32::from(thread.state.in_call) == wire::BEFORE_CALL {
        // A wait before a call is part of it.
        parts.push((wire::ACCOUNT_UNFINISHED, part(off_in_call, off_in_call, 0)));
    } else if thread.call.is_some_and(|(_, entered_ns)| entered_ns != 0) {
        let off = hot.off_ns + off_in_call;
        let call = part(since(hot.entered_ns), off, waited_since(switch.run_delay_first));
        parts.push((wire::ACCOUNT_UNFINISHED, call));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_part(part: u32) -> u8 {
        (part - wire::ACCOUNT_LIFE) as u8
    }

    fn thread(call: Option<(u32, u64)>, state: wire::thread_state, left_ns: u64) -> LiveThread {
        let life = wire::lens_life {
            began_ns: 1000,
            processor_ns: 50,
            off_ns: 300,
            minor_faults: u32::MAX,
            left_ns,
            left_delay_ns: 30,
            left_runs: 7,
            left_part: left_part(wire::ACCOUNT_ASLEEP),
            ..Default::default()
        };
        LiveThread::of_test(call, state, life)
    }

    const USAGE: ThreadUsage = ThreadUsage {
        processor_ns: 250,
        run_delay_ns: 110,
        runs: 7,
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

        state.in_call = wire::BEFORE_CALL as u8;
        let (part, wait) = &parts(&thread(None, state, 0), &USAGE, 2000)[1];
        assert_eq!((*part, wait.wall_ns, wait.blocked_ns), (wire::ACCOUNT_UNFINISHED, 100, 100));

        let mut ready = thread(None, wire::thread_state::default(), 1500);
        ready.life.left_part = left_part(wire::ACCOUNT_READY);
        let (part, wait) = &parts(&ready, &USAGE, 2000)[1];
        assert_eq!((*part, wait.runqueue_ns, wait.blocked_ns), (wire::ACCOUNT_READY, 500, 0));

        ready.life.left_part = left_part(wire::ACCOUNT_THROTTLED);
        let (part, wait) = &parts(&ready, &USAGE, 2000)[1];
        assert_eq!((*part, wait.runqueue_ns, wait.blocked_ns), (wire::ACCOUNT_THROTTLED, 0, 500));

        let all = parts(&thread(None, wire::thread_state::default(), 1500), &USAGE, 2000);
        assert_eq!(all[0].1.blocked_ns, 0);
        let (part, wait) = &all[1];
        assert_eq!((*part, wait.wall_ns), (wire::ACCOUNT_ASLEEP, 500));
        assert_eq!((wait.runqueue_ns, wait.blocked_ns), (80, 420));
    }

    #[test]
    fn wait_from_before_counts_from_the_beginning_of_the_life() {
        let mut state = wire::thread_state::default();
        state.lens.is_off_cpu = 1;
        state.lens_switch.switched_out_ns = 400;
        let mut outer = thread(Some((0, 0)), state, 0);
        outer.life.off_ns = 400 - 1000;
        // Of 1000 ns, it was asleep for 500 and on a processor for 200.
        let mut returned = thread(None, wire::thread_state::default(), 0);
        returned.life.off_ns = 500;
        assert_eq!(parts(&returned, &USAGE, 2000)[0].1.blocked_ns, 300);
        assert_eq!(parts(&outer, &USAGE, 2000)[0].1.blocked_ns, 0);
    }

    #[test]
    fn wait_that_is_over_does_not_count_on() {
        let mut running = thread(None, wire::thread_state::default(), 1500);
        running.life.left_runs = 6;
        assert_eq!(parts(&running, &USAGE, 2000).len(), 1);
    }

    #[test]
    fn call_from_before_has_the_whole_life() {
        let mut unseen = thread(None, wire::thread_state::default(), 0);
        unseen.is_in_unseen_call = true;
        let mut outer = thread(Some((0, 0)), wire::thread_state::default(), 0);
        outer.is_in_outer_call = true;
        for (thread, index) in [(unseen, wire::ACCOUNT_UNFINISHED), (outer, wire::ACCOUNT_OUTER)] {
            let all = parts(&thread, &USAGE, 2000);
            assert_eq!(all[0].1.blocked_ns, 0);
            assert_eq!((all[1].0, all[1].1.wall_ns), (index, 1000));
        }
    }
}
