/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the gate passes to the handlers of the extensions at its busiest hooks. These live in
 * registers, because all handlers are inlined, so that no other function receives their addresses.
 */
#ifndef TOLLGATE_GATE_EVENTS_BPF_H
#define TOLLGATE_GATE_EVENTS_BPF_H

#include "gate/threads.bpf.h"

/* A call begins or ends. */
struct crossing {
	struct thread_state *thread;
	struct task_struct *task;
	struct pt_regs *regs;
	/* Of the program, for plugins; NULL: it runs none. */
	void *ctx;
	u32 call;
	/* At the call's begin: the call before, which has had its effect. */
	u32 previous_call;
	/* A plugin has denounced the call; the guard has applied its policy to it. */
	bool is_denounced;
	bool has_verdict;
	/* The plugins at enter have had their turn. */
	bool has_run_plugins;
	/* At the call's end: its result, and the time, which is read first. */
	s64 result;
	u64 now;
};

/* A thread leaves or gets a processor. */
struct switching {
	struct thread_state *thread;
	struct task_struct *task;
	struct cpu_state *cpu;
	/* Of a thread that leaves: 0 if it was preempted. */
	u32 state;
	/* The slot of the thread that gets its processor; 0: a bystander. */
	u32 next_slot;
	/* switch_ns(); 0: not read yet. */
	u64 now;
};

/*
 * The time of the switch, for both threads and all extensions. It is read when it is first needed:
 * many switches need none.
 */
static __always_inline u64 switch_ns(struct switching *at)
{
	if (!at->now)
		at->now = bpf_ktime_get_ns();
	return at->now;
}

#endif
