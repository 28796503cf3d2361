/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The records of tasks that have ended: a buffer for each processor and session, which user space
 * maps. Only programs of its processor add records, with preemption disabled and never in an
 * interrupt, so a record needs no atomic operation.
 */
#ifndef TOLLGATE_PACE_ENDED_TASKS_BPF_H
#define TOLLGATE_PACE_ENDED_TASKS_BPF_H

#include "pace/charge.bpf.h"

/*
 * The buffers of a session, which user space makes: see guard/profiles.bpf.h, struct profile_map.
 * They are one entry with a buffer for each processor, of which this declares the first one. With
 * an entry for each processor, the map would need BPF_F_INNER_MAP, and then the verifier would not
 * inline the look-up.
 */
struct pace_ended_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct pace_ended));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, SESSIONS);
	__type(key, u32);
	__array(values, struct pace_ended_map);
} pace_ended_tasks SEC(".maps");

/* Wakes up user space, which otherwise reads the buffers each 100 ms. */
static __always_inline void pace_wake_reader(u32 session)
{
	void *ring = bpf_map_lookup_elem(&records, &session);
	u64 *record = ring ? bpf_ringbuf_reserve(ring, sizeof(*record), 0) : NULL;

	/* If there is no room, user space has other records to read. */
	if (!record)
		return;
	*record = RECORD_PACE_ENDED;
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
}

/*
 * The buffer of a session on this processor; NULL: it has no room for a record, which is a loss, or
 * the session has ended.
 */
static __always_inline struct pace_ended *pace_ended_here(u32 session)
{
	void *map = bpf_map_lookup_elem(&pace_ended_tasks, &session);
	u32 first = 0, cpu = bpf_get_smp_processor_id();
	struct pace_ended *ended;

	if (unlikely(!map))
		return NULL;
	ended = bpf_map_lookup_elem(map, &first);
	/* The verifier must see the bound of the sum. */
	barrier_var(cpu);
	if (likely(ended && cpu < config.processors)) {
		ended += cpu;
		if (likely(ended->added - READ_ONCE(ended->taken) < PACE_ENDED_TASKS))
			return ended;
	}
	count_loss(session, LOSS_PACE_RECORDS);
	return NULL;
}

struct pace_search_workers {
	u32 entry;
	u32 number;
	u64 now;
	struct pace_work work;
};

static long pace_add_if_worker(u32 cpu, struct pace_search_workers *search)
{
	struct cpu_state *running = &cpus[cpu & (CPUS - 1)];
	struct pace_cpu *at = pace_cpu_at(cpu);
	u32 slot = READ_ONCE(running->slot);
	struct pace_thread *of = pace_of(slot);
	u32 entry = of->task, number = of->number, i;
	struct pace_task *task;
	struct pace_work work;
	u64 since;

	for (i = 0; i < PACE_NESTED; i++) {
		if (entry == search->entry && number == search->number) {
			since = READ_ONCE(of->charged_ns);
			if (!since)
				since = pace_unreported_since(slot, running);
			work = pace_work(at, since, search->now);
			search->work.ns += work.ns;
			search->work.cycles += work.cycles;
			search->work.energy_pj += work.energy_pj;
			break;
		}
		task = pace_unfinished(entry, number);
		if (!task)
			break;
		entry = task->outer;
		number = task->outer_number;
	}
	return 0;
}

/*
 * Adds to the record of a task the work of the threads that run on other processors and are not
 * charged yet. They cannot charge the task any more. One that is just doing so sets `charged_ns`
 * before it adds its work. The record has the task's work from before `charged_ns` is read here,
 * so no work is in it twice.
 */
static __always_inline void pace_add_running(struct pace_task *task, u32 number, u64 now,
					     struct pace_record *record)
{
	struct pace_search_workers search = { .entry = task->entry, .number = number, .now = now };

	barrier();
	bpf_loop(config.processors, pace_add_if_worker, &search, 0);
	record->cpu_ns += search.work.ns;
	record->cycles += search.work.cycles;
	record->energy_pj += search.work.energy_pj;
	pace_add_work(pace_outer(task), search.work);
}

/*
 * Records a task that has ended. `work` is work of the caller that is not charged to it.
 * `others_run`: threads on other processors may be working on it.
 */
static __always_inline void pace_record_end(struct pace_task *task, u32 number, u32 how, u64 now,
					    struct pace_work work, bool others_run)
{
	struct pace_ended *ended = pace_ended_here(task->session);
	struct pace_record *record;
	u64 used;

	if (!ended)
		return;
	record = &ended->records[ended->added & (PACE_ENDED_TASKS - 1)];
	record->begin_ns = task->begin_ns;
	record->end_ns = now;
	record->cpu_ns = task->cpu_ns + work.ns;
	record->cycles = task->cycles + work.cycles;
	record->energy_pj = task->energy_pj + work.energy_pj;
	record->type_id = task->type;
	record->deadline_ns = task->deadline_ns;
	record->rule = task->rule;
	record->descriptor = task->descriptor;
	record->detail = task->detail;
	record->pid = task->visible_pid;
	record->end = how;
	__builtin_memcpy(record->program, task->program, sizeof(record->program));
	if (unlikely(others_run))
		pace_add_running(task, number, now, record);
	/* x86 stores in the order of the program. */
	barrier();
	WRITE_ONCE(ended->added, ended->added + 1);
	used = ended->added - ended->taken;
	if (unlikely(used >= PACE_ENDED_TASKS / 2 && !(used % (PACE_ENDED_TASKS / 16))))
		pace_wake_reader(task->session);
}

#endif
