//! The boundary to the kernel: the BPF objects, the types that both sides share, the life of the
//! gate, and processes that start gated. Only this crate and `libtollgate` use `unsafe`; the others
//! forbid it.

#![warn(missing_docs)]

pub mod benchmark;
mod capability;
pub mod clock;
pub mod cpus;
pub mod error;
pub mod extensions;
pub mod favordynmods;
pub mod floor;
mod followed_cgroups;
pub mod gate;
pub mod gate_programs;
pub mod guard;
pub mod identity_name;
pub mod job_control;
pub mod lease;
pub mod lens;
mod limits;
pub mod losses;
pub mod mapped_array;
pub mod mounts;
pub mod pace;
mod perf_event;
mod pid_variables;
pub mod plugin;
pub mod precall;
pub mod probe;
pub mod process;
pub mod ring;
mod rows;
pub mod service;
pub mod session;
pub mod signals;
mod skeletons;
pub mod socket_messages;
pub mod standard_stream;
pub mod start_state;
pub mod symbols;
pub mod user_namespace;
pub mod watchdog;
pub mod wire;

pub use limits::stack_limit;

pub use error::{Error, HookUse, Result};
pub use followed_cgroups::{AwaitedCgroup, CgroupId};

/// Stops libbpf from writing to stderr. Tollgate reports each failure by a message of its own.
pub fn quiet() {
    libbpf_rs::set_print(None);
}
