/* SPDX-License-Identifier: GPL-2.0 */
/* Somebody else's SIGCONT: who is held stops again before it makes a call. */
#ifndef TOLLGATE_GUARD_CONTINUE_BPF_H
#define TOLLGATE_GUARD_CONTINUE_BPF_H

#include "guard.bpf.h"

/* Since 6.13. Before, who is held stops again at its next call, which is made (guard_hold_on). */
extern int bpf_send_signal_task(struct task_struct *task, int signal, enum pid_type type, u64 value) __weak __ksym;

struct held_search {
	u32 tgid;
	/* Of the guard that holds a thread of it; 0: none does. */
	u32 session;
};

static long look_for_held(u32 i, struct held_search *search)
{
	struct thread_state *thread = thread_at(i);

	if (thread->tgid != search->tgid || !READ_ONCE(thread->held) || !has(thread, GUARD))
		return 0;
	search->session = thread->guard_session;
	return 1;
}

/* Tollgate itself has its reasons, such as a request to end that waits. */
static __always_inline bool is_owner(struct task_struct *task, u32 session_index)
{
	struct session *session = session_at(session_index);

	return !session || visible_pid(task->group_leader, session->pid_level) == session->owner_pid;
}

/* The kernel holds the lock that a second signal needs, so bpf_send_signal_task sends it right after the first. */
static __always_inline void guard_continued(struct task_struct *task)
{
	struct held_search search = { .tgid = task->tgid };

	if (!bpf_ksym_exists(bpf_send_signal_task) || !slot_of(task))
		return;
	bpf_loop(header.next_thread, look_for_held, &search, 0);
	if (search.session && !is_owner(bpf_get_current_task_btf(), search.session))
		bpf_send_signal_task(task, SIGSTOP, PIDTYPE_TGID, 0);
}

#endif
