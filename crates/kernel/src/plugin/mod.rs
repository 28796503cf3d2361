//! Compiled plugins in the kernel: their programs, maps, hooks and output.

mod attach_point;
mod attached_programs;
mod chain;
mod chain_slot;
mod data;
mod foreign;
mod gate_hooks;
mod hook;
mod hooks;
mod kernel_side;
mod load;
mod loaded_plugin;
mod map;
mod map_memory;
mod program_info;
mod records;
mod run;
mod session_plugins;
mod task_entry;
pub mod tracefs;
mod type_cache;
pub mod verifier_log;

pub use attach_point::interval;
pub use chain::{ALL_SESSIONS, ChainOrder};
pub use data::Data;
pub use foreign::{ForeignPlugin, PluginIds};
pub use hooks::PluginHooks;
pub(crate) use kernel_side::PluginsKernelSide;
pub use loaded_plugin::{LoadedPlugin, SharedMemory};
pub use records::RECORDS_BYTES;
pub use run::MAX_ARGUMENTS;
pub use type_cache::{btf_read_time, offset_of};
