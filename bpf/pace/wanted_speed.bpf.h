/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The speed that each frequency domain should have. The kernel side computes it, and user space
 * writes it. The functions of this file, and of those that include it, are called only with pace
 * compiled in.
 */
#ifndef TOLLGATE_PACE_WANTED_SPEED_BPF_H
#define TOLLGATE_PACE_WANTED_SPEED_BPF_H

#include "pace/state.bpf.h"

#define NS_PER_US 1000

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, PACE_SPEED_CHANGES_BYTES);
} pace_speed_changes SEC(".maps");

static __always_inline struct pace_domain *pace_domain_at(u32 domain)
{
	return &pace_domains[domain & (CPUS - 1)];
}

/* What a task needs now. */
struct pace_need {
	/* 0: the fastest speed. */
	u64 khz;
	/* The cycles at which its next step begins; 0: there is none. */
	u64 next;
};

/* A search for the slowest level that is at least as fast as a speed. */
struct pace_search_level {
	u32 khz;
	/* The level; the fastest one, if none is as fast. */
	struct pace_power level;
};

static long pace_compare_level(u32 i, struct pace_search_level *search)
{
	search->level = pace_control.power[i & (PACE_POWERS - 1)];
	return search->level.khz >= search->khz;
}

static long pace_compare_worthwhile(u32 i, struct pace_search_level *search)
{
	if (!(pace_control.worthwhile >> (i & (PACE_POWERS - 1)) & 1))
		return 0;
	return pace_compare_level(i, search);
}

/*
 * Rounds a speed up to a worthwhile level, so that the wanted speed does not change with each
 * evaluation. The fastest level is 0.
 */
static __always_inline u64 pace_round_up(u64 khz)
{
	struct pace_search_level search = {};

	if (khz >= pace_control.fastest_khz)
		return 0;
	search.khz = khz;
	bpf_loop(pace_control.powers, pace_compare_worthwhile, &search, 0);
	if (search.level.khz < khz || search.level.khz >= pace_control.fastest_khz)
		return 0;
	return search.level.khz;
}

/* The rest of a schedule that is late. */
struct pace_rest {
	u32 schedule;
	u32 half;
	/* The number of steps, and the index of the one that is the task's now. */
	u32 steps;
	u32 step;
	/* When it begins and ends in the schedule, in ns. */
	u64 begin;
	u64 end;
	/* The planned time and the time that is left, in us. Their quotient is the factor. */
	u64 planned;
	u64 left;
};

/*
 * Takes the last step out of the rest, with its time at the fastest speed, if the factor would make
 * it faster than that. The others then have a greater factor. `left` becomes 0 if no factor is
 * great enough.
 */
static long pace_leave_out_step(u32 i, struct pace_rest *rest)
{
	u32 index = rest->steps - 1 - i;
	struct pace_schedule *schedule = &pace_schedules[rest->schedule & (PACE_SCHEDULES - 1)];
	struct pace_step *at =
		&schedule->step[(rest->half * PACE_STEPS + index) & (2 * PACE_STEPS - 1)];
	u64 fastest = pace_control.fastest_khz, begin, us;

	/* 10 GHz times an hour in us is 3.6 * 10^16, which fits into 64 bits. */
	if (rest->planned && at->khz * rest->planned <= fastest * rest->left)
		return 1;
	begin = at->ns > rest->begin ? at->ns : rest->begin;
	us = begin < rest->end ? (rest->end - begin) / NS_PER_US : 0;
	rest->end -= us * NS_PER_US;
	rest->planned -= us;
	/* Rounded up. */
	us = us * at->khz / fastest + 1;
	rest->left = index > rest->step && us < rest->left ? rest->left - us : 0;
	return !rest->left;
}

/*
 * The speed of a task, and its next step. If its threads have waited for so long that it would miss
 * the deadline, it is late. From then on, all remaining speeds are multiplied by the factor with
 * which the rest ends before the deadline by the margin of the schedule, unless it ends earlier
 * anyway. The same factor is below 1 if the program has moved the deadline to a later time.
 */
