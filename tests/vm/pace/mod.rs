//! Tests of pace.

mod alone;
mod emulated;
