/* SPDX-License-Identifier: GPL-2.0 */
/* Pace: the tables of tasks, threads and rules. */
#ifndef TOLLGATE_PACE_STATE_BPF_H
#define TOLLGATE_PACE_STATE_BPF_H

#include "gate/events.bpf.h"
#include "gate/names.bpf.h"
#include "wire/pace.h"

/* A speed of 1 GHz is a cycle in each ns. */
#define KHZ_PER_GHZ 1000000

struct pace_task pace_tasks[PACE_TASKS] SEC(".bss.pace_tasks");
/* User space maps it, and entries of mapped arrays have eight bytes. */
u64 pace_index[PACE_INDEX] SEC(".bss.pace_index");
struct pace_thread pace_threads[THREADS] SEC(".bss.pace_thr");
struct pace_rules pace_rules[SESSIONS] SEC(".bss.pace_rules");
struct pace_cpu pace_cpus[CPUS] SEC(".bss.pace_cpus");
struct pace_domain pace_domains[CPUS] SEC(".bss.pace_dom");
struct pace_schedule pace_schedules[PACE_SCHEDULES] SEC(".bss.pace_sched");
struct pace_control pace_control SEC(".bss.pace_ctl");

FREE_LIST(pace_free_tasks, PACE_TASKS);

static __always_inline struct pace_thread *pace_of(u32 slot)
{
	return &pace_threads[slot & (THREADS - 1)];
}

/* The rules of a session. */
static __always_inline struct pace_rules *pace_rules_of(u32 session)
{
	return &pace_rules[session & (SESSIONS - 1)];
}

/* Whether two file names of executables are the same, as far as they are kept. */
static __always_inline bool pace_is_same_program(const char *one, const char *other)
{
	const u64 *a = (const u64 *)one, *b = (const u64 *)other;

	return a[0] == b[0] && a[1] == b[1];
}

static __always_inline struct pace_task *pace_task_at(u32 task)
{
	return &pace_tasks[task & (PACE_TASKS - 1)];
}

/* The word that has a task's number and its state. */
static __always_inline u64 pace_life(u32 number, enum pace_task_state state)
{
	return (u64)number << PACE_NUMBER_SHIFT | state;
}

static __always_inline u32 pace_number(struct pace_task *task)
{
	return READ_ONCE(task->life) >> PACE_NUMBER_SHIFT;
}

/* The unfinished task with this number in an entry; NULL: there is none, or it has ended. */
static __always_inline struct pace_task *pace_unfinished(u32 entry, u32 number)
{
	struct pace_task *task = pace_task_at(entry);

	if (!entry || READ_ONCE(task->life) != pace_life(number, PACE_LIVE))
		return NULL;
	return task;
}

/* The task that a thread works on; NULL: none, or the task has ended. */
static __always_inline struct pace_task *pace_live(struct pace_thread *of)
{
	return pace_unfinished(of->task, of->number);
}

/* The task during which this one was begun; NULL: there is none, or it has ended. */
static __always_inline struct pace_task *pace_outer(struct pace_task *task)
{
	return pace_unfinished(task->outer, task->outer_number);
}

static __always_inline struct pace_cpu *pace_cpu_at(u32 cpu)
{
	return &pace_cpus[cpu & (CPUS - 1)];
}

/* The task that runs on a processor; NULL: there is none. */
static __always_inline struct pace_task *pace_running(struct pace_cpu *at)
{
	u32 slot = READ_ONCE(at->slot);

	return slot ? pace_live(pace_of(slot)) : NULL;
}

#endif
