//! Tests of the gate.

mod alone;
