/* SPDX-License-Identifier: GPL-2.0 */
/*
 * lens: where a call's time went. Wall time comes from one clock reading a side; time off the CPU from
 * sched_switch; how much of that was waiting for a CPU, from the scheduler's own counter
 * (sched_info.run_delay, the second figure of /proc/PID/schedstat), so that no wake-up is hooked.
 */
#ifndef TOLLGATE_LENS_BPF_H
#define TOLLGATE_LENS_BPF_H

#include "state.bpf.h"
#include "lens_slow.bpf.h"

/*
 * LENS_SAMPLE: a call is cheap once this many in a row stayed on the CPU and below the limit. At the limit two
 * clock readings (65 ns at most on the machines tried) are 3 % of the call; 64 in a row are few of a hot loop's
 * calls, and many for one that sleeps now and then.
 */
#define CHEAP_STREAK 64
#define CHEAP_NS 2000
/* One in sixteen cheap calls is timed on average (8 cost 1.5 floors, 16 less than 1.4: OVERHEAD.md): 0..30 go untimed. */
#define SKIP_SPAN 31

/*
 * A stack is taken about once for this much sleeping, so that it costs at most a few per cent of it
 * (0.7 us a stack) however short the sleeps are; longer sleeps each get theirs.
 */
#define SITE_BUDGET_NS 20000

#define SITE_FRAMES 16

static __always_inline u32 log2_floor(u64 value)
{
	u32 log = 0;

	if (value >> 32) {
		value >>= 32;
		log += 32;
	}
	if (value >> 16) {
		value >>= 16;
		log += 16;
	}
	if (value >> 8) {
		value >>= 8;
		log += 8;
	}
	if (value >> 4) {
		value >>= 4;
		log += 4;
	}
	if (value >> 2) {
		value >>= 2;
		log += 2;
	}
	return log + (value >> 1);
}

/* Same as stats::histogram::bucket. */
static __always_inline u32 histogram_bucket(u64 ns)
{
	u32 octaves = 0, bucket;

	/* Without a branch on the length of a cheap call's time: those jitter, and a wrong guess costs 5 ns. */
	if (ns >= SMALL_VALUES) {
		octaves = log2_floor(ns) - log2_floor(SMALL_VALUES - 1);
		ns >>= octaves;
	}
	bucket = config.small_buckets[ns & (SMALL_VALUES - 1)] + octaves * BUCKETS_PER_OCTAVE;
	return bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1;
}

static __always_inline u32 error_slot(s64 result)
{
	u64 error = -result;

	if (error < ERRNO_PLAIN)
		return error;
	error -= ERRNO_RESTART_FIRST;
	return error < ERRNO_RESTART_COUNT ? ERRNO_PLAIN + error : 0;
}

static __always_inline bool is_error(s64 result)
{
	return (u64)result >= (u64)-4095;
}

static __always_inline void count_error(struct cell *cell, s64 result)
{
	u32 slot;

	if (!is_error(result))
		return;
	slot = error_slot(result);
	/* The compiler knows that the bound holds; Linux 6.1's verifier must see it checked. */
	barrier_var(slot);
	if (slot < ERRNO_SLOTS)
		cell->errors[slot] += 1;
}

/* Books the pending blocking site, once its waiting time for a CPU is known. */
static __always_inline void lens_book_site(struct thread_state *thread, u64 run_delay)
{
	struct site_key key = { .address = thread->site, .call = thread->call, .group = thread->group };
	struct site_value *value, fresh = {};
	u64 waited = run_delay - thread->run_delay_latest;
	u64 blocked = thread->site_off_ns > waited ? thread->site_off_ns - waited : 0;

	thread->site = 0;
	value = bpf_map_lookup_elem(&sites, &key);
	if (!value) {
		bpf_map_update_elem(&sites, &key, &fresh, BPF_NOEXIST);
		value = bpf_map_lookup_elem(&sites, &key);
		if (!value) {
			lose(thread->session, LOSS_SITES_FULL);
			return;
		}
	}
	__sync_fetch_and_add(&value->blocked_ns, blocked);
	__sync_fetch_and_add(&value->sleeps, thread->site_sleeps);
}

