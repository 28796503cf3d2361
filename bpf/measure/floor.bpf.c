// SPDX-License-Identifier: GPL-2.0
/* The floor: empty programs on the gate's hooks. Nothing that uses these hooks can cost less. */
#include "lib/kernel.h"
#include <bpf/bpf_helpers.h>
#include "plugin/chain.bpf.h"
#include "wire/programs.h"

char LICENSE[] SEC("license") = "GPL";

#define EMPTY(PROGRAM, HOOK, SECTION, USED_BY, UNLESS, NEEDS)                                      \
	SEC(SECTION) int floor_##PROGRAM(void *ctx)                                                \
	{                                                                                          \
		return 0;                                                                          \
	}

TRACE_PROGRAMS(EMPTY)

/*
 * Programs that only read the clock. Every tool that times calls needs one reading at the beginning
 * and one at the end of a call.
 */
#define CLOCK(PROGRAM)                                                                             \
	SEC("tp_btf/" #PROGRAM) int clock_##PROGRAM(void *ctx)                                     \
	{                                                                                          \
		latest_ns = bpf_ktime_get_ns();                                                    \
		return 0;                                                                          \
	}

u64 latest_ns;

CLOCK(sys_enter)
CLOCK(sys_exit)

/* A program that only tries to enter a chain of plugins, which is empty. */
PLUGIN_MAP(plugins);
struct plugin_chain chain;

SEC("tp_btf/sys_enter")
int chain_sys_enter(void *ctx)
{
	plugins_run(ctx, &chain, 0, &plugins);
	return 0;
}
