//! Tests that need a machine of their own: they watch or guard all processes, change the clock, or
//! load the gate of another version. `make vm` runs them in stock Debian kernels, together with the
//! live tests that need only `tollgate` and `workloads`. vm/init.c starts them as root.

mod cost;
mod doctor;
mod gate;
mod guard;
#[path = "../live/harness/mod.rs"]
#[allow(dead_code, unused_imports)]
mod harness;
mod lens;
mod pace;
