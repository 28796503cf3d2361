/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The account of a thread: how long it lives, and what it waits for outside of calls. What is left
 * of a life after its calls and these waits is its time on a processor outside of calls. What the
 * scheduler has not counted as processor time is unaccounted: a switch was not reported, or the
 * virtual machine did not run.
 */
#ifndef TOLLGATE_LENS_ACCOUNT_BPF_H
#define TOLLGATE_LENS_ACCOUNT_BPF_H

#include "gate/events.bpf.h"
#include "lens/cells.bpf.h"
#include "lens/state.bpf.h"

/* include/linux/sched.h; not in BTF */
#define STATE_INTERRUPTIBLE 0x1
#define STATE_TRACED 0x8
/* include/linux/sched/jobctl.h, JOBCTL_TRAP_FREEZE: the control group of the task is frozen. */
#define JOBCTL_TRAP_FREEZE (1UL << 23)
/* include/linux/sched/prio.h: below it are the priorities of real-time tasks. */
#define MAX_RT_PRIO 100

/*
 * A preempted thread that is off the processor for this much longer than it has waited for one was
 * throttled. The difference of the clocks is below a microsecond, and the kernel throttles for
 * milliseconds at a time (v6.18 kernel/sched/fair.c, sched_cfs_bandwidth_slice: 5 ms).
 */
#define THROTTLED_NS 100000

struct lens_life lens_lives[THREADS] SEC(".bss.lens_lives");

static __always_inline struct lens_life *lens_life_of(struct thread_state *thread)
{
	return &lens_lives[thread->slot & (THREADS - 1)];
}

/*
 * The processor time of a task until `now`. The kernel updates its counter at switches and ticks.
 * For the current task, the time since its latest switch in is added to the counter's value then,
 * which only the fair scheduler keeps.
 */
static __always_inline u64 lens_processor_ns(struct task_struct *task, bool is_current, u64 now)
{
	s64 offset = this_cpu()->clock_offset;
	u64 arrival = task->sched_info.last_arrival + offset;

	if (!is_current || !offset || task->prio < MAX_RT_PRIO || arrival > now)
		return task->se.sum_exec_runtime;
	return task->se.prev_sum_exec_runtime + now - arrival;
}

/* The thread counts from now on. */
static __always_inline void lens_begin_life(struct thread_state *thread, struct task_struct *task,
					    bool is_current)
{
	struct lens_life *life = lens_life_of(thread);

	life->began_ns = bpf_ktime_get_ns();
	life->processor_ns = lens_processor_ns(task, is_current, life->began_ns);
	life->off_ns = 0;
	life->minor_faults = task->min_flt;
	life->major_faults = task->maj_flt;
	life->left_ns = 0;
}

static __always_inline struct cell *lens_part_cell(struct thread_state *thread, u32 part)
{
	u32 *entry = NULL;

	return cell_for(thread, part, &entry);
}

/* Adds a thread's time from the beginning of its life until now to a part of its account. */
static __always_inline void lens_add_life(struct thread_state *thread, struct task_struct *task,
					  u32 part, bool is_current)
{
	struct lens_life *life = lens_life_of(thread);
	u64 now = bpf_ktime_get_ns(), wall = now - life->began_ns, known;
	struct cell *cell;

	if (!life->began_ns)
		return;
	cell = lens_part_cell(thread, part);
	if (!cell)
		return;
	cell->count += 1;
	cell->wall_ns += wall;
	cell->minor_faults += (u32)task->min_flt - life->minor_faults;
	cell->major_faults += (u32)task->maj_flt - life->major_faults;
	known = lens_processor_ns(task, is_current, now) - life->processor_ns + life->off_ns;
	if (known >= wall)
		return;
	/* Of a call that was not seen from its beginning, the sleeps were not seen either. */
	if (part == ACCOUNT_LIFE)
		cell->blocked_ns += wall - known;
	else
		life->off_ns += wall - known;
}

/* The same for the current thread. This is a global function, so that it is verified once. */
__noinline int lens_add_current_life(u32 slot, u32 part)
{
	if (!(config.enabled & LENS))
		return 0;
	lens_add_life(thread_at(slot), bpf_get_current_task_btf(), part, true);
	return 0;
}

/* What a thread that is switched out outside of a call waits for. */
static __always_inline u32 lens_part_of_wait(struct switching *at)
{
	if (!at->state)
		return ACCOUNT_THROTTLED;
	if (at->state & (STATE_STOPPED | STATE_TRACED))
		return at->is_held ? ACCOUNT_HELD : ACCOUNT_STOPPED;
	if (at->state & STATE_INTERRUPTIBLE && at->task->jobctl & JOBCTL_TRAP_FREEZE)
		return ACCOUNT_STOPPED;
	return ACCOUNT_FAULTS;
}

static __always_inline void lens_leave_outside(struct switching *at)
{
	struct lens_life *life = lens_life_of(at->thread);

	life->left_ns = switch_ns(at);
	life->left_delay_ns = at->task->sched_info.run_delay;
	life->left_part = lens_part_of_wait(at);
}

static __always_inline void lens_return_outside(struct switching *at)
{
	struct lens_life *life = lens_life_of(at->thread);
	u64 now, off, queued, waited;
	struct cell *cell;
	u32 part;

	if (!life->left_ns)
		return;
	now = switch_ns(at);
	off = now - life->left_ns;
	at->thread->lens_switch.switched_in_ns = now;
	/*
	 * The kernel adds the time in the queue of this processor right after this event. After a
	 * migration, it may count from the latest tick of the processor.
	 */
	waited = at->task->sched_info.run_delay - life->left_delay_ns;
	queued = at->task->sched_info.last_queued + at->cpu->clock_offset;
	if (at->task->sched_info.last_queued && queued < now)
		waited += now - queued;
	waited = waited < off ? waited : off;
	life->left_ns = 0;
	life->off_ns += off;
	part = life->left_part;
	if (part == ACCOUNT_THROTTLED &&
	    (!at->cpu->clock_offset || off - waited < THROTTLED_NS)) {
		part = ACCOUNT_READY;
		waited = off;
	}
	cell = lens_part_cell(at->thread, part);
	if (!cell)
		return;
	cell->count += 1;
	cell->wall_ns += off;
	cell->runqueue_ns += waited;
	cell->blocked_ns += off - waited;
}

#endif
