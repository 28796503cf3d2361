//! Tests of the lens that need strace, servers, shells or much time.

mod strace_comparison;
