//! Tests of the command `run`.

mod exit_status;
mod host;
mod refusals;
