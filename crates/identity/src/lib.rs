//! The identity of tasks: the script that an interpreter runs, and the unit, container and cgroup
//! of a process. All functions are pure functions of texts. The kernel side finds the same names
//! and hashes them in the same way.

#![forbid(unsafe_code)]

pub mod cgroup;
pub mod hash;
pub mod script;
