/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Children for others: a process that is asked by a signal to start a worker, as PostgreSQL's is by a backend that has a
 * query for several. What it forks before it sleeps again is for whom it was asked by, where a rule says so.
 */
#ifndef TOLLGATE_SERVICE_WORKERS_BPF_H
#define TOLLGATE_SERVICE_WORKERS_BPF_H

#include "service_rules.bpf.h"

/* include/uapi/asm/signal.h: those of which programs say themselves what they mean. */
#define SIGUSR1 10
#define SIGUSR2 12
/* include/uapi/asm-generic/siginfo.h: a process has sent it, and is in its call. */
#define SI_USER 0
#define SI_QUEUE -1
#define SI_TKILL -6

/* include/trace/events/signal.h: what has become of it. */
#define TRACE_SIGNAL_IGNORED 1
#define TRACE_SIGNAL_OVERFLOW_FAIL 3

/* Who asked, with how often the thread had slept then in the high half. */
#define ASKED 0x10000
#define ASKED_SLEEPS_SHIFT 32

static __always_inline bool is_from_process(struct kernel_siginfo *info)
{
	int code;

	/* include/linux/sched/signal.h: SEND_SIG_NOINFO and SEND_SIG_PRIV are no addresses. */
	if ((u64)info <= 1)
		return false;
	code = BPF_CORE_READ(info, si_code);
	return code == SI_USER || code == SI_QUEUE || code == SI_TKILL;
}

/* The thread that runs here sends the task's process a signal. */
static __always_inline void service_signalled(int signal, struct kernel_siginfo *info, struct task_struct *task, int result)
{
	struct task_struct *sender = bpf_get_current_task_btf(), *leader = task->group_leader;
	u32 slot, from;
	u64 before, asked;

	if (signal != SIGUSR1 && signal != SIGUSR2)
		return;
	/* Nobody will see it. */
	if (result == TRACE_SIGNAL_IGNORED || result == TRACE_SIGNAL_OVERFLOW_FAIL)
		return;
	if (!books[READ_ONCE(header.book) & 1].asked[EVENT_FORK] || !is_from_process(info) || sender->tgid == task->tgid)
		return;
	slot = slot_of(leader);
	from = slot_of(sender);
	if (!slot || !from || !has(thread_at(slot), SERVICE) || !has(thread_at(from), SERVICE))
		return;
	asked = ASKED | members[from & (THREADS - 1)].service | BPF_CORE_READ(leader, nvcsw) << ASKED_SLEEPS_SHIFT;
	before = READ_ONCE(members[slot & (THREADS - 1)].asked);
	/* For two at once. */
	if (before != asked && (before & ASKED) && before >> ASKED_SLEEPS_SHIFT == asked >> ASKED_SLEEPS_SHIFT)
		asked = (asked & ~0xffffULL) | SERVICE_SHARED;
	/* Somebody else asks in this moment. */
	if (__sync_val_compare_and_swap(&members[slot & (THREADS - 1)].asked, before, asked) != before)
		members[slot & (THREADS - 1)].asked = (asked & ~0xffffULL) | SERVICE_SHARED;
}

/* For whom the thread that runs here, and forks, was asked to do so. */
static __always_inline u32 asked_by(struct service_member *member)
{
	u64 asked = READ_ONCE(member->asked);

	if (likely(!(asked & ASKED)))
		return SERVICE_NONE;
	if (asked >> ASKED_SLEEPS_SHIFT != (u32)bpf_get_current_task_btf()->nvcsw)
		return SERVICE_NONE;
	return services[asked & (SERVICES - 1)].heir;
}

#endif
