/* SPDX-License-Identifier: GPL-2.0 */
/* Services at the hooks of the gate. */
#ifndef TOLLGATE_SERVICE_HOOKS_BPF_H
#define TOLLGATE_SERVICE_HOOKS_BPF_H

#include "gate/calls.bpf.h"
#include "gate/events.bpf.h"
#include "service/poll.bpf.h"
#include "service/signals.bpf.h"

static __always_inline void service_reset_member(struct service_member *member)
{
	u32 receives = member->receives, epoch = member->epoch;

	__builtin_memset(member, 0, sizeof(*member));
	/*
	 * The numbers change, so that records about the slot's previous thread do not apply to this
	 * one.
	 */
	member->receives = receives + 1;
	member->epoch = epoch + 1;
	member->charged_ns = bpf_ktime_get_ns();
	member->bound_ns = member->charged_ns;
	member->ruleset = header.ruleset;
}

/*
 * The second part of service_attach(), which has just read the counters. This is a global function,
 * so that the verifier checks it once.
 */
__noinline int service_attach_classify(u32 slot)
{
	struct thread_state *thread = thread_at(slot);
	struct service_member *member = member_of(thread);
	struct task_struct *task = (void *)thread->task;

	if (!(config.enabled & SERVICE))
		return 0;
	member->why = WHY_ATTACHED;
	member->has_io_uring = !!BPF_CORE_READ(task, io_uring);
	service_read_identity(member, task);
	/* The thread has used nothing since its counters were read. */
	member->is_new = 1;
	service_classify_task(thread, task, EVENT_ATTACH, SERVICE_NONE, false);
	member->is_new = 0;
	return 0;
}

/* Attaches a thread that already runs. */
static __always_inline void service_attach(struct thread_state *thread, struct task_struct *task)
{
	struct service_member *member = member_of(thread);

	service_reset_member(member);
	read_counters(&member->charged_at, task);
	service_attach_classify(thread->slot);
}

/*
 * Gives a new thread the binding of its parent. The parent runs here. `parent` is its slot, or 0 if
 * it is no member. The kernel has counted nothing for the new thread yet. This and other functions
 * below are global, so that the verifier checks each once and not on every path to it.
 */
__noinline int service_fork_slot(u32 slot, u32 parent)
{
	struct thread_state *thread = thread_at(slot);
	/* The parent is read, because the new thread still has the same program and user. */
	struct task_struct *task = bpf_get_current_task_btf();
	struct service_member *member = member_of(thread), *before;

	if (!(config.enabled & SERVICE))
		return 0;
	service_reset_member(member);
	member->is_new = 1;
	if (!parent) {
		member->why = WHY_ATTACHED;
		service_read_identity(member, task);
		service_classify(thread->slot, EVENT_ATTACH, SERVICE_NONE, false);
		member->is_new = 0;
		return 0;
	}
	before = &members[parent & (THREADS - 1)];
	member->in_cgroup_of = before->in_cgroup_of;
	member->service = before->service;
	member->binding = before->binding;
	member->why = WHY_FORKED;
	member->rule_number = before->rule_number;
	member->ruleset = before->ruleset;
	member->user = before->user;
	member->exe = before->exe;
	member->unit = before->unit;
	if (thread->tgid == thread_at(parent)->tgid)
		member->has_io_uring = before->has_io_uring;
	if (rulesets[header.ruleset & 1].tuple_count[EVENT_FORK])
		service_classify(thread->slot, EVENT_FORK, fork_requester(before), false);
	member->is_new = 0;
	migrate_on_fork(thread, member);
	return 0;
}

/* While there are services, every new gated thread is a member of one. */
static __always_inline void service_fork(struct thread_state *thread, struct thread_state *parent)
{
	if (!(config.enabled & SERVICE) || !READ_ONCE(header.services_session))
		return;
	service_fork_slot(thread->slot, parent && has(parent, SERVICE) ? parent->slot : 0);
	thread->mask |= SERVICE;
}

/* The thread that runs here has executed a program. */
__noinline int service_exec_slot(u32 slot)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread = thread_at(slot);

	if (!(config.enabled & SERVICE))
		return 0;
	member_of(thread)->has_io_uring = 0;
	service_read_identity(member_of(thread), task);
	service_classify(slot, EVENT_EXEC, SERVICE_NONE, true);
	return 0;
}

static __always_inline void service_exec(struct thread_state *thread)
{
	service_exec_slot(thread->slot);
}

static __always_inline void service_sys_enter(struct crossing *at)
{
	struct service_member *member = member_of(at->thread);
	u32 flags = call_flags(at->call);

	member->calls++;
	member->descriptor = descriptor_of(at->call, flags, at->regs);
	/* It may use a ring that another thread has set up. */
	if (unlikely(flags & CALL_IO_URING))
		member->has_io_uring = 1;
	if (unlikely(member->message || call_flags(at->previous_call) & CALL_SETS_USER))
		service_poll(at->thread->slot, true);
}

/*
 * The thread is switched out. It may make its next call much later, so a message to it is handled
 * here, too. A switch to a bystander does not make a service contended: kernel threads and the
 * daemon's own threads are bystanders.
 */
static __always_inline void service_switch_out(struct switching *at)
{
	struct thread_state *thread = at->thread;
	struct service_member *member = member_of(thread);

	if (unlikely(member->message))
		service_poll(thread->slot, false);
	if (unlikely(cgroup_service_of(member->service) || member->in_cgroup_of))
		migrate_on_switch_out(at, member);
}

/* The thread is switched in. */
static __always_inline void service_switch_in(struct switching *at)
{
	struct service_member *member = member_of(at->thread);
	struct task_struct *task = at->task;

	if (member->tracks_switch_in) {
		member->switched_in_cpu_ns = task->se.sum_exec_runtime;
		member->switched_in_switches = task->nvcsw + task->nivcsw;
		member->switched_in_ns = switch_ns(at);
	}
	if (unlikely(member->in_cgroup_of))
		WRITE_ONCE(member->slept_ns, 0);
}

/* The thread makes no more calls. What it still uses is charged when the kernel frees the task. */
static __noinline void service_task_exit(struct thread_state *thread, struct task_struct *task)
{
	member_of(thread)->version++;
	service_charge(thread, task, bpf_ktime_get_ns(), true);
	member_of(thread)->tracks_switch_in = 0;
	member_of(thread)->switched_in_ns = 0;
	member_of(thread)->is_exiting = 1;
	member_of(thread)->version++;
}

/* The kernel frees the task: nothing is counted for it any more. */
static __always_inline void service_task_free(struct thread_state *thread, struct task_struct *task)
{
	/* The time until the parent has waited for the ended task is not charged. */
	member_of(thread)->charged_ns = bpf_ktime_get_ns();
	service_charge(thread, task, member_of(thread)->charged_ns, false);
}

#endif
