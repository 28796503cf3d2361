//! The model of pace (docs/decisions/0009-pace.md). It finds the speeds of a processor that are
//! worthwhile, estimates the work of a type's tasks, and plans the sequence of speeds that does
//! this work by its deadline with the least energy.
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
mod level_file;
mod levels;
mod policies;
mod replay;
mod rule_checks;
mod rule_file;
mod schedule;
mod task_rules;
mod whole_steps;

pub use choice::{candidate_estimators, choose_estimator};
pub use curve::WorkCurve;
pub use estimator::{DistributionModel, Estimator, SampleSelection};
pub use four_steps::four_steps;
pub use governors::{Governor, GovernorPolicy};
pub use level_file::{LevelFile, parse_levels};
pub use levels::{Level, Levels, LevelsError};
pub use policies::{
    Clairvoyant, Fastest, Learner, MAX_SAMPLES, MIN_SAMPLES, ScheduleRule, TypeKnowledge,
    TypePlanner,
};
pub use replay::{Replay, SpeedPolicy, TraceTask, replay};
pub use rule_file::parse_task_rules;
pub use schedule::{Goal, Schedule, Step, flat, lambda_rule};
pub use task_rules::{
    ACTUATORS, BEGINNING_CALLS, BeginningResult, COMPARED_PROGRAM_LEN, CycleCounter, DEADLINE_MS,
    DEFAULT_GOAL, DescriptorKind, MAX_EXEMPT, MAX_RULES, MAX_TYPE_NAME, MAX_USERS, ProgramType,
    TARGET, TaskRule, TaskRules, is_same_program,
};
pub use whole_steps::least_energy;
