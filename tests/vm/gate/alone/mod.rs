//! Tests of the gate that load their own gates; they run one by one.

mod versions;
