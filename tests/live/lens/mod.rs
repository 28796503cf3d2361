//! Tests of the lens.

mod account;
mod attach;
mod call_details;
mod counts;
mod diff;
mod files;
mod flame;
mod histogram;
mod host;
mod in_band;
mod io_uring;
mod requests;
mod rows;
mod shared;
mod subject;
mod top;
mod trace;
mod why;
