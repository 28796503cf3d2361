//! Tests of the gate.

mod shared_sessions;
