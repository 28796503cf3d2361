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
		break;

/* Apply X to the next 4 or 16 numbers after `last`, or to the numbers 1 to 32. */
#define REPEAT_4(X, last) X((last) + 1) X((last) + 2) X((last) + 3) X((last) + 4)
#define REPEAT_16(X, last)                                                                         \
	REPEAT_4(X, last) REPEAT_4(X, (last) + 4) REPEAT_4(X, (last) + 8) REPEAT_4(X, (last) + 12)
#define REPEAT_32(X) REPEAT_16(X, 0) REPEAT_16(X, 16)

_Static_assert(PLUGIN_SLOTS == 32, "each plugin has a case");

static __always_inline void plugins_run(void *ctx, struct plugin_chain *chain, u32 session,
					void *plugins)
{
	switch (READ_ONCE(chain->first[session & (SESSIONS - 1)])) {
		REPEAT_32(PLUGIN_CASE)
	}
}

#endif
