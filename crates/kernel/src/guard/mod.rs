//! The guard's kernel side: profiles of programs, and the processes that are held.

pub mod hold_table;
pub mod hold_watchdog;
pub mod holds;
pub mod profile;
pub mod profile_table;
