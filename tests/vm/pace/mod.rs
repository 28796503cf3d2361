//! Tests of pace.

mod alone;
