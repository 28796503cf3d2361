/* SPDX-License-Identifier: GPL-2.0 */
/* Pace at the hooks of the gate. */
#ifndef TOLLGATE_PACE_HOOKS_BPF_H
#define TOLLGATE_PACE_HOOKS_BPF_H

#include "gate/calls.bpf.h"
#include "pace/infer.bpf.h"
#include "pace/program_tasks.bpf.h"

/* include/linux/sched.h, the state of a task that is being woken; not in BTF */
#define STATE_WAKING 0x200

/* arch/x86/entry/syscalls/syscall_64.tbl; the second number is the same for all ABIs */
#define CALL_READ 0
#define CALL_IO_URING_ENTER 426

/* Removes a thread from its task. It is a global function, so that it is verified once. */
__noinline int pace_leave_task(u32 slot, u32 how)
{
	struct pace_cpu *at = pace_cpu_at(bpf_get_smp_processor_id());

	if (!(config.enabled & PACE))
		return 0;
	pace_leave(slot, how, bpf_ktime_get_ns());
	if (at->slot == slot)
		at->slot = 0;
	return 0;
}

struct pace_search_own {
	u32 session;
	u32 tgid;
};

static long pace_end_if_own(u32 entry, struct pace_search_own *search)
{
	struct pace_task *task = pace_task_at(entry);
	u32 number = pace_number(task);

	if (task->id && task->tgid == search->tgid && task->session == search->session)
		pace_end(task, number, PACE_END_EXIT, bpf_ktime_get_ns(), false);
	return 0;
}

/*
 * Ends the tasks that a process has begun and not ended, because it executes another program. That
 * one cannot do so, and may use the same IDs.
 */
__noinline int pace_end_own(u32 slot)
{
	struct thread_state *thread = thread_at(slot);
	struct pace_search_own search;

	if (!(config.enabled & PACE))
		return 0;
	search.session = pace_of(slot)->session;
	search.tgid = thread->tgid;
	bpf_loop(PACE_TASKS, pace_end_if_own, &search, 0);
	return 0;
}

static __always_inline void pace_join(struct joining *at)
{
	struct pace_thread *of = pace_of(at->thread->slot);
	struct thread_state *before = at->before;
	u32 session = at->session->mask & PACE ? at->session_index : 0;

	if (!(config.enabled & PACE))
		return;
	/* 6.1's verifier must see the comparison with NULL. */
	barrier_var(before);
	/* The session that follows the tasks continues to do so. */
	if (before && has(before, PACE)) {
		if (session && session != pace_of(before->slot)->session)
			count_loss(session, LOSS_PACE_OTHER_SESSION);
		if (before->slot == at->thread->slot)
			return;
		session = pace_of(before->slot)->session;
	}
	if (unlikely(of->task))
		pace_leave_task(at->thread->slot, PACE_END_EXIT);
	__builtin_memset(of, 0, sizeof(*of));
	of->session = session;
}

static __always_inline void pace_exec(struct thread_state *thread)
{
	struct pace_thread *of = pace_of(thread->slot);

	of->is_known = 0;
	if (unlikely(pace_rules_of(of->session)->has_own_tasks))
		pace_end_own(thread->slot);
	if (unlikely(of->task) && pace_is_exempt(thread->slot))
		pace_leave_task(thread->slot, PACE_END_EXIT);
}

static __always_inline void pace_sys_enter(struct crossing *at)
{
	const struct pt_regs *regs = at->regs;

	if (unlikely(call_flags(at->call) & CALL_REQUESTS_PACE) && regs->di == PACE_MAGIC)
		pace_request(at->thread->slot, regs->si, regs->dx, regs->r10, regs->r8);
}

/* Whether a call begins tasks of any rule. */
static __always_inline bool pace_begins_any(struct pace_call *call)
{
	return call->if_zero | call->if_positive | call->if_timeout;
}

