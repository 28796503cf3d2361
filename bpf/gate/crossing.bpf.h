/* SPDX-License-Identifier: GPL-2.0 */
/* A call begins and ends: which extensions are called, and in which order. */
#ifndef TOLLGATE_GATE_CROSSING_BPF_H
#define TOLLGATE_GATE_CROSSING_BPF_H

#include "gate/calls.bpf.h"
#include "gate/threads.bpf.h"
#include "guard/hooks.bpf.h"
#include "lens/hooks.bpf.h"
#include "plugin/hooks.bpf.h"
#include "service/files.bpf.h"
#include "service/hooks.bpf.h"

/* Returns whether the call counts. `ctx`: only with plugins, else NULL. */
static __always_inline bool on_sys_enter(struct thread_state *thread, struct pt_regs *regs, long id, void *ctx)
{
	bool is_denounced = false;
	struct task_struct *task;
	u32 call, previous_call;

	if (!thread || !thread->mask || unlikely(is_retired()))
		return false;
	if (unlikely(thread->until_exec)) {
		if (!is_execve(call_index(running_task(thread->task), id)))
			return false;
		thread->until_exec = 0;
	}
	if ((config.enabled & LENS) && unlikely(thread->in_call) && thread->generation == config.generation)
		lens_abandon(thread);
	thread->generation = config.generation;
	if (!(config.enabled & NEEDS_CALL_INDEX)) {
		thread->in_call = IN_UNKNOWN_CALL;
		return true;
	}
	thread->in_call = IN_CALL;
	task = running_task(thread->task);
	call = call_index(task, id);
	previous_call = thread->call;
	thread->call = call;
	if (has(thread, GUARD)) {
		if (ctx && plugin_chains[PLUGIN_HOOK_GUARD].first[thread->plugin_session & (SESSIONS - 1)])
			is_denounced = plugins_guard(ctx, thread->plugin_session);
		if (guard_sys_enter(thread, call, is_denounced) && ctx)
			plugins_verdict(ctx, thread->plugin_session);
	}
	if (has(thread, SERVICE))
		service_sys_enter(thread, regs, call, previous_call);
	if (has(thread, LENS))
		lens_sys_enter(thread, task, call);
	return true;
}

/*
 * An exit without an entry: the first return of a forked child, or of a thread attached in mid-call
 * (neither was seen before: dropped); a call that seccomp or a tracer rejected; or a call whose
 * entry another generation handled just before it was replaced.
 */
static __always_inline void on_unmatched_sys_exit(struct thread_state *thread, struct pt_regs *regs, long result)
{
	u32 seen = thread->generation;
	u32 call;

	if (thread->until_exec)
		return;
	thread->generation = config.generation;
	if (!seen)
		return;
	if (seen != config.generation) {
		count_loss(thread->session, LOSS_RECONFIGURED);
		return;
	}
	if (has(thread, LENS)) {
		call = call_index(running_task(thread->task), regs->orig_ax);
		lens_sys_exit_denied(thread, call, result);
	}
}

static __always_inline bool on_sys_exit(struct thread_state *thread, struct pt_regs *regs, long result)
{
	u64 now = 0;

	if (!thread || !thread->mask)
		return false;
	if ((config.enabled & LENS) && thread->entered_ns)
		now = bpf_ktime_get_ns();
	if (unlikely(is_retired()))
		return false;
	if (unlikely(!thread->in_call)) {
		on_unmatched_sys_exit(thread, regs, result);
		return false;
	}
	thread->in_call = 0;
	if (has(thread, LENS))
		lens_sys_exit(thread, running_task(thread->task), result, now);
	if ((config.enabled & SERVICE_FILES) && has(thread, SERVICE))
		service_sys_exit(thread, result);
	return true;
}

#endif
