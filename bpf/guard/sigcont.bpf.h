/* SPDX-License-Identifier: GPL-2.0 */
/* SIGCONT by processes other than Tollgate: a held thread stops again before it makes a call. */
#ifndef TOLLGATE_GUARD_SIGCONT_BPF_H
#define TOLLGATE_GUARD_SIGCONT_BPF_H

#include "guard/foreign_signals.bpf.h"
#include "guard/state.bpf.h"

/*
 * This function exists since Linux 6.13. Without it, a held thread makes one more call after a
 * SIGCONT, and stops in that call (guard_rehold).
 */
extern int bpf_send_signal_task(struct task_struct *task, int signal, enum pid_type type, u64 value)
	__weak __ksym;

extern struct task_struct *bpf_task_from_pid(s32 pid) __weak __ksym;
extern void bpf_task_release(struct task_struct *task) __weak __ksym;

struct held_thread_search {
	u32 tgid;
	/* The held thread's slot; 0: there is none. */
	u32 slot;
};

static long match_held_thread(u32 i, struct held_thread_search *search)
{
	struct thread_state *thread = thread_at(i);

	if (thread->tgid != search->tgid || !is_held(thread))
		return 0;
	search->slot = i;
	return 1;
}

/*
 * Slot of a held thread of the task's process; 0: none is held. There are many slots, so they are
 * not searched for every process. The slot of a process's first thread records whether any thread
 * of the process was held. The slots are searched only if a thread was held, or if the first thread
 * has ended.
 */
static __always_inline u32 held_thread_slot(struct task_struct *task)
{
	struct held_thread_search search = { .tgid = task->tgid };
	struct task_struct *leader = task->group_leader;
	u32 first;

	if (likely(!READ_ONCE(header.ever_held)))
		return 0;
	first = slot_of(leader);
	if (first ? !READ_ONCE(guard_cold_at(first)->ever_held) : !outlives_leader(leader))
		return 0;
	if (is_held(thread_at(first)))
		return first;
	bpf_loop(header.next_thread, match_held_thread, &search, 0);
	return search.slot;
}

/*
 * Sends another SIGSTOP to a held thread whose process gets a SIGCONT. The kernel holds the lock
 * that a second signal needs, so bpf_send_signal_task() sends the SIGSTOP in an interrupt right
 * after the SIGCONT. The SIGSTOP is for the held thread itself, and is lost if that thread ends
 * before the interrupt.
 */
static __always_inline void guard_sigcont(struct task_struct *task)
{
	struct thread_state *held;
	struct session *session;
	struct task_struct *thread;
	u32 slot;

	slot = held_thread_slot(task);
	held = thread_at(slot);
	session = session_at(held->guard.session);
	if (!slot || !session)
		return;
	/*
	 * systemd, timeout(1) and others continue a process after a signal that terminates it, also
	 * if Tollgate has not released it yet. A request to end by somebody who may not make one
	 * (may_terminate) is only pending. Then the process stops at its next call.
	 */
	if (guard_cold_at(slot)->grace_until ||
	    BPF_CORE_READ(task, signal, shared_pending.signal.sig[0]) & TERMINATION_SIGNALS)
		return;
	__sync_fetch_and_add(&session->foreign_continues, 1);
	session->foreign_continued = held->visible_pid;
	if (!bpf_ksym_exists(bpf_send_signal_task))
		return;
	/* A release may be in progress now, so Tollgate reads this number after each release. */
	__sync_fetch_and_add(&session->sigconts, 1);
	thread = is_held(held) ? bpf_task_from_pid(held->pid) : NULL;
	if (thread) {
		bpf_send_signal_task(thread, SIGSTOP, PIDTYPE_PID, 0);
		bpf_task_release(thread);
	}
}

static __always_inline void guard_sig_generate(int signal, struct kernel_siginfo *info,
					       struct task_struct *task, int result)
{
	u64 bit = signal > 0 && signal < 64 ? 1ULL << (signal - 1) : 0;

	if (!(config.enabled & GUARD) ||
	    likely(!(bit & (SIGNAL_BIT(SIGCONT) | STOP_SIGNALS | TERMINATION_SIGNALS))))
		return;
	if (signal == SIGCONT) {
		/* Somebody continues the process on purpose, or too early. */
		if (is_by_guard(signal, info)) {
			guard_expect_reaction(task);
			return;
		}
		guard_foreign_continue(task);
		guard_sigcont(task);
	} else if (bit & STOP_SIGNALS) {
		guard_foreign_stop(signal, info, task);
	} else {
		guard_terminate(info, task);
	}
}

#endif
