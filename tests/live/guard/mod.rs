//! Tests of the guard.

mod host;
mod parents;
mod responses;
mod scopes;
