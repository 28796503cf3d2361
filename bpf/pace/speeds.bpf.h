/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The speeds that tasks need. The kernel side computes the speed that each frequency domain should
 * have, and user space writes it. All functions are called only with pace compiled in.
 */
#ifndef TOLLGATE_PACE_SPEEDS_BPF_H
#define TOLLGATE_PACE_SPEEDS_BPF_H

#include "pace/state.bpf.h"

/* include/uapi/linux/time.h */
#define CLOCK_MONOTONIC 1
#define NS_PER_US 1000

/* A timer for each processor. */
struct pace_timer {
	struct bpf_timer timer;
};

ARRAY_MAP(pace_timers, CPUS, struct pace_timer, 0);
HASH_MAP(pace_types, PACE_SCHEDULES, struct pace_type_key, u32);

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
	u64 passed, planned, left;
	struct pace_step *step = NULL;

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
	need->khz = step->khz;
	passed = step->ns + (done - step->cycles) * KHZ_PER_GHZ / step->khz;
	/* The pre-deadline cycles are done, so the deadline does not decide the speed any more. */
	if (passed >= schedule->planned_ns[half])
		return;
	planned = (schedule->planned_ns[half] - passed) / NS_PER_US;
	if (task->deadline_ns) {
		margin = deadline - schedule->planned_ns[half];
		deadline = task->deadline_ns > margin ? task->deadline_ns - margin : 0;
	}
	passed = now - task->begin_ns;
	if (passed + NS_PER_US >= deadline) {
		need->khz = 0;
		need->next = 0;
		return;
	}
	left = (deadline - passed) / NS_PER_US;
	/* 10 GHz times an hour in us is 3.6 * 10^16, which fits into 64 bits. */
	if (planned > left || task->deadline_ns > schedule->deadline_ns[half])
		need->khz = need->khz * planned / left;
	/* 0 stands for the fastest speed. */
	if (!need->khz)
		need->khz = 1;
	/* The wanted speed has 32 bits. No processor is faster. */
	if (need->khz >> 32)
		need->khz = 0;
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
	if (!of->is_crowded && task->number == of->number && task->state == PACE_LIVE)
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
	of->number = task->number;
	of->task = task->entry;
}

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
	struct pace_cpu *at = pace_cpu_at(cpu);
	u64 ns = step_ns, search_ns = READ_ONCE(at->search_ns);

	if (!timer)
		return;
	if (searches && !search_ns) {
		search_ns = now + pace_control.search_interval_ns;
		WRITE_ONCE(at->search_ns, search_ns);
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
	pace_evaluate(domain, now);
	pace_start_timer(bpf_get_smp_processor_id(), 0, 1, now);
}

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
	u64 now = bpf_ktime_get_ns(), search_ns = READ_ONCE(at->search_ns);

	if (task)
		pace_charge_at(at, pace_of(slot), task, now);
	if (search_ns && search_ns <= now) {
		WRITE_ONCE(at->search_ns, 0);
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

/* Whether the thread's tasks decide the speeds. */
static __always_inline bool is_paced(struct thread_state *thread)
{
	u32 session = READ_ONCE(pace_control.session);

	return unlikely(session) && thread->session == session;
}

/*
 * A task that is paced is about to begin on this processor. This and the next one are global
 * functions, so that the verifier checks each once.
 */
__noinline int pace_prepare_pacing(u32 entry)
{
	struct pace_task *task = pace_task_at(entry);
	struct pace_type_key key = {};
	u32 domain, *schedule;

	if (!(config.enabled & PACE))
		return 0;
	pace_make_timers();
	key.type = task->type;
	key.detail = task->detail;
	key.rule = task->rule;
	key.descriptor = task->descriptor;
	__builtin_memcpy(key.program, task->program, sizeof(key.program));
	schedule = bpf_map_lookup_elem(&pace_types, &key);
	task->schedule = schedule ? *schedule : 0;
	domain = pace_cpu_at(bpf_get_smp_processor_id())->domain;
	task->domain = domain + 1;
	pace_enter_domain(task, domain);
	return 0;
}

/* A thread of a paced task runs here. The speed follows the task to another domain. */
__noinline int pace_run_paced(u32 entry, u64 now)
{
	u32 cpu = bpf_get_smp_processor_id(), domain, before;
	struct pace_task *task = pace_task_at(entry);
	struct pace_domain *of;

	if (!(config.enabled & PACE))
		return 0;
	domain = pace_cpu_at(cpu)->domain;
	of = pace_domain_at(domain);
	before = READ_ONCE(task->domain);
	if (before && before != domain + 1 &&
	    __sync_val_compare_and_swap(&task->domain, before, domain + 1) == before) {
		pace_enter_domain(task, domain);
		pace_leave_domain(before - 1, now);
	}
	/*
	 * The timer has found no running thread of the task, and has taken that for other work.
	 * Now the queue of the only processor has no other thread.
	 */
	if (of->has_others && of->cpus == 1 && pace_cpu_at(cpu)->queue &&
	    READ_FIELD(struct rq, pace_cpu_at(cpu)->queue, nr_running) == 1) {
		of->has_others = 0;
		of->saw_others = 0;
	}
	pace_evaluate(domain, now);
	pace_arm(cpu, task, now);
	return 0;
}

/* A task has ended. */
static __always_inline void pace_end_pacing(struct pace_task *task, u64 now)
{
	u32 domain;

	if (likely(!READ_ONCE(task->domain)))
		return;
	domain = __sync_lock_test_and_set(&task->domain, 0);
	if (domain)
		pace_leave_domain(domain - 1, now);
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

struct pace_search_power {
	u32 khz;
	u32 milliwatts;
};

static long pace_compare_power(u32 i, struct pace_search_power *find)
{
	struct pace_power *power = &pace_control.power[i & (PACE_POWERS - 1)];

	find->milliwatts = power->milliwatts;
	return power->khz >= find->khz;
}

static __always_inline void pace_record_speed(struct pace_cpu *at, u32 khz)
{
	struct pace_search_power find = { .khz = khz };

	bpf_loop(pace_control.powers, pace_compare_power, &find, 0);
	at->is_reported = 1;
	WRITE_ONCE(at->khz, khz);
	WRITE_ONCE(at->milliwatts, find.milliwatts);
}

/* The speed of a processor has changed. */
static __always_inline void pace_frequency(u32 khz, u32 cpu)
{
	struct pace_cpu *at = pace_cpu_at(cpu);
	u32 slot = READ_ONCE(at->slot);
	struct pace_task *task = pace_running(at);
	u64 now;

	if (!task) {
		pace_record_speed(at, khz);
		return;
	}
	now = bpf_ktime_get_ns();
	pace_charge_at(at, pace_of(slot), task, now);
	pace_record_speed(at, khz);
	if (task->domain)
		pace_arm(cpu, task, now);
}

#endif
