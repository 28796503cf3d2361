/* SPDX-License-Identifier: GPL-2.0 */
/* What the gate does when a call begins and when it ends. gate/hooks.bpf.h calls the extensions. */
#ifndef TOLLGATE_GATE_CROSSING_BPF_H
#define TOLLGATE_GATE_CROSSING_BPF_H

#include "gate/calls.bpf.h"
#include "gate/hooks.bpf.h"

/* Returns whether the plugins at enter must still run. `ctx`: NULL without plugins. */
static __always_inline bool on_sys_enter(struct thread_state *thread, struct pt_regs *regs, long id,
					 void *ctx)
{
	struct crossing at = { .thread = thread, .regs = regs, .ctx = ctx };

	if (!thread || !(thread->mask & EXTENSIONS) || unlikely(is_retired()))
		return false;
	if (unlikely(thread->until_exec)) {
		if (!is_execve(call_index(running_task(thread->task), id)))
			return false;
		call_begin_to_count(thread, bpf_get_current_task_btf());
		thread->until_exec = 0;
	}
	if ((config.enabled & LENS) && unlikely(thread->in_call) &&
	    thread->in_call != BEFORE_CALL) {
		/* A generation without a lens need not have noted the end of a call. */
		if (thread->generation == config.generation)
			lens_abandon(thread);
		else
			lens_reset_call(thread);
	}
	thread->generation = config.generation;
	if (!(config.enabled & NEEDS_CALL_INDEX)) {
		thread->in_call = IN_UNKNOWN_CALL;
		return true;
	}
	thread->in_call = IN_CALL;
	at.task = running_task(thread->task);
	at.call = call_index(at.task, id);
	at.previous_call = thread->call;
	thread->call = at.call;
	call_sys_enter(&at);
	/* The mask is not tested again, because another processor may have changed it since. */
	return !at.has_run_plugins;
}

/*
 * The end of a call whose beginning this generation has not seen. There are three cases:
 * - The thread is new: a child that returns from fork, or a thread that was attached in mid-call.
 *   The call does not count.
 * - Another generation saw the beginning, just before it was replaced. The call is a loss.
 * - Otherwise seccomp or a tracer has rejected the call.
 */
static __always_inline void on_unmatched_sys_exit(struct thread_state *thread, struct pt_regs *regs,
						  long result)
{
	struct crossing at = { .thread = thread, .regs = regs, .result = result };
	u32 seen = thread->generation;

	at.has_waited = thread->in_call == BEFORE_CALL;
	thread->in_call = NOT_IN_CALL;
	if (thread->until_exec)
		return;
	thread->generation = config.generation;
	if (!seen) {
		call_sys_exit_unseen(thread);
		return;
	}
	if (seen != config.generation) {
		count_loss(thread->session, LOSS_RECONFIGURED);
		return;
	}
	call_sys_exit_denied(&at);
}

static __always_inline bool on_sys_exit(struct thread_state *thread, struct pt_regs *regs,
					long result)
{
	struct crossing at = { .thread = thread, .regs = regs, .result = result };

	if (!thread || !(thread->mask & EXTENSIONS))
		return false;
	if ((config.enabled & LENS) && thread->lens.entered_ns)
		at.now = bpf_ktime_get_ns();
	if (unlikely(is_retired()))
		return false;
	if (unlikely(thread->in_call < IN_CALL)) {
		on_unmatched_sys_exit(thread, regs, result);
		return false;
	}
	at.state = thread->in_call;
	thread->in_call = NOT_IN_CALL;
	call_sys_exit(&at);
	return true;
}

#endif
