/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Chains of plugins. The program at a hook enters the first plugin by a tail call with a constant
 * index, which costs a jump. Each plugin enters the next one itself
 * (crates/ecode/src/lower/handler.rs), and the last one returns to the kernel. So a plugin's return
 * is the hook's return, and costs nothing (docs/decisions/0006-plugin.md). To link a plugin is to
 * store its number here.
 */
#ifndef TOLLGATE_PLUGIN_CHAIN_BPF_H
#define TOLLGATE_PLUGIN_CHAIN_BPF_H

#include "lib/kernel.h"
#include <bpf/bpf_helpers.h>
#include "wire/plugin.h"

/* One map for each hook, because the kernel requires that all its programs have one type. */
#define PLUGIN_MAP(name)                                                                           \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_PROG_ARRAY);                                             \
		__uint(max_entries, PLUGIN_SLOTS + 1);                                             \
		__type(key, u32);                                                                  \
		__type(value, u32);                                                                \
	} name SEC(".maps")

#define PLUGIN_CASE(number)                                                                        \
	case number:                                                                               \
		bpf_tail_call_static(ctx, plugins, number);                                        \
		break

static __always_inline void plugins_run(void *ctx, struct plugin_chain *chain, u32 session,
					void *plugins)
{
	switch (READ_ONCE(chain->first[session & (SESSIONS - 1)])) {
		PLUGIN_CASE(1);
		PLUGIN_CASE(2);
		PLUGIN_CASE(3);
		PLUGIN_CASE(4);
		PLUGIN_CASE(5);
		PLUGIN_CASE(6);
		PLUGIN_CASE(7);
		PLUGIN_CASE(8);
		PLUGIN_CASE(9);
		PLUGIN_CASE(10);
		PLUGIN_CASE(11);
		PLUGIN_CASE(12);
		PLUGIN_CASE(13);
		PLUGIN_CASE(14);
		PLUGIN_CASE(15);
		PLUGIN_CASE(16);
		PLUGIN_CASE(17);
		PLUGIN_CASE(18);
		PLUGIN_CASE(19);
		PLUGIN_CASE(20);
		PLUGIN_CASE(21);
		PLUGIN_CASE(22);
		PLUGIN_CASE(23);
		PLUGIN_CASE(24);
		PLUGIN_CASE(25);
		PLUGIN_CASE(26);
		PLUGIN_CASE(27);
		PLUGIN_CASE(28);
		PLUGIN_CASE(29);
		PLUGIN_CASE(30);
		PLUGIN_CASE(31);
		PLUGIN_CASE(32);
	}
}

#endif
