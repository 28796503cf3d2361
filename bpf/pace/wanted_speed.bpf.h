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
	return search.level.khz >= khz ? search.level.khz : 0;
}

/* The rest of a schedule. */
struct pace_rest {
	/* When it begins and ends in the schedule, in ns. */
	u64 begin, end;
	/* The planned time and the time that is left, in us. Their quotient is the factor. */
	u64 planned, left;
};

/*
 * The speed of a step, times the factor for the rest of a schedule that is late. Steps that would
 * exceed the fastest speed are left out, with the time that they take at the fastest speed.
 */
static __always_inline u64 pace_raise(struct pace_schedule *schedule, u32 half,
				      struct pace_step *step, struct pace_rest *rest)
{
	u64 fastest = pace_control.fastest_khz, begin, us;
	u32 i;

	for (i = PACE_STEPS; i-- > 0;) {
		struct pace_step *at = &schedule->step[half * PACE_STEPS + i];

		if (i >= schedule->steps[half])
			continue;
		/* Less than 1 us is left of the work. */
		if (!rest->planned)
			break;
		/* 10 GHz times an hour in us is 3.6 * 10^16, which fits into 64 bits. */
		if (at->khz * rest->planned <= fastest * rest->left)
			return step->khz * rest->planned / rest->left;
		if (at == step)
			break;
		begin = at->ns > rest->begin ? at->ns : rest->begin;
		us = begin < rest->end ? (rest->end - begin) / NS_PER_US : 0;
		rest->end -= us * NS_PER_US;
		rest->planned -= us;
		/* Rounded up. */
		us = us * at->khz / fastest + 1;
		if (us >= rest->left)
			break;
		rest->left -= us;
	}
	return fastest;
}

/*
 * The speed of a task, and its next step. If the task is late, because its threads have waited, all
 * remaining speeds are multiplied by the factor with which the rest ends by the deadline. The same
 * factor is below 1 if the program has moved the deadline to a later time.
 */
static __always_inline void pace_find_need(struct pace_task *task, u64 now, struct pace_need *need)
{
	struct pace_schedule *schedule = &pace_schedules[task->schedule & (PACE_SCHEDULES - 1)];
	u32 half = READ_ONCE(schedule->half) & 1, count = schedule->steps[half], i;
	u64 done = task->cycles, deadline = schedule->deadline_ns[half], margin;
	u64 passed;
	struct pace_step *step = NULL;
	struct pace_rest rest = { .end = schedule->planned_ns[half] };

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
	if (task->deadline_ns) {
		margin = deadline - rest.end;
		deadline = task->deadline_ns > margin ? task->deadline_ns - margin : 0;
	}
	passed = now - task->begin_ns;
	if (passed + NS_PER_US >= deadline) {
		need->khz = 0;
		need->next = 0;
		return;
	}
	rest.left = (deadline - passed) / NS_PER_US;
	if (rest.planned > rest.left)
		need->khz = pace_round_up(pace_raise(schedule, half, step, &rest));
	else if (task->deadline_ns > schedule->deadline_ns[half])
		need->khz = pace_round_up(step->khz * rest.planned / rest.left);
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
