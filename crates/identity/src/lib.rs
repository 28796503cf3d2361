//! The identity of tasks: the script that an interpreter runs, and the unit, container and control
//! group of a process. Texts go in and names come out; the kernel side finds the same names and
//! hashes them in the same way.

#![forbid(unsafe_code)]

pub mod cgroup;
pub mod hash;
pub mod script;
