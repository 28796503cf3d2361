//! Tests of the lens that need strace, servers, shells or much time.

mod commands;
mod files;
mod flame;
mod in_band;
mod in_band_examples;
mod namespaces;
mod strace_comparison;
