//! Tests that need more of a machine: strace, tar, sh, bash and the like, or much of its time.

mod before;
mod cost;
mod daemon;
mod guard;
mod held;
mod programs;
mod scale;
mod scopes;
mod second_source;
