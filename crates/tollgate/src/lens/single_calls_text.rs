//! The text of single calls: the slowest ones, and those in progress.

use std::fmt::Write as _;

use super::call_table::shown_name;
use super::report::{InProgress, SlowCall};
use super::why_text;
use crate::format::{duration, printable};
use crate::report::{TextOptions, more_rows};

/// Appends the slowest calls.
pub fn slow_calls(out: &mut String, slow: &[SlowCall], layout: &TextOptions) {
    if slow.is_empty() {
        return;
    }
    let _ = writeln!(out, "\nslowest calls");
    for call in slow.iter().take(layout.top) {
        let _ = writeln!(
            out,
            "{:>8} at {}  {} (process {}, thread {})  {} = {}",
            duration(call.wall_ns),
            duration(call.at_ns),
            printable(&call.command),
            call.pid,
            call.tid,
            printable(&call.call),
            printable(&call.result)
        );
        let _ = writeln!(
            out,
            "         on CPU {}, blocked {}, waiting for a CPU {}",
            duration(call.cpu_ns),
            duration(call.blocked_ns),
            duration(call.runqueue_ns)
        );
        for line in call.why.iter().flat_map(why_text::of_slow_call) {
            let _ = writeln!(out, "         {line}");
        }
        for (side, stack) in [("kernel", &call.kernel_stack), ("user", &call.user_stack)] {
            if !stack.is_empty() {
                let _ = writeln!(out, "         {side}: {}", printable(&stack.join(" < ")));
            }
        }
    }
    more_rows(out, slow.len(), layout.top, "slow calls");
}

/// Appends the calls that had not ended at the end.
pub fn in_progress(out: &mut String, calls: &[InProgress], layout: &TextOptions) {
    if calls.is_empty() {
        return;
    }
    let _ = writeln!(out, "\nstill in progress (not counted above)");
    for call in calls.iter().take(layout.top) {
        let since = call
            .ns
            .map_or_else(|| "for an unknown time".into(), |ns| format!("for {}", duration(ns)));
        let _ = writeln!(out, "thread {}: {} {since}", call.tid, shown_name(&call.name, &call.abi));
    }
    more_rows(out, calls.len(), layout.top, "calls in progress");
}
