/* SPDX-License-Identifier: GPL-2.0 */
/* A processor switches from one thread to another. */
#ifndef TOLLGATE_GATE_SWITCH_BPF_H
#define TOLLGATE_GATE_SWITCH_BPF_H

#include "gate/hooks.bpf.h"

static __noinline int sched_switch_gated(u64 *ctx)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	struct cpu_state *cpu = this_cpu();
	u32 slot = likely(cpu->task == (u64)prev) ? cpu->slot : slot_of(prev),
	    next_slot = slot_of(next);
	struct switching at = { .ctx = ctx, .cpu = cpu, .next_slot = next_slot };

	if (slot && !is_retired()) {
		at.thread = thread_at(slot);
		at.task = prev;
		at.state = ctx[0] ? 0 : ctx[3];
		call_switch_out(&at);
	}
	set_current(cpu, next, next_slot);
	call_watched_switch(cpu, next);
	if (next_slot && !is_retired()) {
		at.thread = thread_at(next_slot);
		at.task = next;
		call_switch_in(&at);
	}
	return 0;
}

#endif
