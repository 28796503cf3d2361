//! Tests of the lens that need strace, servers, shells or much time.

mod commands;
mod namespaces;
mod strace_comparison;
