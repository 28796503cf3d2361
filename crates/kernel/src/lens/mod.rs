//! The lens' kernel side: the counters of calls, and the statistics made of them.

mod account;
pub mod call_stats;
pub mod causes;
pub mod counters;
pub mod files;
pub mod flame;
pub mod in_band;
pub mod interval;
pub mod trace;
pub mod why;
pub(crate) mod why_config;
