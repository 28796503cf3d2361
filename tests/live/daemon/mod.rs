//! Tests of the daemon.

mod host;
