//! Tests of the lens that need strace, servers, shells or much time.

mod namespaces;
mod strace_comparison;
