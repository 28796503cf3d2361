/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The lens at the hooks of the gate: where a call's time went. Wall time is measured by one clock
 * reading at the beginning and one at the end of the call, and the time off the CPU by
 * sched_switch. The part of the time off the CPU that was a wait for a CPU is read from the
 * scheduler's own counter (sched_info.run_delay, the second number of /proc/PID/schedstat), so that
 * no program is needed at wake-ups.
 */
#ifndef TOLLGATE_LENS_HOOKS_BPF_H
#define TOLLGATE_LENS_HOOKS_BPF_H

#include "gate/calls.bpf.h"
#include "gate/events.bpf.h"
#include "gate/rows.bpf.h"
#include "lens/account.bpf.h"
#include "lens/cells.bpf.h"
#include "lens/files.bpf.h"
#include "lens/flame.bpf.h"
#include "lens/in_band.bpf.h"
#include "lens/sites.bpf.h"
#include "lens/slow.bpf.h"
#include "lens/state.bpf.h"
#include "lens/trace.bpf.h"
#include "lens/waits.bpf.h"
#include "lens/why.bpf.h"

/*
 * LENS_SAMPLE: a call is cheap once CHEAP_STREAK in a row stayed on the CPU and took less than
 * CHEAP_NS. Two clock readings together take 65 ns at most on the machines tried, which is 3 % of
 * CHEAP_NS. A hot loop soon makes 64 cheap calls in a row; a call that sleeps now and then seldom
 * does.
 */
#define CHEAP_STREAK 64
#define CHEAP_NS 2000
/*
 * One in sixteen cheap calls is timed on average: between two timed calls, 0 to 30 go untimed. On a
 * machine where timing one in 8 cost 1.5 floors, timing one in 16 cost less than 1.4. OVERHEAD.md
 * has other machines.
 */
#define SAMPLE_SPAN 31

/* The call's wait for a CPU so far, by the scheduler's counter. */
static __always_inline u64 lens_runqueue_wait(struct thread_state *thread, u64 run_delay)
{
	u64 waited = run_delay - thread->lens_switch.run_delay_first;

	return waited < thread->lens.off_ns ? waited : thread->lens.off_ns;
}

/* Whether cheap calls of the thread may go untimed. */
static __always_inline bool lens_is_sampled(struct thread_state *thread)
{
	return has(thread, LENS_SAMPLE) && !has(thread, LENS_FILES | LENS_TRACE) &&
	       !in_band_is_on(thread);
}

static __always_inline void lens_sys_enter(struct crossing *at)
{
	struct thread_state *thread = at->thread;
	u32 *entry;

	thread->lens.minor_faults = at->task->min_flt;
	thread->lens.major_faults = at->task->maj_flt;
	if (has(thread, LENS_FILES))
		lens_files_enter(thread->slot, at->call);
	if (lens_is_sampled(thread)) {
		entry = cell_entry(thread->row, at->call);
		if (entry && (*entry & CELL_CHEAP)) {
			/* `off_ns`: it has waited for this call. */
			if (thread->lens.untimed_left && !thread->lens.off_ns) {
				thread->lens.untimed_left--;
				thread->lens.entered_ns = 0;
				return;
			}
			thread->lens.untimed_left = bpf_get_prandom_u32() % SAMPLE_SPAN;
		}
	}
	/* The clock is read last, so that the gate's own time does not count as the call's. */
	thread->lens.entered_ns = bpf_ktime_get_ns();
}

/*
 * LENS_SAMPLE: after a timed call, decides whether the next calls of its cell are timed. Returns
 * the weight of this call.
 */
static __always_inline u32 lens_update_sampling(struct thread_state *thread, struct cell *cell,
						u32 *entry, u64 wall)
{
	bool was_cheap = *entry & CELL_CHEAP;

	if (wall >= CHEAP_NS || thread->lens.off_ns) {
		cell->cheap_streak = 0;
		if (was_cheap)
			__sync_fetch_and_and(entry, ~CELL_CHEAP);
		/* Calls that sleep are all timed, at least from the first sleep on. */
		if (thread->lens.off_ns || !was_cheap)
			return 1;
	} else if (!was_cheap) {
		if (++cell->cheap_streak >= CHEAP_STREAK)
			__sync_fetch_and_or(entry, CELL_CHEAP);
		return 1;
	}
	cell->sampled += 1;
	cell->sampled_ns += wall;
	cell->sampled_ns2 += wall * wall;
	/*
	 * The call stands for itself and for the skipped calls: (SAMPLE_SPAN - 1) / 2 on average.
	 */
	return 1 + (SAMPLE_SPAN - 1) / 2;
}

