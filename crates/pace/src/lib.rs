//! The model of pace (docs/decisions/0009-pace.md): which speeds of a processor are worth having,
//! how much work the tasks of a type need, and which sequence of speeds does that work by its
//! deadline with the least energy.
//!
//! Source: Lorch and Smith, "Operating System Modifications for Task-Based Speed and Voltage
//! Scheduling", MobiSys 2003 (RightSpeed), and "Improving Dynamic Voltage Scaling Algorithms with
//! PACE", SIGMETRICS 2001.
//!
//! Units: work in cycles, speeds in cycles a second, times in seconds, power in watts, energy in
//! joules.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod choice;
mod curve;
mod estimator;
mod four_steps;
mod governors;
mod levels;
mod optimum;
mod policies;
mod replay;
mod schedule;

pub use choice::choose_estimator;
pub use curve::WorkCurve;
pub use estimator::{DistributionModel, Estimator, SampleSelection};
pub use four_steps::four_steps;
pub use governors::{Governor, GovernorPolicy};
pub use levels::{Level, Levels, LevelsError};
pub use optimum::least_energy;
pub use policies::{Clairvoyant, Fastest, Learner, MIN_SAMPLES, ScheduleRule};
pub use replay::{Replay, SpeedPolicy, Task, replay};
pub use schedule::{Goal, Schedule, Step, flat, lambda_rule};
