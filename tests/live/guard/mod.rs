//! Tests of the guard.

mod host;
mod responses;
mod scopes;
