/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Plugins at the hooks of the gate. */
#ifndef TOLLGATE_WIRE_PLUGIN_H
#define TOLLGATE_WIRE_PLUGIN_H

#include "wire/tables.h"

/*
 * The gate hooks at which plugins run. A hook is one line:
 *
 *	X(NAME, MAP, SECTION, TRACEPOINT)
 *
 * The line makes PLUGIN_HOOK_NAME, and the map MAP of the hook's programs. A plugin's program for
 * the hook is in SECTION and runs at TRACEPOINT. GUARD and VERDICT are the gate's own hooks, whose
 * sections libbpf does not know. GUARD comes before the guard tests a call, VERDICT after it has
 * applied its policy.
 */
#define ALL_PLUGIN_HOOKS(X)                                                                        \
	X(ENTER, plugin_enter, "tp_btf/sys_enter", "sys_enter")                                    \
	X(EXIT, plugin_exit, "tp_btf/sys_exit", "sys_exit")                                        \
	X(FORK, plugin_fork, "tp_btf/sched_process_fork", "sched_process_fork")                    \
	X(EXEC, plugin_exec, "tp_btf/sched_process_exec", "sched_process_exec")                    \
	X(END, plugin_end, "tp_btf/sched_process_exit", "sched_process_exit")                      \
	X(GUARD, plugin_guard, "guard", "sys_enter")                                               \
	X(VERDICT, plugin_verdicts, "verdict", "sys_enter")

#define AS_PLUGIN_HOOK(NAME, MAP, SECTION, TRACEPOINT) PLUGIN_HOOK_##NAME,
enum plugin_hook { ALL_PLUGIN_HOOKS(AS_PLUGIN_HOOK) PLUGIN_HOOKS };
#undef AS_PLUGIN_HOOK

/*
 * The maximum numbers of plugins at a hook: loaded ones of all sessions, and linked ones of one
 * session.
 */
#define PLUGIN_SLOTS 32
#define PLUGINS_LINKED 8

/* A plugin's slot at a hook, for user space. */
struct plugin_slot {
	/* The session that the plugin runs for; 0: the whole machine. */
	__u32 session;
	__s32 priority;
	/*
	 * The number of the process that owns the slot, and the PID namespace of that number; 0:
	 * none.
	 */
	__u32 owner_pid;
	__u32 owner_namespace;
	/* Plugins of the same priority run in the order in which they were linked. */
	__u64 since;
	__u32 is_linked;
	__u32 unused;
};

/* The chains of plugins at a hook. Plugins are numbered from 1 on; 0 is none. */
struct plugin_chain {
	/* The first plugin of each session. */
	__u8 first[SESSIONS];
	/*
	 * The plugin after each plugin. An unlinked plugin keeps its entry as long as a thread may
	 * still run it.
	 */
	__u8 next[PLUGIN_SLOTS + 8];
	struct plugin_slot slots[PLUGIN_SLOTS + 1];
};

#endif
