//! Tests of the cost lab.

mod alone;
