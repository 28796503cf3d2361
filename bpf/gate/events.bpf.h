/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the gate passes to the handlers of the extensions at its busiest hooks. All handlers are
 * inlined and no function receives the address of such a structure, so the compiler keeps the
 * fields in registers.
 */
#ifndef TOLLGATE_GATE_EVENTS_BPF_H
#define TOLLGATE_GATE_EVENTS_BPF_H

#include "gate/threads.bpf.h"

/* A call begins or ends. */
struct crossing {
	struct thread_state *thread;
	struct task_struct *task;
	struct pt_regs *regs;
	/*
	 * The program's context, which a tail call to a plugin needs; NULL: the program runs no
	 * plugins.
	 */
	void *ctx;
	u32 call;
	/* At the beginning of a call: the thread's previous call, which has taken effect. */
	u32 previous_call;
	/* A plugin has denounced the call. */
	bool is_denounced;
	/* The guard has applied its policy to the call. */
	bool has_verdict;
	/* The plugins at enter have run. */
	bool has_run_plugins;
	/* At the end of a rejected call: the thread has waited for the decision. */
	bool has_waited;
	/* At the end of a call: the state in which it was, enum call_state. */
	u8 state;
	/* At the end of a call: its result, and the time, which is read before any handler runs. */
	s64 result;
	u64 now;
};

/* A session is applied to a thread, which is new or was attached. */
struct joining {
	struct thread_state *thread;
	struct session *session;
	u32 session_index;
	/*
	 * What the thread continues from: the state of its parent, or its own state in another
	 * session; NULL: nothing.
	 */
	struct thread_state *before;
	/* The thread is new. */
	bool is_forked;
	/* The identity that user space has found; IDENTITY_CURRENT: that of the current process. */
	u64 identity;
	/* The mask that the thread gets, to which a handler can add its extension. */
	u32 mask;
};

/* A thread is switched out, or in. */
struct switching {
	/* The program's context. */
	void *ctx;
	struct thread_state *thread;
	struct task_struct *task;
	struct cpu_state *cpu;
	/* The state of a thread that is switched out; 0: it was preempted. */
	u32 state;
	/* The guard holds the thread that is switched out. */
	bool is_held;
	/* The slot of the thread that gets its processor; 0: a bystander. */
	u32 next_slot;
	/* switch_ns(); 0: not read yet. */
	u64 now;
};

/*
 * The time of the switch, for both threads and all extensions. The clock is read when the time is
 * first needed, because many switches do not need it.
 */
static __always_inline u64 switch_ns(struct switching *at)
{
	if (!at->now)
		at->now = bpf_ktime_get_ns();
	return at->now;
}

/*
 * Since when a thread that is switched in has been in the queue of this processor, as far as the
 * kernel knows: otherwise, the time of the switch.
 */
static __always_inline u64 queued_ns(struct switching *at)
{
	u64 now = switch_ns(at), queued = at->task->sched_info.last_queued;

	if (!queued || queued + at->cpu->clock_offset > now)
		return now;
	return queued + at->cpu->clock_offset;
}

#endif
