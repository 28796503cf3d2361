//! The gate hooks at which plugins run, in the order of `wire::plugin_hook`.

use crate::wire;

/// The sections of programs for these hooks.
pub const GATE: [&str; wire::PLUGIN_HOOKS as usize] = [
    "tp_btf/sys_enter",
    "tp_btf/sys_exit",
    "tp_btf/sched_process_fork",
    "tp_btf/sched_process_exec",
    "tp_btf/sched_process_exit",
    // libbpf has no names for these: they are programs of sys_enter as well.
    "guard",
    "verdict",
];

/// The gate's maps of programs.
pub const GATE_PROGRAMS: [&str; wire::PLUGIN_HOOKS as usize] = [
    "plugin_enter",
    "plugin_exit",
    "plugin_fork",
    "plugin_exec",
    "plugin_end",
    "plugin_guard",
    "plugin_verdicts",
];

/// The tracepoint of a hook, by its section.
pub fn tracepoint_of(section: &str) -> &str {
    section.strip_prefix("tp_btf/").unwrap_or("sys_enter")
}
