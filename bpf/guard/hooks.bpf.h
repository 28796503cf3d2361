/* SPDX-License-Identifier: GPL-2.0 */
/* The guard at the hooks of the gate. */
#ifndef TOLLGATE_GUARD_HOOKS_BPF_H
#define TOLLGATE_GUARD_HOOKS_BPF_H

#include "gate/events.bpf.h"
#include "guard/foreign_signals.bpf.h"
#include "guard/holds.bpf.h"
#include "guard/model.bpf.h"
#include "guard/state.bpf.h"

/* Begins a batch without calls. The thread's next call takes the slow path. */
static __always_inline void guard_begin_batch(struct thread_state *thread)
{
	thread->guard.batch_size = 1;
	thread->guard.batch_left = 1;
}

/* Adds the calls of the thread's batch to its profile, and begins a new batch. */
static __always_inline void guard_flush(struct thread_state *thread)
{
	struct guard_profile *profile = profile_at(thread->guard.profile_slot);
	u16 calls = thread->guard.batch_size - thread->guard.batch_left;

	if (profile) {
		__sync_fetch_and_add(&profile->trained, calls);
		__sync_fetch_and_add(&profile->calls, calls);
	}
	guard_begin_batch(thread);
}

/*
 * Tests a call at entry, before it is made. `is_denounced`: a plugin marks the call as anomalous,
 * whatever the profile says. Returns whether the policy was applied, even if it only observes.
 */
static __always_inline bool guard_test_call(struct thread_state *thread, u32 call,
					    bool is_denounced)
{
	struct guard_profile *profile = profile_at(thread->guard.profile_slot);
	bool is_suspended, is_final, is_known;
	struct session *session;
	struct guard_cold *cold;
	u32 mismatches;

	if (unlikely(!profile)) {
		/*
		 * Slot 0 and GUARD_PROFILE_UNSELECTED are no loss: the thread has not executed a
		 * program yet, or the session does not guard its program.
		 */
		if (thread->guard.profile_slot == GUARD_PROFILE_NONE)
			count_loss(thread->guard.session, LOSS_UNGUARDED_CALLS);
		return false;
	}
	is_known = guard_fast_path(thread, profile, call);
	if (likely(is_known && !is_denounced))
		return false;
	session = session_at(thread->guard.session);
	if (!session)
		return false;
	cold = guard_cold_of(thread);
	thread->guard.precall = 0;
	if (thread->guard.held)
		guard_rehold(thread, cold, call);
	mismatches = is_known ?
			     0 :
			     guard_slow_path(thread, profile, &session->guard, call, is_denounced);
	if (is_denounced && mismatches != NOT_TESTED) {
		if (is_known)
			frame_push(thread, cold, 1);
		mismatches |= GUARD_DENOUNCED;
		thread->guard.restart |= GUARD_CALL_DENOUNCED;
	}
	is_suspended = is_execve_suspended(&session->guard, cold, call);
	is_final = is_suspended || (session->guard.response == GUARD_DENY && is_execve(call));
	/*
	 * A restarted call is not held again, because a fork would then never succeed. If another
	 * process has continued a held thread, the policy applies only to an anomalous call or to
	 * an execve that must not begin (is_final).
	 */
	if ((!thread->guard.lfc && !is_suspended) || mismatches == NOT_TESTED ||
	    (thread->guard.held && !mismatches && !is_final))
		return false;
	guard_respond(thread, session, call, mismatches);
	return true;
}

/*
 * A thread begins a program, or is attached while it runs one. The guard has seen none of its calls
 * yet.
 */
static __always_inline void guard_begin_program(struct thread_state *thread, u64 scope,
						u32 executor)
{
	struct guard_cold *cold = guard_cold_of(thread);
	u32 i;

	guard_flush(thread);
	thread->guard.window = 0;
	/* `held` stays: a thread that was held at its execve has still to be released. */
	thread->guard.handlers = 0;
	thread->guard.restart = 0;
	thread->guard.precall = 0;
	frame_reset(thread, cold);
	cold->max_lfc = 0;
	cold->had_kernel_grace = 0;
	guard_executors[thread->slot & (THREADS - 1)] = executor;
	for (i = 0; i < GUARD_HANDLERS; i++)
		WRITE_ONCE(cold->interrupted[i], 0);
	thread->guard.profile_slot = profile_slot_of(READ_ONCE(thread->task), thread->guard.session,
					       scope);
}

