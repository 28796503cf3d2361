//! Tests of the lens.

mod attach;
mod call_details;
mod counts;
mod diff;
mod host;
mod rows;
