/* SPDX-License-Identifier: GPL-2.0 */
/* A processor switches from one thread to another. */
#ifndef TOLLGATE_GATE_SWITCH_BPF_H
#define TOLLGATE_GATE_SWITCH_BPF_H

#include "gate/hooks.bpf.h"

static __always_inline void on_switch_out(struct thread_state *thread, struct task_struct *task, struct cpu_state *cpu,
				   u32 state, u32 next_slot)
{
	struct switching at = { thread, task, cpu, state, next_slot };

	if (!is_retired())
		call_switch_out(&at);
}

static __always_inline void on_switch_in(struct thread_state *thread, struct task_struct *task, struct cpu_state *cpu)
{
	struct switching at = { .thread = thread, .task = task, .cpu = cpu };

	if (!is_retired())
		call_switch_in(&at);
}

static __noinline int sched_switch_gated(bool preempt, struct task_struct *prev, struct task_struct *next,
				   unsigned int prev_state)
{
	struct cpu_state *cpu = this_cpu();
	u32 slot = likely(cpu->task == (u64)prev) ? cpu->slot : slot_of(prev), next_slot = slot_of(next);

	if (slot)
		on_switch_out(thread_at(slot), prev, cpu, preempt ? 0 : prev_state, next_slot);
	set_current(cpu, next, next_slot);
	if (next_slot)
		on_switch_in(thread_at(next_slot), next, cpu);
	return 0;
}

#endif
