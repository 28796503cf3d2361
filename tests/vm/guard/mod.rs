//! Tests of the guard.

mod alone;
mod precall_lsm;
