/* SPDX-License-Identifier: GPL-2.0 */
/* How the tasks of a paced session enter and leave frequency domains. */
#ifndef TOLLGATE_PACE_PACED_TASKS_BPF_H
#define TOLLGATE_PACE_PACED_TASKS_BPF_H

#include "pace/reported_speed.bpf.h"

HASH_MAP(pace_types, PACE_SCHEDULES, struct pace_type_key, u32);

/* Whether the thread's tasks decide the speeds. */
static __always_inline bool is_paced(struct thread_state *thread)
{
	u32 session = READ_ONCE(pace_control.session);

	return unlikely(session) && pace_of(thread->slot)->session == session;
}

/*
 * A task that is paced is about to begin on this processor. This and the next one are global
 * functions, so that the verifier checks each once.
 */
__noinline int pace_prepare_pacing(u32 entry)
{
	struct pace_task *task = pace_task_at(entry);
	struct pace_type_key key = {};
	u32 domain, *schedule;

	if (!(config.enabled & PACE))
		return 0;
	pace_make_timers();
	key.type = task->type;
	key.detail = task->detail;
	key.rule = task->rule;
	key.descriptor = task->descriptor;
	__builtin_memcpy(key.program, task->program, sizeof(key.program));
	schedule = bpf_map_lookup_elem(&pace_types, &key);
	task->schedule = schedule ? *schedule : 0;
	domain = pace_cpu_at(bpf_get_smp_processor_id())->domain;
	task->domain = domain + 1;
	pace_enter_domain(task, domain);
	return 0;
}

/* A thread of a paced task runs here. The speed follows the task to another domain. */
__noinline int pace_run_paced(u32 entry, u64 now)
{
	u32 cpu = bpf_get_smp_processor_id(), domain, before;
	struct pace_task *task = pace_task_at(entry);
	struct pace_domain *of;

	if (!(config.enabled & PACE))
		return 0;
	domain = pace_cpu_at(cpu)->domain;
	of = pace_domain_at(domain);
	before = READ_ONCE(task->domain);
	if (before && before != domain + 1 &&
	    __sync_val_compare_and_swap(&task->domain, before, domain + 1) == before) {
		pace_enter_domain(task, domain);
		pace_leave_domain(before - 1, now);
	}
	/*
	 * The timer has found no running thread of the task, and has taken that for other work.
	 * Now the queue of the only processor has no other thread.
	 */
	if (of->has_others && of->cpus == 1 && pace_cpu_at(cpu)->queue &&
	    READ_FIELD(struct rq, pace_cpu_at(cpu)->queue, nr_running) == 1) {
		of->has_others = 0;
		of->saw_others = 0;
	}
	pace_evaluate(domain, now);
	pace_arm(cpu, task, now);
	return 0;
}

/* A task has ended. */
static __always_inline void pace_end_pacing(struct pace_task *task, u64 now)
{
	u32 domain;

	if (likely(!READ_ONCE(task->domain)))
		return;
	domain = __sync_lock_test_and_set(&task->domain, 0);
	if (domain)
		pace_leave_domain(domain - 1, now);
}

#endif
