/* SPDX-License-Identifier: GPL-2.0 */
/* Pace: the tables of tasks, threads and rules, and how a thread's work is charged. */
#ifndef TOLLGATE_PACE_STATE_BPF_H
#define TOLLGATE_PACE_STATE_BPF_H

#include "gate/events.bpf.h"
#include "gate/names.bpf.h"
#include "wire/pace.h"

/* A speed of 1 GHz is a cycle in each ns. */
#define KHZ_PER_GHZ 1000000
/* The maximum number of nested tasks of a thread to which its work is charged. */
#define PACE_NESTED 4

struct pace_task pace_tasks[PACE_TASKS] SEC(".bss.pace_tasks");
struct pace_thread pace_threads[THREADS] SEC(".bss.pace_thr");
struct pace_rules pace_rules[SESSIONS] SEC(".bss.pace_rules");
/* User space writes it. */
struct pace_speeds pace_speeds SEC(".bss.pace_khz");
/*
 * The lowest entry of pace_tasks that has never been used. Freed ones are in a queue. User space
 * sets it to 1 before the first task.
 */
u32 pace_next_task SEC(".bss.pace_next") = 0;

FREE_LIST(pace_free_tasks, PACE_TASKS);

static __always_inline struct pace_thread *pace_of(u32 slot)
{
	return &pace_threads[slot & (THREADS - 1)];
}

static __always_inline struct pace_task *pace_task_at(u32 task)
{
	return &pace_tasks[task & (PACE_TASKS - 1)];
}

/* The task that a thread works on; NULL: none, or the task has ended. */
static __always_inline struct pace_task *pace_live(struct pace_thread *of)
{
	struct pace_task *task = pace_task_at(of->task);

	if (!of->task || task->number != of->number || task->state != PACE_LIVE)
		return NULL;
	return task;
}

/* The task during which this one was begun; NULL: there is none, or it has ended. */
static __always_inline struct pace_task *pace_outer(struct pace_task *task)
{
	struct pace_task *outer = pace_task_at(task->outer);

	if (!task->outer || outer->number != task->outer_number || outer->state != PACE_LIVE)
		return NULL;
	return outer;
}

/*
 * Charges a running thread's time since the last charge to its task, and to the tasks around that
 * one.
 */
static __always_inline void pace_charge(struct pace_thread *of, struct pace_task *task, u64 now)
{
	u64 since = of->charged_ns, ns = now - since, cycles;
	u32 i;

	of->charged_ns = now;
	/* It joined the task while it was running, or its switch in was not reported. */
	if (!since || (s64)ns <= 0)
		return;
	/* A second at 5 GHz is 5 * 10^15 before the division. */
	cycles = ns * pace_speeds.khz[bpf_get_smp_processor_id() & (CPUS - 1)] / KHZ_PER_GHZ;
	for (i = 0; i < PACE_NESTED && task; i++) {
		__sync_fetch_and_add(&task->cpu_ns, ns);
		__sync_fetch_and_add(&task->cycles, cycles);
		task = pace_outer(task);
	}
}

#endif