/*
 * Whether a guarded thread keeps the guard of the thread that it continues from. If it already
 * runs, it does, because that guard may hold it, unless that guard does not select its program. A
 * new thread of a process always does. A new process gets the guard of the session that it joins,
 * if that has one.
 */
static __always_inline bool guard_stays(struct joining *at)
{
	struct thread_state *thread = at->thread, *before = at->before;

	if (!before || !has(before, GUARD))
		return false;
	if (before == thread)
		return thread->guard.held ||
		       thread->guard.profile_slot != GUARD_PROFILE_UNSELECTED;
	return !(at->mask & GUARD) || before->guard.session == at->session_index ||
	       thread->tgid == before->tgid;
}

static __always_inline void guard_join(struct joining *at)
{
	struct thread_state *thread = at->thread, *before = at->before;
	u32 session = at->mask & GUARD ? at->session_index : 0;
	bool was_guarded, stays;

	if (!(config.enabled & GUARD))
		return;
	was_guarded = before && has(before, GUARD);
	stays = guard_stays(at);
	if (!stays && (session || (at->is_forked && !before))) {
		session = guard_session_of((u64)READ_ONCE(thread->task), session, false);
		/* A new process continues with its parent's guard, and not with a new sequence. */
		stays = was_guarded && before != thread && before->guard.session == session;
	}
	if (stays) {
		at->mask |= GUARD;
	} else if (session) {
		at->mask |= GUARD;
		thread->guard.session = session;
		if (!before)
			guard_note_stopped(thread);
		/* Before its first execve, the thread runs Tollgate's own program. */
		if (!thread->until_exec)
			guard_begin_program(thread, at->identity,
					    was_guarded ?
						    guard_executors[before->slot & (THREADS - 1)] :
						    executor_of_running((void *)thread->task));
	}
}

static __always_inline void guard_sys_enter(struct crossing *at)
{
	at->has_verdict = guard_test_call(at->thread, at->call, at->is_denounced);
}

static __always_inline void guard_exec(struct thread_state *thread)
{
	/*
	 * A thread that was held may have ended by this execve. If its stop had begun, it takes
	 * effect on this thread, which then is the first thread.
	 */
	if (unlikely(READ_ONCE(header.ever_held)))
		guard_cold_of(thread)->ever_held = 1;
	/* If the thread is held, the session that guards its new program releases it. */
	thread->guard.session = guard_session_of((u64)READ_ONCE(thread->task),
						 thread->guard.session, thread->guard.held);
	guard_begin_program(thread, IDENTITY_CURRENT, executor_of((void *)READ_ONCE(thread->task)));
}

static __always_inline void guard_task_exit(struct thread_state *thread, struct task_struct *task)
{
	guard_flush(thread);
}

static __always_inline bool guard_is_held(struct thread_state *thread)
{
	return thread->guard.held;
}

/* All threads of a process stop, but only one of them gets the signal. */
static __always_inline void guard_switch_out(struct switching *at)
{
	if (unlikely(at->state & STATE_STOPPED) && has(at->thread, GUARD)) {
		guard_mark_restart(at->thread, at->task);
		guard_note_stop(at->thread, at->task);
	}
}

/*
 * pH: a child continues with a copy of its parent's sequence. If the child begins a session with a
 * guard of its own, guard_join() has already recorded that guard, which begins without calls.
 */
static __always_inline void guard_fork(struct thread_state *thread, struct thread_state *parent)
{
	struct guard_cold *cold = guard_cold_of(thread), *before = guard_cold_of(parent);
	u32 i;

	if (thread->tgid == parent->tgid)
		cold->foreign_stop = before->foreign_stop;
	/* A handler may need child processes, such as those of a shell's trap. */
	cold->grace_until = before->grace_until;
	cold->had_kernel_grace = before->had_kernel_grace;
	if (thread->guard.session)
		return;
	guard_begin_batch(thread);
	thread->guard.session = parent->guard.session;
	thread->guard.window = parent->guard.window;
	thread->guard.profile_slot = parent->guard.profile_slot;
	thread->guard.lfc = parent->guard.lfc;
	cold->max_lfc = before->max_lfc;
	guard_executors[thread->slot & (THREADS - 1)] =
		guard_executors[parent->slot & (THREADS - 1)];
	thread->guard.handlers = parent->guard.handlers;
	thread->guard.restart = parent->guard.restart & ~GUARD_RESTART_EXPECTED;
	cold->frame[0] = before->frame[0];
	cold->frame[1] = before->frame[1];
	for (i = 0; i < GUARD_HANDLERS; i++)
		cold->interrupted[i] = before->interrupted[i];
}

#endif
