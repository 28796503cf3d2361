//! Tests of the guard that load their own gates; they run one by one.

mod whole_machine;
