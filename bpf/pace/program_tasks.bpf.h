/* SPDX-License-Identifier: GPL-2.0 */
/* Tasks that programs begin and end themselves, by calls of getppid (wire/pace.h). */
#ifndef TOLLGATE_PACE_PROGRAM_TASKS_BPF_H
#define TOLLGATE_PACE_PROGRAM_TASKS_BPF_H

#include "pace/tasks.bpf.h"

/*
 * The process's unfinished task with this ID, and its number. Usually it is the task of the current
 * thread or one around it.
 */
static __always_inline struct pace_task *pace_find(struct thread_state *thread,
						   struct pace_thread *of, u64 id, u32 *number)
{
	struct pace_task *task = pace_live(of);
	u64 found;
	u32 i;

	*number = of->number;
	for (i = 0; i < PACE_NESTED && task; i++) {
		if (task->id == id && task->tgid == thread->tgid)
			return task;
		*number = task->outer_number;
		task = pace_outer(task);
	}
	found = pace_find_in_index(thread->slot, id);
	*number = found >> PACE_NUMBER_SHIFT;
	return found ? pace_task_at(found) : NULL;
}

static __always_inline void pace_begin_by_program(struct thread_state *thread,
						  struct pace_thread *of, u64 id, u64 type, u64 now)
{
	struct pace_task *outer = pace_live(of), *task;
	u32 outer_entry = of->task, outer_number = of->number, entry, index_slot;
	struct pace_rules *rules = pace_rules_of(of->session);

	/* A type of 0 stands for an inferred task. */
	if (!id || !type)
		return;
	/* A task of the program is not nested in an inferred one. */
	if (outer && !outer->id) {
		pace_replace(of, outer, thread->slot, now);
		outer = NULL;
	}
	if (outer)
		pace_charge(thread->slot, outer, now);
	entry = pace_take_latest(thread->tgid, id);
	index_slot = entry ? pace_task_at(entry)->index_slot : 0;
	task = pace_new(thread, entry ? entry : pace_take_entry(), index_slot, now);
	if (!task)
		return;
	task->id = id;
	task->type = type;
	/* Other processors read this cache line, so it is written once. */
	if (unlikely(!rules->has_own_tasks))
		rules->has_own_tasks = 1;
	if (outer) {
		task->outer = outer_entry;
		task->outer_number = outer_number;
	}
	if (!index_slot)
		pace_add_to_index(task->entry);
	pace_begin(thread, task, now);
}

static __always_inline void pace_end_by_program(struct thread_state *thread,
						struct pace_thread *of, u64 id, u64 now)
{
	struct pace_task *own = pace_live(of), *task, *outer = NULL;
	struct pace_work work = {};
	u32 number = 0;

	task = id ? pace_find(thread, of, id, &number) : NULL;
	if (task)
		outer = pace_outer(task);
	if (own)
		work = pace_take_work(thread->slot, now);
	/* The task that ends needs no charge, because its record has the work. */
	if (own && (task != own || outer)) {
		pace_add_work(own, work);
		__builtin_memset(&work, 0, sizeof(work));
	}
	if (!task)
		return;
	pace_end_with(task, number, PACE_END_PROGRAM, now, work, task->ready > (task == own));
	if (task != own)
		return;
	/* The thread continues the task around this one. */
	of->task = outer ? task->outer : 0;
	of->number = outer ? task->outer_number : 0;
	if (!outer)
		pace_cpu_at(bpf_get_smp_processor_id())->slot = 0;
}

static __always_inline void pace_name_type(struct thread_state *thread, u64 type, u64 address)
{
	struct pace_thread *of = pace_of(thread->slot);
	struct pace_type_record *record =
		reserve_record(of->session, sizeof(*record), LOSS_PACE_TYPE_NAMES);

	if (!record)
		return;
	__builtin_memset(record, 0, sizeof(*record));
	record->type = RECORD_PACE_TYPE;
	record->pid = thread->visible_pid;
	record->type_id = type;
	__builtin_memcpy(record->program, of->program, sizeof(record->program));
	bpf_probe_read_user_str(record->name, sizeof(record->name), (void *)address);
	bpf_ringbuf_submit(record, 0);
}

struct pace_search_user {
	u32 session;
	u32 uid;
	u32 found;
};

static long pace_compare_user(u32 i, struct pace_search_user *search)
{
	struct pace_rules *rules = pace_rules_of(search->session);

	search->found = rules->user[i & (PACE_USERS - 1)] == search->uid;
	return search->found;
}

/* Whether the current user may request operations on tasks in a session. */
static __always_inline bool pace_may_request(u32 session)
{
	struct pace_rules *rules = pace_rules_of(session);
	struct pace_search_user search = { .session = session };

	if (likely(!rules->has_users))
		return true;
	search.uid = bpf_get_current_uid_gid();
	if (!search.uid)
		return true;
	bpf_loop(rules->users, pace_compare_user, &search, 0);
	return search.found;
}

/*
 * The current thread requests an operation on a task. This is a global function, so that the
 * verifier checks it once.
 */
__noinline int pace_request(u32 slot, u64 operation, u64 a, u64 b, u64 c)
{
	struct thread_state *thread = thread_at(slot);
	struct pace_thread *of = pace_of(slot);
	struct pace_task *task;
	u32 number;
	u64 now;

	if (!(config.enabled & PACE) || pace_is_exempt(slot))
		return 0;
	if (!pace_may_request(of->session)) {
		count_loss(of->session, LOSS_PACE_DENIED);
		return 0;
	}
	now = bpf_ktime_get_ns();
	switch (operation) {
	case PACE_BEGIN:
		pace_begin_by_program(thread, of, b, a, now);
		break;
	case PACE_END:
		pace_end_by_program(thread, of, a, now);
		break;
	case PACE_END_AND_BEGIN:
		pace_end_by_program(thread, of, a, now);
		pace_begin_by_program(thread, of, b, c, now);
		break;
	case PACE_SET_DEADLINE:
		task = a ? pace_find(thread, of, a, &number) : NULL;
		if (!task)
			break;
		/* 0 stands for the deadline of the type. */
		task->deadline_ns = b ? b : 1;
		if (task->domain)
			pace_evaluate(task->domain - 1, now);
		break;
	case PACE_NAME_TYPE:
		pace_name_type(thread, a, b);
		break;
	}
	return 0;
}

#endif
