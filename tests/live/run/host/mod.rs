//! Tests of the command `run` that need strace, servers, shells or much time.

mod left_behind;
mod transparency;
