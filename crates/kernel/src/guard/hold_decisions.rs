//! What Tollgate decides about processes that it holds or has held, as functions of what it has
//! read. The model checker (`hold_model.rs`) tries them in every order of events.
//!
//! `foreign_stop` is how somebody else has stopped the process: `guard_cold.foreign_stop`.

use crate::wire;

/// Whether a hold is to end now: its time is over, or its process was requested to end.
pub fn is_due(until_ns: u64, is_terminating: bool, now_ns: u64) -> bool {
    is_terminating || until_ns <= now_ns
}

/// Whether the hold of a thread ends when its process is released. `decided_ns` is the end of the
/// hold for which this was decided. A later hold of another thread, or of the same one, may have
/// begun since; its SIGSTOP may still be on its way.
pub fn ends_with(until_ns: u64, decided_ns: u64, is_terminating: bool) -> bool {
    is_terminating || until_ns <= decided_ns
}

fn is_certain(foreign_stop: u8) -> bool {
    u32::from(foreign_stop) & wire::FOREIGN_STOP_CERTAIN != 0
}

/// Whether a SIGCONT is to end a stop. If somebody else has certainly stopped the process, its next
/// SIGCONT is that somebody's business.
pub fn is_to_be_continued(foreign_stop: u8) -> bool {
    !is_certain(foreign_stop)
}

/// The signal that has to be repeated after a SIGCONT, because the SIGCONT has undone it.
pub fn to_be_repeated(foreign_stop: u8) -> Option<i32> {
    const FLAGS: u32 = wire::FOREIGN_STOP_CERTAIN | wire::FOREIGN_STOP_WITH_CHILD;
    let signal = (u32::from(foreign_stop) & !FLAGS) as i32;
    (signal != 0).then_some(signal)
}

/// Whether a process has stopped itself because the guard had stopped a child of it.
pub fn is_stopped_with_child(foreign_stop: u8) -> bool {
    u32::from(foreign_stop) & wire::FOREIGN_STOP_WITH_CHILD != 0
}

/// Whether a parent that has stopped itself with this child stays stopped. If it were continued, it
/// would continue the child, wait for it, and stop itself again.
pub fn keeps_parent_stopped(is_held: bool, foreign_stop: u8) -> bool {
    is_held || is_certain(foreign_stop) || is_stopped_with_child(foreign_stop)
}

/// Whether a process stays stopped by the guard although the guard does not hold it any more.
/// `is_stopped` was read before the others: the gate notes a hold, and a stop by somebody else,
/// before the stop takes effect.
pub fn is_left_stopped(is_stopped: bool, is_held: bool, foreign_stop: u8) -> bool {
    is_stopped && !is_held && !is_certain(foreign_stop)
}
