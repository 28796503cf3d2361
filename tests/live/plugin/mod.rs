//! Tests of plugins.

mod chains;
mod examples;
mod hooks;
mod host;
mod refusals;
