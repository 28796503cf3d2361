/* SPDX-License-Identifier: GPL-2.0 */
/* A processor switches from one thread to another. */
#ifndef TOLLGATE_GATE_SWITCH_BPF_H
#define TOLLGATE_GATE_SWITCH_BPF_H

#include "gate/threads.bpf.h"
#include "guard/signals.bpf.h"
#include "lens/hooks.bpf.h"
#include "service/hooks.bpf.h"

/*
 * A switch to a bystander does not make a service contended: kernel threads and the daemon's own
 * threads are bystanders.
 */
static __always_inline void on_switch_out(struct thread_state *thread, struct task_struct *task, struct cpu_state *cpu,
				   unsigned int state, u32 next_slot)
{
	if (thread && thread->in_call && has(thread, LENS) && !is_retired())
		lens_switch_out(thread, task, cpu, state, bpf_ktime_get_ns());
	if (thread && has(thread, SERVICE) && !is_retired())
		service_switch_out(thread, task, state, !state && next_slot);
	/* All threads of a process stop, but only one of them gets the signal. */
	if (unlikely(thread && state & STATE_STOPPED) && has(thread, GUARD))
		guard_mark_restart(thread, task);
}

static __always_inline void on_switch_in(struct thread_state *thread, struct task_struct *task)
{
	if (thread && thread->switched_out_ns && has(thread, LENS) && !is_retired())
		lens_switch_in(thread, task, bpf_ktime_get_ns());
	if (thread && has(thread, SERVICE) && !is_retired())
		service_switch_in(thread, task);
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
		on_switch_in(thread_at(next_slot), next);
	return 0;
}

#endif
