//! The lens' kernel side: the counters of calls, and the statistics made of them.

pub mod call_stats;
pub mod counters;
