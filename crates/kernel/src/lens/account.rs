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
    // A thread that has slept in one call since it was attached is known from /proc only.
    if !thread.has_crossed && process::current_call(thread.pid).is_some() {
        let life = parts[0].1.clone();
        parts.push((wire::ACCOUNT_UNFINISHED, life));
    }
    parts
}

fn parts(thread: &LiveThread, usage: &ThreadUsage, now_ns: u64) -> Vec<(u32, CallStats)> {
    let life = &thread.life;
    let wall = now_ns.saturating_sub(life.began_ns);
    // The kernel counts a wait for a processor when it has ended.
    let is_preempted = life.left_ns != 0 && life.left_part == wire::ACCOUNT_THROTTLED;
    let ready = if is_preempted { now_ns.saturating_sub(life.left_ns) } else { 0 };
    let runqueue = (usage.run_delay_ns.saturating_sub(life.run_delay_ns) + ready).min(wall);
    let processor = usage.processor_ns.saturating_sub(life.processor_ns);
    let whole = CallStats {
        count: 1,
        wall_ns: wall,
        runqueue_ns: runqueue,
        blocked_ns: wall.saturating_sub(runqueue + processor),
        // The kernel's side counts with 32 bits.
        minor_faults: u64::from((usage.minor_faults as u32).wrapping_sub(life.minor_faults)),
        major_faults: u64::from((usage.major_faults as u32).wrapping_sub(life.major_faults)),
        ..CallStats::default()
    };
    let mut parts = vec![(wire::ACCOUNT_LIFE, whole)];
    let waited = |since: u64, at_first: u64, off: u64| {
        let waited = usage.run_delay_ns.saturating_sub(at_first).min(off);
        CallStats {
            count: 1,
            wall_ns: now_ns.saturating_sub(since),
            runqueue_ns: waited,
            blocked_ns: off - waited,
            ..CallStats::default()
        }
    };
    if life.left_ns != 0 && !is_preempted {
        let off = now_ns.saturating_sub(life.left_ns);
        parts.push((life.left_part, waited(life.left_ns, life.left_delay_ns, off)));
    }
    let (hot, switch) = (&thread.state.lens, &thread.state.lens_switch);
    if thread.call.is_some_and(|(_, entered_ns)| entered_ns != 0) {
        let now_off = u64::from(hot.is_off_cpu) * now_ns.saturating_sub(switch.switched_out_ns);
        let off = hot.off_ns + now_off;
        parts.push((
            wire::ACCOUNT_UNFINISHED,
            waited(hot.entered_ns, switch.run_delay_first, off),
        ));
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
            run_delay_ns: 10,
            minor_faults: u32::MAX,
            left_ns,
            left_delay_ns: 30,
            left_part: wire::ACCOUNT_FAULTS,
            ..Default::default()
        };
        LiveThread { slot: 1, pid: 2, has_crossed: true, call, row: 3, state, life }
    }

    const USAGE: ThreadUsage =
        ThreadUsage { processor_ns: 250, run_delay_ns: 110, minor_faults: 1 << 32, major_faults: 2 };

    #[test]
    fn life_is_what_the_scheduler_has_counted() {
        let all = parts(&thread(None, wire::thread_state::default(), 0), &USAGE, 2000);
        assert_eq!(all.len(), 1);
        let (part, life) = &all[0];
        assert_eq!((*part, life.count, life.wall_ns), (wire::ACCOUNT_LIFE, 1, 1000));
        assert_eq!((life.runqueue_ns, life.blocked_ns), (100, 700));
        assert_eq!((life.minor_faults, life.major_faults), (1, 2));
    }

    #[test]
    fn call_and_wait_in_progress_are_parts() {
        let mut state = wire::thread_state::default();
        state.lens =
            wire::lens_hot { entered_ns: 1200, off_ns: 300, is_off_cpu: 1, ..state.lens };
        state.lens_switch = wire::lens_switch {
            switched_out_ns: 1900,
            run_delay_first: 90,
            ..state.lens_switch
        };
        let all = parts(&thread(Some((0, 1200)), state, 0), &USAGE, 2000);
        let (part, call) = &all[1];
        assert_eq!((*part, call.wall_ns), (wire::ACCOUNT_UNFINISHED, 800));
        assert_eq!((call.runqueue_ns, call.blocked_ns), (20, 380));

        let all = parts(&thread(None, wire::thread_state::default(), 1500), &USAGE, 2000);
        let (part, wait) = &all[1];
        assert_eq!((*part, wait.wall_ns), (wire::ACCOUNT_FAULTS, 500));
        assert_eq!((wait.runqueue_ns, wait.blocked_ns), (80, 420));
    }
}
