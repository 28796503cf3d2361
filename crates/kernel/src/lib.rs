//! The border to the kernel: the BPF objects, the types that cross, the gate's life, processes that start
//! gated. All of the workspace's `unsafe` lives here.

pub mod before;
pub mod benchmark;
pub mod cells;
pub mod cgroup_option;
pub mod clock;
pub mod cpus;
pub mod error;
pub mod figures;
pub mod floor;
pub mod gate;
mod groups;
pub mod guarded;
pub mod lease;
pub mod limits;
pub mod losses;
pub mod mapping;
pub mod mounts;
pub mod pinned;
pub mod placements;
pub mod plugins;
pub mod probe;
pub mod process;
pub mod profile;
pub mod profiles;
pub mod records;
pub mod scope;
pub mod services;
pub mod session;
pub mod signals;
pub mod skeletons;
mod start;
pub mod stdout;
pub mod symbols;
pub mod wire;

pub use error::{Error, Result};

/// Keeps libbpf from writing to stderr: every failure has a sentence of its own.
pub fn quiet() {
    libbpf_rs::set_print(None);
}
