//! The lens' kernel side: the counters of calls, and the statistics made of them.

mod account;
pub mod call_stats;
pub mod causes;
pub mod counters;
pub mod in_band;
pub mod interval;
pub mod why;
pub(crate) mod why_config;
