/* SPDX-License-Identifier: GPL-2.0 */
/* How tasks begin and end, and how threads join and leave them. */
#ifndef TOLLGATE_PACE_TASKS_BPF_H
#define TOLLGATE_PACE_TASKS_BPF_H

#include "pace/ended_tasks.bpf.h"
#include "pace/paced_tasks.bpf.h"
#include "pace/task_index.bpf.h"

/*
 * Takes a free entry for a task; 0: the table is full. The hooks that take and add entries run with
 * preemption disabled, and none of them in an interrupt.
 */
static __always_inline u32 pace_take_entry(void)
{
	struct pace_cpu *at = pace_cpu_at(bpf_get_smp_processor_id());
	u32 kept = at->added - at->taken, entry = 0;

	if (kept <= PACE_KEPT / 2)
		entry = alloc_index(&pace_control.next_task, PACE_TASKS, pace_free_tasks);
	if (!entry && kept)
		entry = at->kept[at->taken++ & (PACE_KEPT - 1)];
	if (!entry && at->latest) {
		entry = at->latest;
		at->latest = 0;
		pace_remove_from_index(pace_task_at(entry));
	}
	return entry;
}

/*
 * Takes the entry of the task that ended here last, if its slot in the index is also right for the
 * process's task with this ID; 0: it is not.
 */
static __always_inline u32 pace_take_latest(u32 tgid, u64 id)
{
	struct pace_cpu *at = pace_cpu_at(bpf_get_smp_processor_id());
	u32 entry = at->latest, index_slot = pace_task_at(entry)->index_slot - 1;

	if (!entry || index_slot / PACE_WAYS != pace_bucket_start(tgid, id) / PACE_WAYS)
		return 0;
	at->latest = 0;
	return entry;
}

static __always_inline void pace_free_entry(u32 entry)
{
	struct pace_cpu *at = pace_cpu_at(bpf_get_smp_processor_id());

	if (at->added - at->taken < PACE_KEPT)
		at->kept[at->added++ & (PACE_KEPT - 1)] = entry;
	else
		bpf_map_push_elem(&pace_free_tasks, &entry, BPF_ANY);
}

/*
 * Keeps the entry of a task that a program has ended, for its next task. The entry of the task
 * before that becomes free. An entry without a slot in the index is not kept.
 */
static __always_inline void pace_keep_latest(struct pace_task *task)
{
	struct pace_cpu *at = pace_cpu_at(bpf_get_smp_processor_id());
	u32 freed = task->entry;

	if (likely(task->index_slot != PACE_UNINDEXED)) {
		freed = at->latest;
		at->latest = task->entry;
	}
	if (!freed)
		return;
	pace_remove_from_index(pace_task_at(freed));
	pace_free_entry(freed);
}

/*
 * Ends the task with this number, which at most one caller does, and reports it. `work` is work of
 * the caller that is not charged to the task. `others_run`: threads on other processors may be
 * working on it.
 */
static __always_inline void pace_end_with(struct pace_task *task, u32 number, u32 how, u64 now,
					  struct pace_work work, bool others_run)
{
	u64 life = pace_life(number, PACE_LIVE);

	if (__sync_val_compare_and_swap(&task->life, life, pace_life(number, PACE_ENDED)) != life)
		return;
	pace_record_end(task, number, how, now, work, others_run);
	pace_end_pacing(task, now);
	WRITE_ONCE(task->life, pace_life(number, PACE_FREE));
	if (task->index_slot)
		pace_keep_latest(task);
	else
		pace_free_entry(task->entry);
}

static __always_inline void pace_end(struct pace_task *task, u32 number, u32 how, u64 now,
				     bool others_run)
{
	struct pace_work none = {};

	pace_end_with(task, number, how, now, none, others_run);
}

struct pace_search_exempt {
	u32 slot;
	u32 found;
};

static long pace_compare_exempt(u32 i, struct pace_search_exempt *search)
{
	struct pace_rules *rules = pace_rules_of(pace_of(search->slot)->session);

	search->found = pace_is_same_program(rules->exempt[i & (PACE_EXEMPT - 1)],
					     pace_of(search->slot)->program);
	return search->found;
}

/*
 * Finds the file name of a thread's executable, and whether it is exempt. This is a global
 * function, so that the verifier checks it once.
 */