/*
 * Compares the gate's time of the thread's latest switch in with the scheduler's. If that switch
 * was not reported, the scheduler's time is used instead. The offset between the clocks at the last
 * reported switch still holds, because both clocks have advanced by the same time since.
 */
static __always_inline void lens_reconcile_switch(struct thread_state *thread,
						  struct task_struct *task, struct cpu_state *cpu,
						  u64 now)
{
	u64 switched_in, off;

	lens_sync_clock(thread, task, cpu);
	if (likely(!thread->lens.is_off_cpu))
		return;
	switched_in = task->sched_info.last_arrival + cpu->clock_offset;
	/*
	 * The offset includes the delay of the gate's hook at the switch from which it was taken.
	 */
	if (switched_in > now)
		switched_in = now;
	if (cpu->clock_offset && switched_in > thread->lens_switch.switched_out_ns) {
		off = switched_in - thread->lens_switch.switched_out_ns;
		thread->lens.off_ns += off;
		lens_life_of(thread)->off_ns += off;
		if (in_band_is_on(thread) && thread->lens.is_asleep)
			in_band_add_sleep(thread->slot, off);
		if (has(thread, LENS_TRACE))
			lens_trace_wait(thread->slot, switched_in, switched_in, 0);
	}
	thread->lens.is_off_cpu = 0;
}

/* Records the pending blocking site, and with LENS_WHY what its sleep had to do with. */
static __always_inline void lens_record_sleep(struct thread_state *thread, u64 run_delay)
{
	u64 blocked = lens_record_site(thread, run_delay);

	if (has(thread, LENS_WHY))
		why_record(thread->slot, blocked);
}

/*
 * Adds the time of a call that ends to its cell in a row. `weight`: the number of calls that it
 * stands for.
 */
static __always_inline void lens_add_time(struct crossing *at, struct cell *cell, u32 row, u64 wall,
					  u32 weight, bool is_rejected)
{
	struct thread_state *thread = at->thread;
	struct task_struct *task = running_task(thread->task);
	u32 bucket = histogram_bucket(wall);
	u64 runqueue = 0;

	cell->wall_ns += wall;
	if (bucket < HISTOGRAM_BUCKETS)
		cell->histogram[bucket] += weight;
	if (wall > cell->max_ns)
		cell->max_ns = wall;
	if (unlikely(thread->lens.off_ns)) {
		runqueue = lens_runqueue_wait(thread, task->sched_info.run_delay);
		cell->runqueue_ns += runqueue;
		cell->blocked_ns += thread->lens.off_ns - runqueue;
		if (thread->lens.has_site)
			lens_record_sleep(thread, task->sched_info.run_delay);
	}
	if (unlikely(has(thread, LENS_FLAME) && thread->lens.off_ns) && at->state != IN_OUTER_CALL)
		lens_flame_report(thread, at->result);
	if (has(thread, LENS_FILES) && !is_rejected)
		lens_files_exit(thread->slot, row, at->result, wall,
				thread->lens.off_ns - runqueue);
	if (has(thread, LENS_TRACE) && at->state != IN_OUTER_CALL)
		lens_trace_call(thread->slot, at->result, at->now);
	if (has(thread, LENS_SLOW) && at->state != IN_OUTER_CALL)
		lens_slow_exit(thread, at->result, at->now, runqueue);
	if (in_band_is_on(thread))
		in_band_record(at, wall, runqueue, is_rejected);
	thread->lens.off_ns = 0;
}

static __always_inline void lens_sys_exit(struct crossing *at)
{
	struct thread_state *thread = at->thread;
	struct task_struct *task = running_task(thread->task);
	u64 now = at->now;
	u32 call = thread->call, weight = 1, *entry = NULL;
	u64 faults, wall;
	u32 row = thread->row;
	struct cell *cell;

	if (unlikely(at->state != IN_CALL)) {
		row = at->state == IN_OUTER_CALL ? lens_end_outer_call(thread->slot) : 0;
		if (!row) {
			if (at->state == IN_CALL_BEFORE_LENS)
				lens_add_current_life(thread->slot, ACCOUNT_UNFINISHED);
			goto uncounted;
		}
		/* It is not reported as a slow call, and its sleep is not that of the next one. */
		thread->lens.has_long_sleep = 0;
	}
	cell = cell_of(thread, row, call, &entry);
	if (!cell)
		goto uncounted;
	cell->count += 1;
	count_error(cell, at);
	faults = (u32)task->min_flt - thread->lens.minor_faults;
	if ((u32)faults)
		cell->minor_faults += (u32)faults;
	faults = (u32)task->maj_flt - thread->lens.major_faults;
	if ((u32)faults)
		cell->major_faults += (u32)faults;
	if (!thread->lens.entered_ns) {
		cell->skipped += 1;
		return;
	}
	if (unlikely(thread->lens.off_ns | thread->lens.is_off_cpu)) {
		lens_reconcile_switch(thread, task, this_cpu(), now);
		lens_add_wait(thread);
	}
	wall = now - thread->lens.entered_ns;
	if (entry && lens_is_sampled(thread))
		weight = lens_update_sampling(thread, cell, entry, wall);
	lens_add_time(at, cell, row, wall, weight, false);
	return;

uncounted:
	lens_reset_call(thread);
	if (in_band_is_on(thread))
		in_band_drop(thread->slot, true);
}

