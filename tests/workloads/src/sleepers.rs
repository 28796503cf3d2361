//! Threads of this process that sleep.

use std::fs;

/// Whether a thread of this process sleeps in a call.
pub fn is_asleep(thread: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('S'))
}