static __always_inline void pace_find_need(struct pace_task *task, u64 now, struct pace_need *need)
{
	struct pace_schedule *schedule = &pace_schedules[task->schedule & (PACE_SCHEDULES - 1)];
	u32 half = READ_ONCE(schedule->half) & 1, count = schedule->steps[half], i;
	u64 done = task->cycles, deadline = schedule->deadline_ns[half], margin, passed;
	struct pace_step *step = NULL;
	struct pace_rest rest = {
		.schedule = task->schedule,
		.half = half,
		.steps = count,
		.end = schedule->planned_ns[half],
	};

	need->khz = 0;
	need->next = 0;
	for (i = 0; i < PACE_STEPS; i++) {
		struct pace_step *at = &schedule->step[half * PACE_STEPS + i];

		if (i >= count)
			break;
		if (at->cycles > done) {
			need->next = at->cycles;
			break;
		}
		step = at;
		rest.step = i;
	}
	if (!task->schedule || !step || !step->khz)
		return;
	need->khz = step->khz < pace_control.fastest_khz ? step->khz : 0;
	passed = step->ns + (done - step->cycles) * KHZ_PER_GHZ / step->khz;
	/* The pre-deadline cycles are done, so the deadline does not decide the speed any more. */
	if (passed >= rest.end)
		return;
	rest.begin = passed;
	rest.planned = (rest.end - passed) / NS_PER_US;
	margin = deadline - rest.end;
	passed = now - task->begin_ns;
	if (task->deadline_ns)
		deadline = task->deadline_ns;
	else if (!task->is_late && passed + rest.end - rest.begin <= deadline)
		return;
	else
		task->is_late = 1;
	if (passed + margin + NS_PER_US >= deadline) {
		need->khz = 0;
		need->next = 0;
		return;
	}
	rest.left = (deadline - margin - passed) / NS_PER_US;
	if (rest.planned > rest.left)
		bpf_loop(count, pace_leave_out_step, &rest, 0);
	else if (task->deadline_ns <= schedule->deadline_ns[half])
		return;
	need->khz = rest.left ? pace_round_up(step->khz * rest.planned / rest.left) : 0;
}

/* A domain should have another speed. */
static __always_inline void pace_want(u32 domain, u64 wanted, u64 now)
{
	struct pace_speed_change *change;

	if (__sync_lock_test_and_set(&pace_domain_at(domain)->wanted, wanted) == wanted)
		return;
	change = bpf_ringbuf_reserve(&pace_speed_changes, sizeof(*change), 0);
	/* If there is no room, user space will read the speed with an earlier change. */
	if (!change)
		return;
	change->domain = domain;
	change->unused = 0;
	change->ns = now;
	bpf_ringbuf_submit(change, 0);
}

/*
 * Computes the speed that a domain should have. While several tasks are unfinished, and until none
 * is left, it is the fastest one. This is a global function, so that the verifier checks it once.
 */
__noinline int pace_evaluate(u32 domain, u64 now)
{
	struct pace_domain *of = pace_domain_at(domain);
	struct pace_need need = {};
	struct pace_task *task;
	u64 mode;

	/* Before any use of the maps, which have one entry each in a gate without pacing. */
	if (!(config.enabled & PACE))
		return 0;
	if (!READ_ONCE(of->tasks)) {
		mode = of->has_others ? PACE_RELEASED_BUSY : PACE_RELEASED;
		pace_want(domain, mode << PACE_MODE_SHIFT, now);
		return 0;
	}
	/* Another task may have entered the domain at the same time as the first one. */
	if (READ_ONCE(of->tasks) > 1)
		of->is_crowded = 1;
	mode = of->has_others ? PACE_AT_LEAST : PACE_AT;
	task = pace_task_at(of->task);
	if (!of->is_crowded && task->life == pace_life(of->number, PACE_LIVE))
		pace_find_need(task, now, &need);
	of->next_step = need.next;
	pace_want(domain, need.khz | mode << PACE_MODE_SHIFT, now);
	return 0;
}

/* A task is counted in a domain. */
static __always_inline void pace_enter_domain(struct pace_task *task, u32 domain)
{
	struct pace_domain *of = pace_domain_at(domain);

	if (__sync_fetch_and_add(&of->tasks, 1)) {
		of->is_crowded = 1;
		return;
	}
	of->is_crowded = 0;
	of->has_others = 0;
	of->saw_others = 0;
	of->number = pace_number(task);
	of->task = task->entry;
}

#endif