/*
 * seccomp or a tracer rejected the call, so only sys_exit sees it (v6.18 kernel/entry/common.c). It
 * has a time only if the thread has waited for the decision.
 */
static __always_inline void lens_sys_exit_denied(struct crossing *at)
{
	struct thread_state *thread = at->thread;
	struct task_struct *task = running_task(thread->task);
	u32 call = call_index(task, at->regs->orig_ax), effective;
	u32 *entry = NULL;
	struct cell *cell = cell_for(thread, call, &entry);

	if (!cell) {
		if (in_band_is_on(thread))
			in_band_drop(thread->slot, true);
		return;
	}
	cell->count += 1;
	cell->denied += 1;
	count_error(cell, at);
	if (!at->has_waited && !in_band_is_on(thread))
		return;
	at->now = bpf_ktime_get_ns();
	/* The thread's latest call that has taken effect stays the same. */
	effective = thread->call;
	thread->call = call;
	if (at->has_waited) {
		lens_reconcile_switch(thread, task, this_cpu(), at->now);
		lens_add_wait(thread);
		lens_add_time(at, cell, thread->row, at->now - thread->lens.entered_ns, 1, true);
	} else {
		in_band_record(at, 0, 0, true);
	}
	thread->call = effective;
}

/*
 * The end of the previous call was not seen. That call is a loss, and its times must not count for
 * the next one.
 */
static __always_inline void lens_abandon(struct thread_state *thread)
{
	count_loss(thread->session, LOSS_EXITS);
	lens_reset_call(thread);
	if (in_band_is_on(thread))
		in_band_drop(thread->slot, true);
}

/* The thread ends in a call. Its cell counts it as unfinished; its time is in the account. */
static __always_inline void lens_end_in_call(struct thread_state *thread, struct task_struct *task)
{
	u64 now = bpf_ktime_get_ns(), runqueue;
	u32 *entry = NULL;
	struct cell *cell = cell_for(thread, lens_call_of(thread), &entry);

	if (cell)
		cell->unfinished += 1;
	cell = lens_part_cell(thread, ACCOUNT_UNFINISHED);
	if (!cell)
		return;
	lens_reconcile_switch(thread, task, this_cpu(), now);
	lens_add_wait(thread);
	cell->count += 1;
	if (!thread->lens.entered_ns)
		return;
	cell->wall_ns += now - thread->lens.entered_ns;
	if (!thread->lens.off_ns)
		return;
	runqueue = lens_runqueue_wait(thread, task->sched_info.run_delay);
	cell->runqueue_ns += runqueue;
	cell->blocked_ns += thread->lens.off_ns - runqueue;
}

static __always_inline void lens_task_exit(struct thread_state *thread, struct task_struct *task)
{
	if (has(thread, LENS) && !thread->until_exec) {
		if (lens_is_in_unseen_call(thread))
			lens_add_current_life(thread->slot, ACCOUNT_UNFINISHED);
		else if (thread->in_call)
			lens_end_in_call(thread, task);
		lens_add_current_life(thread->slot, ACCOUNT_LIFE);
	}
	lens_slow_drop_stack(thread);
	lens_flame_drop_thread(thread);
	if (in_band_is_on(thread))
		in_band_drop(thread->slot, false);
	if (config.enabled & LENS_IN_BAND)
		in_band_forget(thread);
}

/* The thread executes another program, whose memory has no in-band records. */
static __always_inline void lens_exec(struct thread_state *thread)
{
	if (in_band_is_on(thread))
		in_band_drop(thread->slot, false);
	in_band_note_image(thread, bpf_get_current_task_btf());
	in_band_forget(thread);
}

/*
 * The first call of which the gate sees something ends. Either the thread was in it when it began
 * to count, or seccomp or a tracer has rejected it.
 */
static __always_inline void lens_sys_exit_unseen(struct thread_state *thread)
{
	lens_reconcile_beginning(thread, bpf_get_current_task_btf(), bpf_ktime_get_ns());
	if (lens_life_of(thread)->beginning & LIFE_BEGAN_IN_CALL)
		lens_add_current_life(thread->slot, ACCOUNT_UNFINISHED);
}

