/* SPDX-License-Identifier: GPL-2.0 */
/* The guard at the hooks of the gate. */
#ifndef TOLLGATE_GUARD_HOOKS_BPF_H
#define TOLLGATE_GUARD_HOOKS_BPF_H

#include "gate/events.bpf.h"
#include "guard/holds.bpf.h"
#include "guard/model.bpf.h"

/* Begins a batch without calls. The thread's next call takes the slow path. */
static __always_inline void guard_begin_batch(struct thread_state *thread)
{
	thread->guard_batch = 1;
	thread->guard_left = 1;
}

/* Adds the calls of the thread's batch to its profile, and begins a new batch. */
static __always_inline void guard_flush(struct thread_state *thread)
{
	struct guard_profile *profile = profile_at(thread->profile_slot);

	if (profile) {
		__sync_fetch_and_add(&profile->trained, thread->guard_batch - thread->guard_left);
		__sync_fetch_and_add(&profile->calls, thread->guard_batch - thread->guard_left);
	}
	guard_begin_batch(thread);
}

/*
 * At entry, before the call is made. `is_denounced`: a plugin marks the call as anomalous, whatever
 * the profile says. Returns whether the policy was applied, even if it only observes.
 */
static __always_inline bool guard_test_call(struct thread_state *thread, u32 call,
					    bool is_denounced)
{
	struct guard_profile *profile = profile_at(thread->profile_slot);
	bool is_suspended, is_final, is_known;
	struct session *session;
	u32 mismatches;

	if (unlikely(!profile)) {
		/*
		 * No loss with other slots: the thread has not executed a program yet, or the
		 * session does not guard its program.
		 */
		if (thread->profile_slot == GUARD_PROFILE_NONE)
			count_loss(thread->guard_session, LOSS_UNGUARDED_CALLS);
		return false;
	}
	is_known = guard_fast_path(thread, profile, call);
	if (likely(is_known && !is_denounced))
		return false;
	session = session_at(thread->guard_session);
	if (!session)
		return false;
	thread->precall = 0;
	if (thread->held)
		guard_rehold(thread, call);
	mismatches = is_known ?
			     0 :
			     guard_slow_path(thread, profile, &session->guard, call, is_denounced);
	if (is_denounced && mismatches != NOT_TESTED) {
		if (is_known)
			frame_push(thread, 1);
		mismatches |= GUARD_DENOUNCED;
	}
	is_suspended = is_execve_suspended(&session->guard, thread, call);
	is_final = is_suspended || (session->guard.response == GUARD_DENY && is_execve(call));
	/*
	 * A restarted call is not held again: a fork would never succeed. If another process has
	 * continued a held thread, the policy applies only to an anomalous call or to an execve
	 * that must not begin (is_final).
	 */
	if ((!thread->lfc && !is_suspended) || mismatches == NOT_TESTED ||
	    (thread->held && !mismatches && !is_final))
		return false;
	guard_respond(thread, session, call, mismatches);
	return true;
}

/* A thread begins a program, or is attached in one: it has made no calls yet. */
static __always_inline void guard_begin_program(struct thread_state *thread, u64 scope)
{
	/* A thread that was held at its execve has still to be released. */
	u8 held = thread->held;
	u32 i;

	guard_flush(thread);
	thread->window = 0;
	thread->slow_path_flags = 0;
	thread->precall = 0;
	thread->held = held;
	frame_reset(thread);
	thread->max_lfc = 0;
	for (i = 0; i < GUARD_HANDLERS; i++)
		WRITE_ONCE(thread->interrupted[i], 0);
	thread->profile_slot = profile_slot_of(READ_ONCE(thread->task), thread->guard_session,
					       scope);
}

static __always_inline void guard_sys_enter(struct crossing *at)
{
	at->has_verdict = guard_test_call(at->thread, at->call, at->is_denounced);
}

static __always_inline void guard_exec(struct thread_state *thread)
{
	guard_begin_program(thread, SCOPE_CURRENT);
}

static __always_inline void guard_task_exit(struct thread_state *thread, struct task_struct *task)
{
	guard_flush(thread);
}

/* All threads of a process stop, but only one of them gets the signal. */
static __always_inline void guard_switch_out(struct switching *at)
{
	if (unlikely(at->state & STATE_STOPPED) && has(at->thread, GUARD))
		guard_mark_restart(at->thread, at->task);
}

/* pH: a child continues with a copy of its parent's sequence. */
static __always_inline void guard_fork(struct thread_state *thread, struct thread_state *parent)
{
	u32 i;

	guard_begin_batch(thread);
	thread->guard_session = parent->guard_session;
	thread->window = parent->window;
	thread->profile_slot = parent->profile_slot;
	thread->lfc = parent->lfc;
	thread->max_lfc = parent->max_lfc;
	thread->handlers = parent->handlers;
	thread->frame[0] = parent->frame[0];
	thread->frame[1] = parent->frame[1];
	for (i = 0; i < GUARD_HANDLERS; i++)
		thread->interrupted[i] = parent->interrupted[i];
}

#endif
