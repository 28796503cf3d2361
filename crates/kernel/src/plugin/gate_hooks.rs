//! The gate hooks at which plugins run: the table of `bpf/wire/plugin.h`.

use crate::wire;

/// A hook: a line of the table.
pub struct GatePluginHook {
    /// The gate's map of programs.
    pub programs: &'static str,
    /// The section of a plugin's program for this hook.
    pub section: &'static str,
    pub tracepoint: &'static str,
}

/// In the order of `wire::plugin_hook`.
pub const GATE_HOOKS: [GatePluginHook; wire::PLUGIN_HOOKS as usize] =
    include!(concat!(env!("OUT_DIR"), "/plugin_hooks.rs"));
