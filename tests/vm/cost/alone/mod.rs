//! Tests of the cost lab that load their own gates; they run one by one.

mod slow_clock;