/* The call's waiting so far, by the scheduler's counter. */
static __always_inline u64 lens_runqueue(struct thread_state *thread, u64 run_delay)
{
	u64 waited = run_delay - thread->run_delay_first;

	return waited < thread->off_ns ? waited : thread->off_ns;
}

static __always_inline void lens_enter(struct thread_state *thread, struct task_struct *task, u32 call)
{
	u32 *entry;

	thread->minor_faults = task->min_flt;
	thread->major_faults = task->maj_flt;
	if (has(thread, LENS_SAMPLE)) {
		entry = cell_entry(thread->group, call);
		if (entry && (*entry & CELL_CHEAP)) {
			if (thread->skip) {
				thread->skip--;
				thread->entered_ns = 0;
				return;
			}
			thread->skip = bpf_get_prandom_u32() % SKIP_SPAN;
		}
	}
	/* Last, so that what the gate itself took is not the call's. */
	thread->entered_ns = bpf_ktime_get_ns();
}

/* LENS_SAMPLE: a call that was timed tells whether its like may go untimed. */
static __always_inline u32 lens_sample(struct thread_state *thread, struct cell *cell, u32 *entry, u64 wall)
{
	bool was_cheap = *entry & CELL_CHEAP;

	if (wall >= CHEAP_NS || thread->off_ns) {
		cell->cheap_streak = 0;
		if (was_cheap)
			__sync_fetch_and_and(entry, ~CELL_CHEAP);
		/* Calls that sleep are all timed, from the first sleep on at the least. */
		if (thread->off_ns || !was_cheap)
			return 1;
	} else if (!was_cheap) {
		if (++cell->cheap_streak >= CHEAP_STREAK)
			__sync_fetch_and_or(entry, CELL_CHEAP);
		return 1;
	}
	cell->sampled += 1;
	cell->sampled_ns += wall;
	cell->sampled_ns2 += wall * wall;
	/* It stands for itself and for those that were skipped: (SKIP_SPAN - 1) / 2 on average. */
	return 1 + (SKIP_SPAN - 1) / 2;
}

/*
 * Compares our time of the thread's latest return to a CPU with the scheduler's. Where the return was not
 * reported, the scheduler's time for it stands in: both clocks run alike between two calls of this.
 */
static __always_inline void lens_settle(struct thread_state *thread, struct task_struct *task, struct cpu_state *cpu,
					u64 now)
{
	u64 arrival = task->sched_info.last_arrival;
	u64 returned;

	if (thread->returned_ns)
		cpu->clock_offset = thread->returned_ns - arrival;
	thread->returned_ns = 0;
	if (likely(!thread->left_ns))
		return;
	returned = arrival + cpu->clock_offset;
	/* The offset is as late as our hook was that time. */
	if (returned > now)
		returned = now;
	if (cpu->clock_offset && returned > thread->left_ns)
		thread->off_ns += returned - thread->left_ns;
	thread->left_ns = 0;
}

static __always_inline void lens_exit(struct thread_state *thread, struct task_struct *task, s64 result, u64 now)
{
	u32 call = thread->call, weight = 1, *entry = NULL, bucket;
	u64 faults, wall, runqueue = 0;
	struct cell *cell = cell_for(thread, call, &entry);

	if (!cell) {
		thread->off_ns = 0;
		thread->left_ns = 0;
		return;
	}
	cell->count += 1;
	count_error(cell, result);
	faults = (u32)task->min_flt - thread->minor_faults;
	if ((u32)faults)
		cell->minor_faults += (u32)faults;
	faults = (u32)task->maj_flt - thread->major_faults;
	if ((u32)faults)
		cell->major_faults += (u32)faults;
	if (!thread->entered_ns) {
		cell->skipped += 1;
		return;
	}
	wall = now - thread->entered_ns;
	if (unlikely(thread->off_ns | thread->left_ns))
		lens_settle(thread, task, this_cpu(), now);
	if (has(thread, LENS_SAMPLE) && entry)
		weight = lens_sample(thread, cell, entry, wall);
	cell->wall_ns += wall;
	bucket = histogram_bucket(wall);
	if (bucket < HISTOGRAM_BUCKETS)
		cell->histogram[bucket] += weight;
	if (wall > cell->max_ns)
		cell->max_ns = wall;
	if (unlikely(thread->off_ns)) {
		runqueue = lens_runqueue(thread, task->sched_info.run_delay);
		cell->runqueue_ns += runqueue;
		cell->blocked_ns += thread->off_ns - runqueue;
		if (thread->site)
			lens_book_site(thread, task->sched_info.run_delay);
	}
	if (has(thread, LENS_SLOW))
		lens_slow_exit(thread, result, now, runqueue);
	thread->off_ns = 0;
}

