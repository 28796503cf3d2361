//! Tests that only a machine of one's own is for: `make vm` runs them, and the live tests that need nothing
//! but `tollgate` and `workloads`, inside stock Debian kernels. vm/init.c starts them as root.

#[path = "../live/harness/mod.rs"]
#[allow(dead_code, unused_imports)]
mod harness;

mod alone;
mod before;
mod doctor;
