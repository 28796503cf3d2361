/* SPDX-License-Identifier: GPL-2.0 */
/* The timers of processors: a step of a schedule begins, or a search for other work is due. */
#ifndef TOLLGATE_PACE_TIMERS_BPF_H
#define TOLLGATE_PACE_TIMERS_BPF_H

#include "pace/charge.bpf.h"
#include "pace/other_work.bpf.h"

/* include/uapi/linux/time.h */
#define CLOCK_MONOTONIC 1

/*
 * Starts the timer of a processor on which the thread of a task runs. It expires when the task's
 * next step begins, as computed by the latest pace_evaluate(). While the task runs below the
 * fastest speed, it expires earlier, to search for other work.
 */
static __always_inline void pace_arm(u32 cpu, struct pace_task *task, u64 now)
{
	struct pace_cpu *at = pace_cpu_at(cpu);
	struct pace_domain *domain = pace_domain_at(at->domain);
	u64 next = READ_ONCE(domain->next_step), done = task->cycles, step_ns = 0;
	/* The speed is the lower half of the wanted value. */
	u32 khz = READ_ONCE(domain->wanted);

	if (domain->is_crowded)
		return;
	if (next > done && at->khz)
		step_ns = (next - done) * KHZ_PER_GHZ / at->khz + 1;
	pace_start_timer(cpu, step_ns, khz && khz < pace_control.fastest_khz, now);
}

/* The timer of a processor has expired, possibly on another processor. */
static int pace_expired(void *map, u32 *cpu, struct pace_timer *timer)
{
	struct pace_cpu *at = pace_cpu_at(*cpu);
	u32 slot = READ_ONCE(at->slot), domain = at->domain, others, before, searches = 0;
	struct pace_domain *of = pace_domain_at(domain);
	struct pace_task *task = pace_running(at);
	u64 now = bpf_ktime_get_ns(), search_ns = READ_ONCE(of->search_ns);

	if (task)
		pace_charge_at(*cpu, slot, task, now);
	/* One processor of the domain searches. */
	if (search_ns && search_ns <= now &&
	    __sync_val_compare_and_swap(&of->search_ns, search_ns, 0) == search_ns) {
		others = pace_has_others(of, 0);
		before = __sync_lock_test_and_set(&of->saw_others, others);
		of->has_others = others && before;
		searches = others && !before;
	}
	pace_evaluate(domain, now);
	if (task)
		pace_arm(*cpu, task, now);
	if (searches)
		pace_start_timer(*cpu, 0, 1, now);
	return 0;
}

static long pace_make_timer(u32 cpu, void *context)
{
	struct pace_timer *timer = bpf_map_lookup_elem(&pace_timers, &cpu);

	if (!timer)
		return 1;
	/* It fails if an earlier generation has made the timer. */
	bpf_timer_init(&timer->timer, &pace_timers, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&timer->timer, pace_expired);
	return 0;
}

/*
 * Makes the timers, which needs memory. This must not happen at a context switch, where the
 * scheduler has locks that the allocator may need.
 */
static __always_inline void pace_make_timers(void)
{
	u32 before = READ_ONCE(pace_control.timers_generation);

	if (likely(before == config.generation))
		return;
	if (__sync_val_compare_and_swap(&pace_control.timers_generation, before,
					config.generation) == before)
		bpf_loop(pace_control.timers, pace_make_timer, NULL, 0);
}

#endif