/* A call that seccomp or a tracer rejected: sys_exit alone sees it (v6.18 kernel/entry/common.c). */
static __always_inline void lens_denied(struct thread_state *thread, u32 call, s64 result)
{
	u32 *entry = NULL;
	struct cell *cell = cell_for(thread, call, &entry);

	if (!cell)
		return;
	cell->count += 1;
	cell->denied += 1;
	count_error(cell, result);
}

/* The end of the call before was not seen: it is lost, and must not be mixed into the next. */
static __always_inline void lens_abandon(struct thread_state *thread)
{
	lose(thread->session, LOSS_ENDS);
	thread->off_ns = 0;
	thread->left_ns = 0;
	thread->site = 0;
}

static __always_inline void lens_unfinished(struct thread_state *thread)
{
	u32 *entry = NULL;
	struct cell *cell = cell_for(thread, thread->call, &entry);

	if (cell)
		cell->unfinished += 1;
}

/* The thread leaves its CPU in the middle of a call. */
static __always_inline void lens_leave(struct thread_state *thread, struct task_struct *task, struct cpu_state *cpu,
				       bool sleeps, u64 now)
{
	u64 run_delay = task->sched_info.run_delay;

	lens_settle(thread, task, cpu, now);
	if (thread->site)
		lens_book_site(thread, run_delay);
	if (!thread->off_ns)
		thread->run_delay_first = run_delay;
	if (!thread->entered_ns)
		thread->entered_ns = now;
	thread->run_delay_latest = run_delay;
	thread->sleeps = sleeps;
	thread->left_ns = now;
}

/* First frame of a sleeping task's stack that is not the scheduler's. */
static __always_inline u64 lens_find_site(struct stack *stack)
{
	for (u32 i = 0; i < SITE_FRAMES && i < stack->frames; i++) {
		u64 address = stack->address[i];

		if (address < config.sched_text_start || address >= config.sched_text_end)
			return address;
	}
	return SITE_UNKNOWN;
}

/* The thread is about to run again, still in its call. Its stack is whole, and how long it was off is known. */
static __always_inline void lens_return(struct thread_state *thread, struct task_struct *task, u64 now)
{
	u64 off = now - thread->left_ns;
	struct stack *stack;
	bool long_sleep;

	thread->left_ns = 0;
	thread->returned_ns = now;
	thread->off_ns += off;
	if (!thread->sleeps || !has(thread, LENS_SITES | LENS_SLOW))
		return;
	thread->unsited_sleeps += 1;
	thread->unsited_ns += off;
	thread->site_budget_ns -= off;
	long_sleep = lens_slow_is_long(thread, off);
	if (thread->site_budget_ns > 0 && !long_sleep)
		return;
	stack = lens_take_stack(task);
	if (stack && long_sleep)
		lens_slow_keep_stack(thread, stack, off);
	thread->site = stack ? lens_find_site(stack) : SITE_UNKNOWN;
	thread->site_off_ns = thread->unsited_ns;
	thread->site_sleeps = thread->unsited_sleeps;
	thread->unsited_ns = 0;
	thread->unsited_sleeps = 0;
	/* Uniform on half to one and a half budgets, so that no rhythm of the program falls in with ours. */
	thread->site_budget_ns = SITE_BUDGET_NS / 2 + bpf_get_prandom_u32() % SITE_BUDGET_NS;
}

#endif
