//! Tests of the lens.

mod alone;
