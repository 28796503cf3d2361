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
	/* The held thread; 0: there is none. */
	u32 pid;
};

static long look_for_held(u32 i, struct held_search *search)
{
	struct thread_state *thread = thread_at(i);

	if (thread->tgid != search->tgid || !READ_ONCE(thread->held) || !has(thread, GUARD))
		return 0;
	search->pid = thread->pid;
	return 1;
}

/*
 * The kernel holds the lock that a second signal needs, so bpf_send_signal_task sends it by an interrupt right after the
 * first. Meanwhile Tollgate may let the process go: it looks at `continued` then. The signal is the held thread's own, and
 * gone if that ends first.
 */
static __always_inline void guard_continued(struct task_struct *task)
{
	struct held_search search = { .tgid = task->tgid };
	u32 index = thread_at(slot_of(task))->guard_session;
	struct session *session = session_at(index);
	struct task_struct *thread;

	if (!bpf_ksym_exists(bpf_send_signal_task) || !index || !session)
		return;
	/* The usual case. Who holds says so first. */
	if (!READ_ONCE(session->held) && !READ_ONCE(session->holds_since))
		return;
	/* Who is asked to end is continued for that, by systemd and timeout(1) among others: it stops at its next call. */
	if (BPF_CORE_READ(task, signal, shared_pending.signal.sig[0]) & REQUESTS_TO_END)
		return;
	/* So does its owner. */
	if (visible_pid(bpf_get_current_task_btf()->group_leader, session->pid_level) == session->owner_pid)
		return;
	__sync_fetch_and_add(&session->continued, 1);
	bpf_loop(header.next_thread, look_for_held, &search, 0);
	thread = search.pid ? bpf_task_from_pid(search.pid) : NULL;
	if (thread) {
		bpf_send_signal_task(thread, SIGSTOP, PIDTYPE_PID, 0);
		bpf_task_release(thread);
	}
}

#endif
