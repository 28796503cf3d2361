/* SPDX-License-Identifier: GPL-2.0 */
/* Pace: the tables of tasks, threads and rules, and how a thread's work is charged. */
#ifndef TOLLGATE_PACE_STATE_BPF_H
#define TOLLGATE_PACE_STATE_BPF_H

#include "gate/events.bpf.h"
#include "gate/names.bpf.h"
#include "wire/pace.h"

/* A speed of 1 GHz is a cycle in each ns. */
#define KHZ_PER_GHZ 1000000
/*
 * The maximum number of nested tasks of a thread to which its work is charged. It limits the time
 * of a switch.
 */
#define PACE_NESTED 4

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

/* Work of a thread that is not charged to its task yet. */
struct pace_work {
	u64 ns;
	u64 cycles;
	u64 energy_pj;
};

/*
 * Since when a thread with a task runs on a processor, if its switch in was not reported
 * (docs/decisions/0001-gate.md); 0: it is not known, or the thread does not run. While it is being
 * switched, the scheduler's time may be that of its stretch before, which is charged already.
 */
static __always_inline u64 pace_unreported_since(u32 slot, struct cpu_state *cpu)
{
	struct task_struct *task = (void *)thread_at(slot)->task;
	u64 arrived = BPF_CORE_READ(task, sched_info.last_arrival) + cpu->clock_offset;

	return cpu->clock_offset && arrived > READ_ONCE(pace_of(slot)->left_ns) ? arrived : 0;
}

/* The work of a thread on a processor from `since` to `now`. `since` is 0 if it is not known. */
static __always_inline struct pace_work pace_work(struct pace_cpu *at, u64 since, u64 now)
{
	struct pace_work work = {};

	if (!since || (s64)(now - since) <= 0)
		return work;
	work.ns = now - since;
	work.cycles = work.ns * at->cycles_per_ns >> PACE_CYCLES_SHIFT;
	/* A nanosecond at a milliwatt is a picojoule. */
	work.energy_pj = work.ns * at->milliwatts;
	return work;
}

/* Charges work to a task, and to the tasks around it. */
static __always_inline void pace_add_work(struct pace_task *task, struct pace_work work)
{
	u32 i;

	if (!work.ns)
		return;
	for (i = 0; i < PACE_NESTED && task; i++) {
		__sync_fetch_and_add(&task->cpu_ns, work.ns);
		__sync_fetch_and_add(&task->cycles, work.cycles);
		if (work.energy_pj)
			__sync_fetch_and_add(&task->energy_pj, work.energy_pj);
		task = pace_outer(task);
	}
}

/*
 * The work of the thread that runs here since its last charge. The caller charges it. Another
 * processor may charge the thread as well if it reports a change of the speed, or if the timer of a
 * paced task expires there. Then the exchange decides who charges a stretch of time.
 */
static __always_inline struct pace_work pace_take_work(u32 slot, u64 now)
{
	struct pace_thread *of = pace_of(slot);
	struct pace_cpu *at = pace_cpu_at(bpf_get_smp_processor_id());
	u64 since;

	if (unlikely(at->is_reported || READ_ONCE(pace_control.session))) {
		since = __sync_lock_test_and_set(&of->charged_ns, now);
	} else {
		since = READ_ONCE(of->charged_ns);
		WRITE_ONCE(of->charged_ns, now);
	}
	if (unlikely(!since) && thread_at(slot)->task == (u64)bpf_get_current_task_btf())
		since = pace_unreported_since(slot, this_cpu());
	return pace_work(at, since, now);
}

/* Charges the time of the thread that runs here since the last charge. */
static __always_inline void pace_charge(u32 slot, struct pace_task *task, u64 now)
{
	pace_add_work(task, pace_take_work(slot, now));
}

/* The same for the thread that runs on a processor, which need not be this one. */
static __always_inline void pace_charge_at(struct pace_cpu *at, struct pace_thread *of,
					   struct pace_task *task, u64 now)
{
	u64 since = READ_ONCE(of->charged_ns);

	if (since && __sync_val_compare_and_swap(&of->charged_ns, since, now) == since)
		pace_add_work(task, pace_work(at, since, now));
}

#endif
