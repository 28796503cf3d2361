/* SPDX-License-Identifier: GPL-2.0 */
/* Finds the tasks that programs have begun by their IDs. */
#ifndef TOLLGATE_PACE_TASK_INDEX_BPF_H
#define TOLLGATE_PACE_TASK_INDEX_BPF_H

#include "pace/state.bpf.h"

/* 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming, volume 3, 6.4). */
#define GOLDEN_RATIO_64 0x9e3779b97f4a7c15ULL

/*
 * The first slot of the bucket in which a process's task with this ID is. The upper half of the ID
 * does not matter, so that a program can choose the ID of its next task for the same bucket.
 */
static __always_inline u32 pace_bucket_start(u32 tgid, u64 id)
{
	u64 hash = ((u32)id | (u64)tgid << 32) * GOLDEN_RATIO_64;

	return (hash >> (64 - PACE_BUCKET_BITS)) * PACE_WAYS;
}

static __always_inline u64 *pace_index_at(u32 index_slot)
{
	return &pace_index[index_slot & (PACE_INDEX - 1)];
}

/*
 * A task, which has an ID and is not PACE_LIVE yet, can be found from now on. This and the next one
 * are global functions, so that the verifier checks each once.
 */
__noinline int pace_add_to_index(u32 entry)
{
	struct pace_task *task = pace_task_at(entry);
	u32 bucket, way;

	if (!(config.enabled & PACE))
		return 0;
	bucket = pace_bucket_start(task->tgid, task->id);
	for (way = 0; way < PACE_WAYS; way++) {
		if (__sync_val_compare_and_swap(pace_index_at(bucket + way), 0, entry))
			continue;
		task->index_slot = bucket + way + 1;
		return 0;
	}
	task->index_slot = PACE_UNINDEXED;
	__sync_fetch_and_add(&pace_control.unindexed, 1);
	return 0;
}

static __always_inline void pace_remove_from_index(struct pace_task *task)
{
	if (task->index_slot == PACE_UNINDEXED)
		__sync_fetch_and_add(&pace_control.unindexed, -1);
	else
		WRITE_ONCE(*pace_index_at(task->index_slot - 1), 0);
}

struct pace_search_id {
	u64 id;
	u32 tgid;
	u32 unused;
	/* The entry of the task, plus its number << PACE_NUMBER_SHIFT. */
	u64 found;
};

static long pace_compare_id(u32 entry, struct pace_search_id *search)
{
	struct pace_task *task = pace_task_at(entry);
	/* The ID may be that of the entry's next task, which then has another number. */
	u64 life = READ_ONCE(task->life);

	if ((u32)life != PACE_LIVE || task->id != search->id || task->tgid != search->tgid)
		return 0;
	search->found = life - PACE_LIVE + entry;
	return 1;
}

/*
 * The unfinished task of this thread's process with this ID: its entry, plus its number <<
 * PACE_NUMBER_SHIFT; 0: there is none.
 */
__noinline u64 pace_find_in_index(u32 slot, u64 id)
{
	struct pace_search_id search = { .id = id, .tgid = thread_at(slot)->tgid };
	u32 bucket = pace_bucket_start(search.tgid, id), way, found;

	if (!(config.enabled & PACE))
		return 0;
	for (way = 0; way < PACE_WAYS; way++) {
		found = READ_ONCE(*pace_index_at(bucket + way));
		if (found && pace_compare_id(found, &search))
			return search.found;
	}
	if (unlikely(READ_ONCE(pace_control.unindexed)))
		bpf_loop(PACE_TASKS, pace_compare_id, &search, 0);
	return search.found;
}

#endif