__noinline int pace_find_program(u32 slot)
{
	struct thread_state *thread = thread_at(slot);
	struct task_struct *task = (struct task_struct *)thread->task;
	struct pace_search_exempt search = { .slot = slot };
	struct pace_thread *of = pace_of(slot);
	const unsigned char *name;

	if (!(config.enabled & PACE))
		return 0;
	__builtin_memset(of->program, 0, sizeof(of->program));
	name = BPF_CORE_READ(task, mm, exe_file, f_path.dentry, d_name.name);
	bpf_probe_read_kernel_str(of->program, sizeof(of->program), name);
	bpf_loop(pace_rules_of(of->session)->exempt_programs, pace_compare_exempt, &search, 0);
	of->is_exempt = search.found;
	of->is_known = 1;
	return 0;
}

/*
 * Whether a thread works on no task, because its program is exempt. From the first call on, its
 * program is known.
 */
static __always_inline bool pace_is_exempt(u32 slot)
{
	struct pace_thread *of = pace_of(slot);

	if (unlikely(!of->is_known))
		pace_find_program(slot);
	return of->is_exempt;
}

/*
 * A new task of a thread, which runs here, and whose program is known. It has this entry, and this
 * slot in the index; 0: none. NULL: the entry is 0, because the table is full.
 */
static __always_inline struct pace_task *pace_new(struct thread_state *thread, u32 entry,
						  u32 index_slot, u64 now)
{
	struct pace_cpu *at = pace_cpu_at(bpf_get_smp_processor_id());
	struct pace_thread *of = pace_of(thread->slot);
	struct pace_task *task;
	u32 number;

	if (!entry) {
		count_loss(of->session, LOSS_PACE_TASKS_FULL);
		return NULL;
	}
	task = pace_task_at(entry);
	number = pace_number(task) + 1;
	WRITE_ONCE(task->life, pace_life(number, PACE_FREE));
	__builtin_memset(&task->begin_ns, 0, sizeof(*task) - sizeof(task->life));
	task->index_slot = index_slot;
	task->entry = entry;
	task->beginner = thread->slot;
	task->begin_ns = now;
	task->tgid = thread->tgid;
	task->session = of->session;
	task->visible_pid = thread->visible_pid;
	__builtin_memcpy(task->program, of->program, sizeof(task->program));
	task->ready = 1;
	of->task = entry;
	of->number = number;
	of->is_ready = 1;
	pace_start_counting(at, thread->slot, now);
	of->charged_ns = now;
	at->slot = thread->slot;
	return task;
}

/* Begins a new task, whose fields are set. */
static __always_inline void pace_begin(struct thread_state *thread, struct pace_task *task, u64 now)
{
	u32 entry = task->entry;
	bool paced = is_paced(thread);

	/* From PACE_LIVE on, another thread may end the task. */
	if (paced)
		pace_prepare_pacing(entry);
	WRITE_ONCE(task->life, pace_life(pace_number(task), PACE_LIVE));
	if (paced)
		pace_run_paced(entry, now);
}

/* A thread of the task is ready to run. A waker on another processor may notice it as well. */
static __always_inline void pace_ready(struct pace_thread *of, struct pace_task *task)
{
	if (__sync_lock_test_and_set(&of->is_ready, 1))
		return;
	__sync_fetch_and_add(&task->ready, 1);
	/* The task has ended meanwhile, and its entry has another one. */
	if (unlikely(pace_number(task) != of->number))
		__sync_fetch_and_add(&task->ready, -1);
}

/*
 * A thread of the task sleeps or has left it. If it was the last ready one, an inferred task ends.
 * A task that the program has begun ends only by the program. If the program ends first, user space
 * removes the task.
 */
static __always_inline void pace_unready(struct pace_thread *of, struct pace_task *task, u32 how,
					 u64 now)
{
	if (!__sync_lock_test_and_set(&of->is_ready, 0))
		return;
	if (__sync_fetch_and_add(&task->ready, -1) == 1 && !task->id)
		pace_end(task, of->number, how, now, false);
	if (unlikely(pace_number(task) != of->number))
		__sync_fetch_and_add(&task->ready, 1);
}

/*
 * The thread begins another task. Its present one ends, if the thread has begun that itself;
 * otherwise its other threads continue.
 */
static __always_inline void pace_replace(struct pace_thread *of, struct pace_task *task, u32 slot,
					 u64 now)
{
	pace_charge(slot, task, now);
	if (task->beginner == slot)
		pace_end(task, of->number, PACE_END_NEXT, now, task->ready > 1);
	else
		pace_unready(of, task, PACE_END_NEXT, now);
}

/* The thread leaves its task, of which other threads may continue. */
static __always_inline void pace_leave(u32 slot, u32 how, u64 now)
{
	struct pace_thread *of = pace_of(slot);
	struct pace_task *task = pace_live(of);

	if (task) {
		pace_charge(slot, task, now);
		pace_unready(of, task, how, now);
	}
	of->task = 0;
}

#endif
