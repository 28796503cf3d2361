/* SPDX-License-Identifier: GPL-2.0 */
/* Somebody else's SIGCONT: who is held stops again before it makes a call. */
#ifndef TOLLGATE_GUARD_CONTINUE_BPF_H
#define TOLLGATE_GUARD_CONTINUE_BPF_H

#include "guard.bpf.h"

/* Since 6.13. Before, who is held stops again at its next call, which is made (guard_hold_on). */
extern int bpf_send_signal_task(struct task_struct *task, int signal, enum pid_type type, u64 value) __weak __ksym;

extern struct task_struct *bpf_task_from_pid(s32 pid) __weak __ksym;
extern void bpf_task_release(struct task_struct *task) __weak __ksym;

#define SIGHUP 1
#define SIGINT 2
#define SIGQUIT 3
#define SIGTERM 15
#define SIGNAL_BIT(signal) (1UL << ((signal) - 1))
#define REQUESTS_TO_END (SIGNAL_BIT(SIGHUP) | SIGNAL_BIT(SIGINT) | SIGNAL_BIT(SIGQUIT) | SIGNAL_BIT(SIGTERM))

struct held_search {
	u32 tgid;
	/* Of the held thread; 0: there is none. */
	u32 slot;
};

static __always_inline bool is_held(struct thread_state *thread)
{
	return READ_ONCE(thread->held) && has(thread, GUARD);
}

static long look_for_held(u32 i, struct held_search *search)
{
	struct thread_state *thread = thread_at(i);

	if (thread->tgid != search->tgid || !is_held(thread))
		return 0;
	search->slot = i;
	return 1;
}

static __always_inline bool lives_without_first(struct task_struct *leader)
{
	/* The first stays until all others are gone. */
	return (leader->flags & PF_EXITING) && BPF_CORE_READ(leader, signal, nr_threads) > 1;
}

/*
 * Slot of a thread of the task's process that is held; 0: none is. There are many slots: only processes of which a thread was
 * held once are searched for, and those that live on without their first thread, which has the mark.
 */
static __always_inline u32 held_slot(struct task_struct *task)
{
	struct held_search search = { .tgid = task->tgid };
	struct task_struct *leader = task->group_leader;
	u32 first;

	if (likely(!READ_ONCE(header.was_held)))
		return 0;
	first = slot_of(leader);
	if (first ? !READ_ONCE(thread_at(first)->was_held) : !lives_without_first(leader))
		return 0;
	if (is_held(thread_at(first)))
		return first;
	bpf_loop(header.next_thread, look_for_held, &search, 0);
	return search.slot;
}

/*
 * The kernel holds the lock that a second signal needs, so bpf_send_signal_task sends it by an interrupt right after the
 * first. The signal is the held thread's own, and gone if that ends first.
 */
static __always_inline void guard_continued(struct task_struct *task)
{
	struct thread_state *held;
	struct session *session;
	struct task_struct *thread;
	u32 slot;

	if (!bpf_ksym_exists(bpf_send_signal_task))
		return;
	slot = held_slot(task);
	held = thread_at(slot);
	session = session_at(held->guard_session);
	if (!slot || !session)
		return;
	/* Who is asked to end is continued for that, by systemd and timeout(1) among others: it stops at its next call. */
	if (BPF_CORE_READ(task, signal, shared_pending.signal.sig[0]) & REQUESTS_TO_END)
		return;
	/* So does its owner. */
	if (visible_pid(bpf_get_current_task_btf()->group_leader, session->pid_level) == session->owner_pid)
		return;
	/* Tollgate looks at this when it has let somebody go, which may be meanwhile. */
	__sync_fetch_and_add(&session->continued, 1);
	thread = is_held(held) ? bpf_task_from_pid(held->pid) : NULL;
	if (thread) {
		bpf_send_signal_task(thread, SIGSTOP, PIDTYPE_PID, 0);
		bpf_task_release(thread);
	}
}

#endif
