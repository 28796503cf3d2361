/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Plugins at the hooks of the gate. */
#ifndef TOLLGATE_WIRE_PLUGIN_H
#define TOLLGATE_WIRE_PLUGIN_H

#include "wire/tables.h"

/* Gate hooks at which plugins run. */
enum plugin_hook {
	PLUGIN_HOOK_ENTER,
	PLUGIN_HOOK_EXIT,
	PLUGIN_HOOK_FORK,
	PLUGIN_HOOK_EXEC,
	PLUGIN_HOOK_END,
	/* Before the guard tests a call. */
	PLUGIN_HOOK_GUARD,
	/* After the guard has applied its policy to a call. */
	PLUGIN_HOOK_VERDICT,
	PLUGIN_HOOKS,
};

/* Plugins that are loaded for a hook, of all sessions; and those that are linked, of one. */
#define PLUGIN_SLOTS 32
#define PLUGINS_LINKED 8

/* A plugin's slot at a hook, for user space. */
struct plugin_slot {
	/* The session that the plugin runs for; 0: the whole machine. */
	__u32 session;
	__s32 priority;
	/* The process that owns the slot, and the PID namespace of that number; 0: none. */
	__u32 owner_pid;
	__u32 owner_namespace;
	/* Plugins of the same priority run in the order in which they were linked. */
	__u64 since;
	__u32 is_linked;
	__u32 unused;
};

/* The plugins at a hook, in chains, by their numbers from 1 on; 0: none. */
struct plugin_chain {
	/* The first plugin of each session. */
	__u8 first[SESSIONS];
	/*
	 * The plugin after each plugin. An unlinked plugin keeps its entry as long as a thread may
	 * be in it.
	 */
	__u8 next[PLUGIN_SLOTS + 8];
	struct plugin_slot slots[PLUGIN_SLOTS + 1];
};

#endif