/* The thread is switched out, in a call or outside of calls. */
static __always_inline void lens_switch_out(struct switching *at)
{
	struct thread_state *thread = at->thread;
	struct task_struct *task = at->task;
	u64 run_delay, now;

	if (thread->until_exec)
		return;
	now = switch_ns(at);
	lens_reconcile_switch(thread, task, at->cpu, now);
	if (unlikely(thread->in_call == IN_CALL_BEFORE_LENS) ||
	    (!thread->in_call && !lens_begins_to_wait(at))) {
		lens_leave_outside(at);
		return;
	}
	run_delay = task->sched_info.run_delay;
	if (thread->lens.has_site)
		lens_record_sleep(thread, run_delay);
	if (in_band_is_on(thread)) {
		in_band_end_sleep(thread->slot, run_delay);
		if (at->state) {
			lens_take_own_stack(at->ctx);
			in_band_begin_sleep(thread->slot);
		}
	}
	if (!thread->lens.off_ns)
		thread->lens_switch.run_delay_first = run_delay;
	if (!thread->lens.entered_ns)
		thread->lens.entered_ns = now;
	thread->lens_switch.run_delay_last = run_delay;
	thread->lens.is_asleep = !!at->state;
	thread->lens_switch.switched_out_ns = now;
	thread->lens.is_off_cpu = 1;
	if (at->state && has(thread, LENS_WHY))
		why_begin_sleep(thread->slot);
}

/*
 * After a sleep in a call: takes the stack if it is time for one. Returns the blocking site; 0: no
 * stack was taken.
 */
static __always_inline u64 lens_take_site(struct switching *at, u64 off)
{
	struct thread_state *thread = at->thread;
	struct lens_cold *cold = lens_cold_of(thread);
	u64 left = switch_ns(at) - off, slept = off, waited;
	struct stack *stack;
	bool long_sleep;

	cold->unsampled_sleeps += 1;
	cold->unsampled_sleep_ns += off;
	cold->site_budget_ns -= off;
	if (has(thread, LENS_SLOW | LENS_WHY)) {
		waited = lens_waited(at);
		slept = waited < off ? off - waited : 0;
	}
	long_sleep = lens_slow_is_longest_sleep(thread, slept);
	/* The causes of a sleep belong to its own site. */
	if (cold->site_budget_ns > 0 && !long_sleep && !has(thread, LENS_WHY))
		return 0;
	stack = lens_take_stack(at->task);
	if (stack && long_sleep)
		lens_slow_save_stack(thread, stack, slept);
	thread->lens.has_site = 1;
	cold->site = stack ? lens_site_of_stack(stack) : SITE_UNKNOWN;
	cold->site_off_ns = cold->unsampled_sleep_ns;
	cold->site_sleeps = cold->unsampled_sleeps;
	cold->unsampled_sleep_ns = 0;
	cold->unsampled_sleeps = 0;
	if (has(thread, LENS_WHY)) {
		why_end_sleep(thread->slot, left, left + slept);
		if (long_sleep)
			why_save_longest(thread->slot, left, left + slept);
	}
	/*
	 * Uniform between half a budget and one and a half, so that sampling does not fall into
	 * step with the program.
	 */
	cold->site_budget_ns = SITE_BUDGET_NS / 2 + bpf_get_prandom_u32() % SITE_BUDGET_NS;
	return cold->site;
}

/* The thread is switched in, still in its call: its stack and its time off the CPU are complete. */
static __always_inline void lens_switch_in(struct switching *at)
{
	struct thread_state *thread = at->thread;
	u64 now, off, site = 0;

	if (!thread->lens.is_off_cpu) {
		lens_return_outside(at);
		if (has(thread, LENS_WHY))
			why_know_number(at->task, thread->slot);
		return;
	}
	now = switch_ns(at);
	off = now - thread->lens_switch.switched_out_ns;
	thread->lens.is_off_cpu = 0;
	thread->lens_switch.switched_in_ns = now;
	if (has(thread, LENS_FLAME))
		lens_flame_interval(at, off);
	thread->lens.off_ns += off;
	lens_life_of(thread)->off_ns += off;
	if (thread->lens.is_asleep) {
		if (in_band_is_on(thread))
			in_band_add_sleep(thread->slot, off);
		if (has(thread, LENS_SITES | LENS_SLOW))
			site = lens_take_site(at, off);
	}
	if (!has(thread, LENS_TRACE))
		return;
	if (site && has(thread, LENS_WHY))
		lens_trace_waker(thread->slot, now);
	lens_trace_wait(thread->slot, now - lens_waited(at), now, site);
}

#endif
