//! The guard's kernel side: profiles of programs, and the processes that are held.

pub mod exempt_files;
mod hold_decisions;
#[cfg(test)]
mod hold_model;
pub mod hold_table;
pub mod hold_watchdog;
pub mod holds;
mod kernel_side;
mod left_stopped;
pub mod profile;
pub mod profile_table;
pub mod selected_files;

pub use kernel_side::GuardKernelSide;
