//! Pace: the tasks with deadlines that the gate follows, and the speeds of the machine.

pub mod cpufreq;
mod kernel_side;
pub mod power;
mod pss;
mod tracking;

pub use kernel_side::PaceKernelSide;
pub use tracking::{Tracking, TrackingRule};
