/* SPDX-License-Identifier: GPL-2.0 */
/* Searches for work without a task, which must not be slowed, and the timers that start them. */
#ifndef TOLLGATE_PACE_OTHER_WORK_BPF_H
#define TOLLGATE_PACE_OTHER_WORK_BPF_H

#include "pace/wanted_speed.bpf.h"

/* A timer for each processor. */
struct pace_timer {
	struct bpf_timer timer;
};

ARRAY_MAP(pace_timers, CPUS, struct pace_timer, 0);

/* A search for work without a task that is ready to run on the processors of a domain. */
struct pace_search_others {
	u32 cpu;
	/* 1: the processors are watched from now on. */
	u32 watches;
	u32 found;
	/* 1: a thread with a task runs on one of them. */
	u32 runs_task;
};

static long pace_search_others_on(u32 i, struct pace_search_others *search)
{
	struct pace_cpu *at = pace_cpu_at(search->cpu);
	u32 runs_task = !!pace_running(at);
	u64 queue = at->queue;

	if (search->watches)
		cpus[search->cpu & (CPUS - 1)].is_watched = 1;
	search->cpu = at->next;
	search->runs_task |= runs_task;
	if (queue && READ_FIELD(struct rq, queue, nr_running) > runs_task)
		search->found = 1;
	return 0;
}

/*
 * Whether a domain must not be slow because of other work. Other work may become ready unseen while
 * the only task waits, so that counts as well. Without a task in the domain, so does a running
 * thread whose task is counted in another domain.
 */
static __always_inline u32 pace_has_others(struct pace_domain *of, u32 watches)
{
	struct pace_search_others search = { .cpu = of->first, .watches = watches };

	bpf_loop(of->cpus, pace_search_others_on, &search, 0);
	return search.found || search.runs_task != !!of->tasks;
}

/*
 * Starts the timer of a processor. It expires after `step_ns`, if that is not 0, or earlier if a
 * search for other work is due. `searches`: a search is due after an interval. A search that is due
 * already is not put off, however often the timer is started.
 */
static __always_inline void pace_start_timer(u32 cpu, u64 step_ns, u32 searches, u64 now)
{
	struct pace_timer *timer = bpf_map_lookup_elem(&pace_timers, &cpu);
	struct pace_domain *of = pace_domain_at(pace_cpu_at(cpu)->domain);
	u64 ns = step_ns, search_ns = READ_ONCE(of->search_ns);

	if (!timer)
		return;
	if (searches && !search_ns) {
		search_ns = now + pace_control.search_interval_ns;
		WRITE_ONCE(of->search_ns, search_ns);
	}
	if (search_ns) {
		search_ns = search_ns > now ? search_ns - now : 1;
		if (!ns || search_ns < ns)
			ns = search_ns;
	}
	if (ns)
		bpf_timer_start(&timer->timer, ns, 0);
}

/* A task is not counted in a domain any more. After the last one, the domain is watched. */
static __always_inline void pace_leave_domain(u32 domain, u64 now)
{
	struct pace_domain *of = pace_domain_at(domain);

	if (__sync_fetch_and_add(&of->tasks, -1) != 1)
		return;
	of->released_ns = now;
	of->has_others = 0;
	of->saw_others = pace_has_others(of, 1);
	/* The next search is due after a whole interval. */
	WRITE_ONCE(of->search_ns, 0);
	pace_evaluate(domain, now);
	pace_start_timer(bpf_get_smp_processor_id(), 0, 1, now);
}

/*
 * A switch in a domain whose last task has ended, and which is slow until the system's governor has
 * it again. Work without a task is noticed when it has been ready to run for a while.
 */
static __always_inline void pace_watched_switch(struct cpu_state *cpu, struct task_struct *next)
{
	u32 number = bpf_get_smp_processor_id();
	struct pace_cpu *at = pace_cpu_at(number);
	struct pace_domain *of = pace_domain_at(at->domain);
	u64 now = bpf_ktime_get_ns();

	if (!at->queue)
		at->queue = (u64)next->se.cfs_rq->rq;
	if (of->tasks || of->has_others || now - of->released_ns > pace_control.release_delay_ns) {
		cpu->is_watched = 0;
		return;
	}
	/* The idle task has number 0. */
	if (next->pid)
		pace_start_timer(number, 0, 1, now);
}

#endif
