//! Tests of the daemon.

mod cgroups;
mod host;
