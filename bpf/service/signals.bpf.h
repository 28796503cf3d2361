/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Requests by a signal. A process may start a worker when another one sends it a signal. This is
 * how a backend of PostgreSQL gets workers from the postmaster for a query. If a rule says so, the
 * children that the process forks before it sleeps again work for the service of the signal's
 * sender.
 */
#ifndef TOLLGATE_SERVICE_SIGNALS_BPF_H
#define TOLLGATE_SERVICE_SIGNALS_BPF_H

#include "service/state.bpf.h"

/* include/uapi/asm/signal.h: signals whose meaning each program chooses. */
#define SIGUSR1 10
#define SIGUSR2 12
/* include/uapi/asm-generic/siginfo.h: sent by the process that runs here, in its call. */
#define SI_USER 0
#define SI_QUEUE -1
#define SI_TKILL -6

/* include/trace/events/signal.h: the signal's result. */
#define TRACE_SIGNAL_IGNORED 1
#define TRACE_SIGNAL_OVERFLOW_FAIL 3

/*
 * A request: the service of the signal's sender and, in the high half, how often the receiving
 * thread had slept by then.
 */
#define FORK_REQUEST_VALID 0x10000
#define FORK_REQUEST_SLEEPS_SHIFT 32

static __always_inline bool is_from_process(struct kernel_siginfo *info)
{
	int code;

	/* include/linux/sched/signal.h: SEND_SIG_NOINFO and SEND_SIG_PRIV are not addresses. */
	if ((u64)info <= 1)
		return false;
	code = BPF_CORE_READ(info, si_code);
	return code == SI_USER || code == SI_QUEUE || code == SI_TKILL;
}

/* The thread that runs here sends the task's process a signal. */
static __always_inline void service_sig_generate(int signal, struct kernel_siginfo *info,
						 struct task_struct *task, int result)
{
	struct task_struct *sender, *leader;
	u32 slot, from;
	u64 before, fork_request;

	if (!(config.enabled & SERVICE) || (signal != SIGUSR1 && signal != SIGUSR2))
		return;
	sender = bpf_get_current_task_btf();
	leader = task->group_leader;
	/* The process will not see the signal. */
	if (result == TRACE_SIGNAL_IGNORED || result == TRACE_SIGNAL_OVERFLOW_FAIL)
		return;
	if (!rulesets[READ_ONCE(header.ruleset) & 1].tuple_count[EVENT_FORK] ||
	    !is_from_process(info) || sender->tgid == task->tgid)
		return;
	slot = slot_of(leader);
	from = slot_of(sender);
	if (!slot || !from || !has(thread_at(slot), SERVICE) || !has(thread_at(from), SERVICE))
		return;
	fork_request = FORK_REQUEST_VALID | members[from & (THREADS - 1)].service |
		       BPF_CORE_READ(leader, nvcsw) << FORK_REQUEST_SLEEPS_SHIFT;
	before = READ_ONCE(members[slot & (THREADS - 1)].fork_request);
	/* Two services have requested a fork before the process slept again. */
	if (before != fork_request && (before & FORK_REQUEST_VALID) &&
	    before >> FORK_REQUEST_SLEEPS_SHIFT == fork_request >> FORK_REQUEST_SLEEPS_SHIFT)
		fork_request = (fork_request & ~0xffffULL) | SERVICE_SHARED;
	/* Another process has sent a request at the same time. */
	if (__sync_val_compare_and_swap(&members[slot & (THREADS - 1)].fork_request, before,
					fork_request) != before)
		members[slot & (THREADS - 1)].fork_request = (fork_request & ~0xffffULL) |
							     SERVICE_SHARED;
}

/* The service that has requested a fork from the thread that runs here. */
static __always_inline u32 fork_requester(struct service_member *member)
{
	u64 fork_request = READ_ONCE(member->fork_request);

	if (likely(!(fork_request & FORK_REQUEST_VALID)))
		return SERVICE_NONE;
	if (fork_request >> FORK_REQUEST_SLEEPS_SHIFT != (u32)bpf_get_current_task_btf()->nvcsw)
		return SERVICE_NONE;
	return services[fork_request & (SERVICES - 1)].successor;
}

#endif
