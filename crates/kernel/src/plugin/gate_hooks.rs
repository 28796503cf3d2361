//! The gate hooks at which plugins run: the table of `bpf/wire/plugin.h`.

use crate::wire;

/// A line of the table.
pub struct GatePluginHook {
    /// The gate's map with the programs of the hook's chain.
    pub programs: &'static str,
    /// The section of a plugin's program for this hook.
    pub section: &'static str,
    /// The tracepoint whose arguments the gate passes on to plugins.
    pub tracepoint: &'static str,
}

/// All gate hooks of plugins, in the order of `wire::plugin_hook`.
pub const GATE_HOOKS: [GatePluginHook; wire::PLUGIN_HOOKS as usize] =
    include!(concat!(env!("OUT_DIR"), "/plugin_hooks.rs"));
