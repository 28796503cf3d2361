//! Tests that need more of a machine: strace, tar, sh, bash and the like, or much of its time.

mod before;
mod cost;
mod guard;
mod programs;
mod scale;
mod second_source;