static __always_inline void pace_sys_exit(struct crossing *at)
{
	struct thread_state *thread = at->thread;
	struct pace_thread *of = pace_of(thread->slot);
	struct pace_rules *rules = pace_rules_of(of->session);
	u64 call = thread->call, buffer = 0;
	u32 candidates = 0, fd = PACE_NO_FD;
	struct pace_call *begins;

	barrier_var(call);
	if (call >= CALL_INDICES)
		return;
	begins = &rules->calls[call];
	if (likely(!pace_begins_any(begins)))
		return;
	if (at->result > 0)
		candidates = begins->if_positive;
	else if (!at->result)
		candidates = begins->if_zero;
	if (!at->result && (of->slept_in == call + 1 || (of->woken_ns && of->woken_in == call + 1)))
		candidates |= begins->if_timeout;
	of->slept_in = 0;
	if (!candidates) {
		/* A task of the next call must not begin at this wake-up. */
		of->woken_ns = 0;
		return;
	}
	if (call_flags(call) & CALL_HAS_DESCRIPTOR)
		fd = descriptor_of(call, 0, at->regs);
	if (call == CALL_READ)
		buffer = at->regs->si;
	pace_infer(thread->slot, candidates, fd, buffer, at->result);
}

/* Whether a sleep in this call is part of the task (`includes_waits`). */
static __always_inline bool pace_waits_in_task(struct thread_state *thread, struct pace_task *task)
{
	struct pace_rules *rules = pace_rules_of(task->session);
	u64 call = thread->call;
	u32 begins;

	if (!rules->rule[task->rule & (PACE_RULES - 1)].includes_waits)
		return false;
	barrier_var(call);
	if (thread->in_call < IN_CALL || call >= CALL_INDICES)
		return true;
	begins = rules->calls[call].if_positive | rules->calls[call].if_zero |
		 rules->calls[call].if_timeout;
	return !(begins & 1U << (task->rule & (PACE_RULES - 1)));
}

/*
 * Whether a thread that sleeps waits for a disk. io_uring counts all its waits as such (Linux 6.5,
 * io_uring/io_uring.c, io_cqring_wait_schedule), also those for sockets.
 */
static __always_inline bool pace_waits_for_disk(struct thread_state *thread,
						struct task_struct *task)
{
	if (thread->in_call >= IN_CALL && thread->call % CALLS_PER_ABI == CALL_IO_URING_ENTER)
		return false;
	return BPF_CORE_READ_BITFIELD(task, in_iowait);
}

/*
 * A thread with a task is switched out. `sleeps`: it is not ready to run. This and the next one are
 * global functions, so that the verifier checks each once.
 */
__noinline int pace_switched_out(u32 slot, u32 sleeps, u64 now)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct thread_state *thread = thread_at(slot);
	struct pace_cpu *at = pace_cpu_at(bpf_get_smp_processor_id());
	struct pace_thread *of = pace_of(slot);
	struct pace_task *task;
	u32 state;

	if (!(config.enabled & PACE))
		return 0;
	at->slot = 0;
	/* An ended task is not removed from the thread here, because a waker may set a new one. */
	task = pace_live(of);
	if (!task)
		return 0;
	pace_charge(slot, task, now);
	pace_stop_counting(at);
	/* In this order: pace_add_if_worker() reads both on other processors. */
	WRITE_ONCE(of->left_ns, now);
	WRITE_ONCE(of->charged_ns, 0);
	if (!sleeps || pace_waits_for_disk(thread, current) ||
	    (task->beginner == slot && pace_waits_in_task(thread, task)))
		return 0;
	/* Another processor is waking it already. */
	state = READ_ONCE(current->__state);
	if (!state || state == STATE_WAKING)
		return 0;
	pace_unready(of, task, PACE_END_IDLE, now);
	return 0;
}

__noinline int pace_switched_in(u32 slot, u64 now)
{
	struct pace_cpu *at = pace_cpu_at(bpf_get_smp_processor_id());
	struct pace_thread *of = pace_of(slot);
	struct pace_task *task;

	if (!(config.enabled & PACE))
		return 0;
	task = pace_live(of);
	if (!task) {
		of->task = 0;
		return 0;
	}
	pace_start_counting(at, slot, now);
	of->charged_ns = now;
	at->slot = slot;
	/* Its waking may have been missed. */
	pace_ready(of, task);
	if (unlikely(task->domain))
		pace_run_paced(task->entry, now);
	return 0;
}

