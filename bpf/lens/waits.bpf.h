/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Before sys_enter, a thread may wait for a supervisor of seccomp (SECCOMP_RET_USER_NOTIF) or for a
 * tracer, which decides on its call (v6.18 kernel/entry/common.c, syscall_trace_enter). This wait
 * is part of the call's time. It begins when the thread is first switched out to sleep, so that
 * calls without a wait cost nothing more.
 */
#ifndef TOLLGATE_LENS_WAITS_BPF_H
#define TOLLGATE_LENS_WAITS_BPF_H

#include "gate/calls.bpf.h"
#include "gate/events.bpf.h"
#include "lens/account.bpf.h"
#include "lens/state.bpf.h"

/* Whether the thread, which is not in a call, is switched out before a call. */
static __always_inline bool lens_begins_to_wait(struct switching *at)
{
	struct thread_state *thread = at->thread;
	struct lens_cold *cold;
	struct pt_regs *regs;

	if (!at->state || (at->state & STATE_STOPPED) || thread->until_exec ||
	    thread->generation != config.generation)
		return false;
	if (!lens_has_call(at->task))
		return false;
	regs = (void *)bpf_task_pt_regs(at->task);
	cold = lens_cold_of(thread);
	cold->waits_since_ns = switch_ns(at);
	cold->waits_for_call = call_index(at->task, regs->orig_ax);
	thread->in_call = BEFORE_CALL;
	thread->lens.off_ns = 0;
	thread->lens.has_site = 0;
	return true;
}

/* The call that a thread is in, or waits for. */
static __always_inline u32 lens_call_of(struct thread_state *thread)
{
	return thread->in_call == BEFORE_CALL ? lens_cold_of(thread)->waits_for_call : thread->call;
}

/* Moves the beginning of a call that ends to the beginning of the wait before it, if any. */
static __always_inline void lens_add_wait(struct thread_state *thread)
{
	struct lens_cold *cold = lens_cold_of(thread);

	if (unlikely(cold->waits_since_ns)) {
		thread->lens.entered_ns = cold->waits_since_ns;
		cold->waits_since_ns = 0;
	}
}

#endif
