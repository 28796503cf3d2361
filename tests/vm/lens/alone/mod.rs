//! Tests of the lens that load their own gates; they run one by one.

mod whole_machine;
