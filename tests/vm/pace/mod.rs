//! Tests of pace.

mod alone;
mod emulated;
mod host_monitor;
