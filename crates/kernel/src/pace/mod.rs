//! Pace: the tasks with deadlines that the gate follows, and the speeds of the machine.

pub mod actuator;
pub mod cpufreq;
mod cycle_counter;
mod ended_tasks;
pub mod energy_sensor;
#[cfg(test)]
mod fake_sysfs;
mod kernel_side;
mod limits_pair;
mod original_speed;
mod pacing;
pub mod power;
mod pss;
mod schedule_entries;
pub mod speed_control;
pub mod speed_journal;
mod sysfs;
mod system_limit;
mod tracking;
mod type_key;

pub use cycle_counter::CycleEvent;
pub use ended_tasks::EndedTasks;
pub use kernel_side::PaceKernelSide;
pub use pacing::{GateSchedule, GateStep, Pacing, Wanted, WantedSpeeds};
pub use schedule_entries::MAX_TYPES;
pub use tracking::{LevelPower, Tracking, TrackingRule, TrackingRules};
pub use type_key::TypeKey;