/* The call in which a thread is: its index plus 1; 0: none. */
static __always_inline u32 pace_in_call(struct thread_state *thread)
{
	return thread->in_call >= IN_CALL ? thread->call + 1 : 0;
}

static __always_inline void pace_switch_out(struct switching *at)
{
	struct pace_thread *of = pace_of(at->thread->slot);

	/* The kernel may not report its waking (docs/decisions/0001-gate.md). */
	if (at->state)
		of->slept_in = pace_in_call(at->thread);
	if (unlikely(of->task))
		pace_switched_out(at->thread->slot, !!at->state, switch_ns(at));
}

static __always_inline void pace_switch_in(struct switching *at)
{
	struct pace_cpu *cpu = pace_cpu_at(bpf_get_smp_processor_id());

	if (unlikely(!cpu->queue))
		cpu->queue = (u64)at->task->se.cfs_rq->rq;
	if (unlikely(pace_of(at->thread->slot)->task)) {
		/* The scheduler has just updated its clock. */
		at->cpu->clock_offset = switch_ns(at) - at->task->se.cfs_rq->rq->clock;
		pace_switched_in(at->thread->slot, switch_ns(at));
	}
}

/* The thread works on the task of the thread that has created it. */
static __always_inline void pace_fork(struct thread_state *thread, struct thread_state *parent)
{
	struct pace_thread *of = pace_of(thread->slot), *from = pace_of(parent->slot);
	struct pace_task *task = pace_live(from);

	if (!task)
		return;
	of->left_ns = bpf_ktime_get_ns();
	of->task = from->task;
	of->number = from->number;
	pace_ready(of, task);
}

static __always_inline void pace_task_exit(struct thread_state *thread)
{
	if (pace_of(thread->slot)->task)
		pace_leave_task(thread->slot, PACE_END_EXIT);
}

/*
 * Whether the thread that runs here may let another one work on a task that a program has begun: a
 * user must not decide the speed of other users' threads.
 */
static __always_inline bool pace_may_share(struct task_struct *woken)
{
	u32 user = bpf_get_current_uid_gid();

	return !user || BPF_CORE_READ(woken, cred, uid.val) == user;
}

/*
 * A thread is woken. If it works on no task, it joins the task of its waker: the thread that runs
 * here, if it is in a call. Outside of a call, an interrupt has woken the thread.
 */
static __always_inline void pace_waking(struct thread_state *thread)
{
	struct pace_thread *of = pace_of(thread->slot), *from;
	struct pace_task *task = pace_live(of);
	struct task_struct *woken = (void *)thread->task;
	struct thread_state *waker;
	u32 slot;

	of->woken_ns = bpf_ktime_get_ns();
	of->woken_in = pace_in_call(thread);
	if (task) {
		pace_ready(of, task);
		return;
	}
	slot = this_cpu()->slot;
	waker = thread_at(slot);
	if (!slot || !has(waker, PACE) || waker->in_call < IN_CALL)
		return;
	from = pace_of(slot);
	if (from->session != of->session || !from->task || pace_is_exempt(thread->slot))
		return;
	task = pace_live(from);
	if (!task || (task->id && !pace_may_share(woken)))
		return;
	of->left_ns = of->woken_ns;
	/* It may still run, if it was about to fall asleep. */
	of->charged_ns = 0;
	if (BPF_CORE_READ(woken, on_cpu)) {
		pace_stop_counting(pace_cpu_at(BPF_CORE_READ(woken, thread_info.cpu)));
		of->charged_ns = of->woken_ns;
	}
	of->number = from->number;
	WRITE_ONCE(of->task, from->task);
	of->is_ready = 0;
	pace_ready(of, task);
}

#endif
