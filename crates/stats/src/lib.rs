//! The statistics that Tollgate prints: latency histograms, confidence intervals and paired
//! comparisons. Pure functions, no I/O.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod bootstrap;
pub mod histogram;
pub mod interval;
pub mod order;
pub mod paired;
pub mod sequential;
pub mod sign;
