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
#include "gate/rows.bpf.h"
#include "lens/cells.bpf.h"
#include "lens/state.bpf.h"

/* include/linux/sched.h; not in BTF */
#define STATE_INTERRUPTIBLE 0x1
#define STATE_TRACED 0x8
/* include/linux/sched/jobctl.h, JOBCTL_TRAP_FREEZE: the control group of the task is frozen. */
#define JOBCTL_TRAP_FREEZE (1UL << 23)
/* include/linux/sched/prio.h: below it are the priorities of real-time tasks. */
#define MAX_RT_PRIO 100
/* include/uapi/asm-generic/errno.h */
#define ENOSYS 38

#define NS_PER_MS 1000000

struct lens_life lens_lives[THREADS] SEC(".bss.lens_lives");

static __always_inline struct lens_life *lens_life_of(struct thread_state *thread)
{
	return &lens_lives[thread->slot & (THREADS - 1)];
}

/*
 * Whether a task that is not in user space is in a call or is about to begin one. The kernel sets
 * the result of a call to ENOSYS before it begins, and the call's number to -1 outside of calls
 * (v6.18 arch/x86/entry/entry_64.S).
 */
static __always_inline bool lens_has_call(struct task_struct *task)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(task);

	return (s32)regs->orig_ax >= 0 && (s32)regs->ax == -ENOSYS;
}

/*
 * Whether a task that is not in user space has left it by an exception or an interrupt. Their entry
 * sets the number of the call to -1 (v6.18 arch/x86/entry/entry_64.S, idtentry and idtentry_body),
 * as does rt_sigreturn.
 */
static __always_inline bool lens_has_exception(struct task_struct *task)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(task);

	return (s32)regs->orig_ax < 0;
}

/* In a call whose beginning the lens has not seen, and whose end the gate has not seen either. */
static __always_inline bool lens_is_in_unseen_call(struct thread_state *thread)
{
	return thread->in_call == IN_CALL_BEFORE_LENS ||
	       (!thread->generation && lens_life_of(thread)->beginning & LIFE_BEGAN_IN_CALL);
}

/*
 * Sets how far the gate's clock is ahead of the scheduler's, by the thread's latest switch in.
 * `cpu`: the processor on which it was switched in.
 */
static __always_inline void lens_sync_clock(struct thread_state *thread, struct task_struct *task,
					    struct cpu_state *cpu)
{
	if (thread->lens_switch.switched_in_ns)
		cpu->clock_offset =
			thread->lens_switch.switched_in_ns - task->sched_info.last_arrival;
	thread->lens_switch.switched_in_ns = 0;
}

/*
 * The processor time of a task until `now`. The kernel updates its counter at switches and ticks.
 * For a task that runs, the time since its latest switch in is added to the counter's value then,
 * which only the fair scheduler keeps. Returns false if that time is not known: the gate has not
 * seen a switch on the task's processor yet.
 */
static __always_inline bool lens_processor_ns(struct task_struct *task, u64 now, u64 *ns)
{
	s64 offset = cpus[task->thread_info.cpu & (CPUS - 1)].clock_offset;
	u64 arrival = task->sched_info.last_arrival + offset;

	*ns = task->se.sum_exec_runtime;
	if (!task->on_cpu || task->prio < MAX_RT_PRIO)
		return true;
	if (offset && arrival <= now)
		*ns = task->se.prev_sum_exec_runtime + now - arrival;
	return offset;
}

/* What a thread that is off the processor outside of a call waits for. `state`: as in switching. */
static __always_inline u32 lens_part_of_wait(struct task_struct *task, u32 state, bool is_held)
{
	if (!state) {
		if (bpf_core_field_exists(task->throttled) && task->throttled)
			return ACCOUNT_THROTTLED;
		return ACCOUNT_READY;
	}
	if (state & (STATE_STOPPED | STATE_TRACED))
		return is_held ? ACCOUNT_HELD : ACCOUNT_STOPPED;
	if (state & STATE_INTERRUPTIBLE && task->jobctl & JOBCTL_TRAP_FREEZE)
		return ACCOUNT_STOPPED;
	return lens_has_exception(task) ? ACCOUNT_FAULTING : ACCOUNT_ASLEEP;
}

static __always_inline void lens_begin_outside(struct lens_life *life, struct task_struct *task,
					       u32 part, u64 now)
{
	life->left_ns = now;
	life->left_delay_ns = task->sched_info.run_delay;
	life->left_runs = (u32)task->sched_info.pcount;
	life->left_part = part - ACCOUNT_LIFE;
}

/* The thread counts from now on. It may run, or be in a wait that began before. */
static __noinline int lens_begin_life(struct thread_state *thread, struct task_struct *task,
				      bool is_held)
{
	struct lens_life *life = lens_life_of(thread);
	bool is_new = !task->on_cpu && !task->sched_info.last_arrival;
	u64 now, processor;

	if (task == bpf_get_current_task_btf())
		lens_sync_clock(thread, task, this_cpu());
	now = bpf_ktime_get_ns();
	life->began_ns = 0;
	life->left_ns = 0;
	life->beginning = 0;
	if (task->flags & (PF_IO_WORKER | PF_USER_WORKER))
		return 0;
	lens_processor_ns(task, now, &processor);
	life->processor_ns = processor;
	life->off_ns = thread->lens.is_off_cpu ? thread->lens_switch.switched_out_ns - now : 0;
	life->minor_faults = task->min_flt;
	life->major_faults = task->maj_flt;
	life->user_ms = task->utime / NS_PER_MS;
	life->system_ms = task->stime / NS_PER_MS;
	if (!thread->in_call && !thread->generation && !is_new && lens_has_call(task))
		life->beginning |= LIFE_BEGAN_IN_CALL;
	life->began_ns = now;
	/* What it does before does not count. */
	if (thread->until_exec)
		life->beginning |= LIFE_BEGAN_IN_EXECVE;
	else if (is_new)
		lens_begin_outside(life, task, ACCOUNT_READY, now);
	else if (!task->on_cpu && !thread->in_call && !(life->beginning & LIFE_BEGAN_IN_CALL))
		lens_begin_outside(life, task, lens_part_of_wait(task, task->__state, is_held),
				   now);
	return 0;
}

static __always_inline struct cell *lens_part_cell(struct thread_state *thread, u32 part)
{
	u32 *entry = NULL;

	return cell_for(thread, part, &entry);
}

/*
 * A new thread has got a processor for the first time, after this wait. From now on, it is in an
 * unseen call, because it has yet to return from fork.
 */
static __noinline int lens_begin_to_run(struct thread_state *thread, u64 waited)
{
	struct lens_life *life = lens_life_of(thread);
	struct cell *ready = lens_part_cell(thread, ACCOUNT_READY);
	struct cell *whole = lens_part_cell(thread, ACCOUNT_LIFE);

	if (ready && whole) {
		ready->count += 1;
		ready->wall_ns += waited;
		ready->runqueue_ns += waited;
		whole->wall_ns += waited;
		life->began_ns += waited;
	}
	life->left_ns = 0;
	if (!thread->in_call && !thread->generation)
		life->beginning |= LIFE_BEGAN_IN_CALL;
	return 0;
}

/* Calls lens_begin_to_run() for a new thread whose first switch in was not reported. */
static __always_inline void lens_reconcile_beginning(struct thread_state *thread,
						     struct task_struct *task, u64 now)
{
	struct lens_life *life = lens_life_of(thread);
	u64 waited = task->sched_info.run_delay;

	if (likely(!life->left_ns || life->left_runs))
		return;
	lens_begin_to_run(thread, waited < now - life->left_ns ? waited : now - life->left_ns);
}

/* The increase of a kernel's counter in ns since the last time. `counted_ms`: its value then. */
static __always_inline u64 lens_increase(u64 ns, u32 *counted_ms)
{
	u32 now = ns / NS_PER_MS, before;

	before = READ_ONCE(*counted_ms);
	/* A session's end may read the counters of a thread that ends on another processor. */
	if ((s32)(now - before) <= 0 ||
	    __sync_val_compare_and_swap(counted_ms, before, now) != before)
		return 0;
	return (u64)(now - before) * NS_PER_MS;
}

/* Adds the ticks that have met a thread since the last time to its account. */
static __always_inline void lens_add_ticks(struct lens_life *life, struct task_struct *task,
					   struct cell *cell)
{
	cell->sampled_ns += lens_increase(task->utime, &life->user_ms);
	cell->sampled_ns2 += lens_increase(task->stime, &life->system_ms);
}

/* As before, of a thread that has not ended. */
static __noinline int lens_read_ticks(struct thread_state *thread, struct task_struct *task)
{
	struct lens_life *life = lens_life_of(thread);
	struct cell *cell = life->began_ns ? lens_part_cell(thread, ACCOUNT_LIFE) : NULL;

	if (cell)
		lens_add_ticks(life, task, cell);
	return 0;
}

/*
 * Adds a thread's time from the beginning of its life until `now` to a part of its account.
 * `ended`: 1 if the life ends, 0 otherwise.
 */
static __noinline int lens_add_life(struct thread_state *thread, struct task_struct *task, u32 part,
				    u64 now, u32 ended)
{
	struct lens_life *life = lens_life_of(thread);
	u64 wall = now - life->began_ns, known = life->off_ns, processor;
	struct cell *cell;
	bool is_known;

	if (!life->began_ns)
		return 0;
	cell = lens_part_cell(thread, part);
	if (!cell)
		return 0;
	cell->count += ended;
	cell->wall_ns += wall;
	cell->minor_faults += (u32)task->min_flt - life->minor_faults;
	cell->major_faults += (u32)task->maj_flt - life->major_faults;
	is_known = lens_processor_ns(task, now, &processor);
	processor -= life->processor_ns;
	if (part == ACCOUNT_LIFE) {
		cell->runqueue_ns += processor;
		lens_add_ticks(life, task, cell);
	}
	if (!is_known)
		return 0;
	known += processor;
	if (!task->on_cpu) {
		if (thread->lens.is_off_cpu)
			known += now - thread->lens_switch.switched_out_ns;
		else if (life->left_ns)
			known += now - life->left_ns;
	}
	if ((s64)(wall - known) <= 0)
		return 0;
	/* Of a call that was not seen from its beginning, the sleeps were not seen either. */
	if (part == ACCOUNT_LIFE)
		cell->blocked_ns += wall - known;
	else
		life->off_ns += wall - known;
	return 0;
}

/*
 * The row that counts a call in IN_OUTER_CALL. If the thread does not count in that row any more,
 * the call counts in the next outer row. 0: no session that has the thread had the call's
 * beginning.
 */
static __always_inline u32 lens_outer_row(struct thread_state *thread)
{
	u32 outer = lens_life_of(thread)->outer_row, row = thread->row, i;

	if (!outer)
		return 0;
	for (i = 0; i < NESTED_SESSIONS && row; i++) {
		if (row == outer)
			return outer;
		row = parent_row(row);
	}
	return parent_row(thread->row);
}

/* Adds the time of a call of an outer row, since the thread began to count in its own row. */
static __always_inline u32 lens_add_outer_call(struct thread_state *thread,
					       struct task_struct *task, u64 now)
{
	u32 row = lens_outer_row(thread), *entry = NULL;
	struct lens_life *life = lens_life_of(thread);
	struct cell *cell;

	lens_add_life(thread, task, ACCOUNT_OUTER, now, 0);
	cell = row && life->began_ns ? cell_of(thread, row, ACCOUNT_REPEATED, &entry) : NULL;
	if (cell)
		cell->wall_ns += now - life->began_ns;
	return row;
}

/*
 * The current thread ends a call of an outer row. Returns that row; 0: there is none any more. This
 * is a global function, so that it is verified once, as is the next one.
 */
__noinline int lens_end_outer_call(u32 slot)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread = thread_at(slot);

	if (!(config.enabled & LENS))
		return 0;
	lens_sync_clock(thread, task, this_cpu());
	return lens_add_outer_call(thread, task, bpf_ktime_get_ns());
}

/* Adds the current thread's time from the beginning of its life to a part of its account. */
__noinline int lens_add_current_life(u32 slot, u32 part)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread = thread_at(slot);

	if (!(config.enabled & LENS))
		return 0;
	lens_sync_clock(thread, task, this_cpu());
	lens_add_life(thread, task, part, bpf_ktime_get_ns(), part == ACCOUNT_LIFE);
	return 0;
}

/*
 * The current thread executes a program, and is about to count in the row of another command. The
 * call will count there as a whole, so the life in its row ends where the call began.
 */
__noinline int lens_split_life(u32 slot)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread = thread_at(slot);
	struct lens_life *life = lens_life_of(thread);
	u32 minor = thread->lens.minor_faults, major = thread->lens.major_faults;
	u64 began = lens_cold_of(thread)->waits_since_ns, off = thread->lens.off_ns, now, processor;
	s64 unaccounted;
	struct cell *cell;
	bool is_known;

	if (!(config.enabled & LENS) || !life->began_ns)
		return 0;
	if (life->beginning & LIFE_BEGAN_IN_EXECVE) {
		life->beginning &= ~LIFE_BEGAN_IN_EXECVE;
		return 0;
	}
	lens_sync_clock(thread, task, this_cpu());
	now = bpf_ktime_get_ns();
	if (!began)
		began = thread->lens.entered_ns;
	/* The call does not count in this row. */
	if (thread->in_call != IN_CALL || began < life->began_ns) {
		if (lens_is_in_unseen_call(thread))
			lens_add_life(thread, task, ACCOUNT_UNFINISHED, now, 0);
		if (thread->in_call == IN_OUTER_CALL)
			lens_add_outer_call(thread, task, now);
		began = now;
		off = 0;
		minor = task->min_flt;
		major = task->maj_flt;
	}
	is_known = lens_processor_ns(task, now, &processor);
	/* In the call, it was on a processor whenever it was not seen to be off it. */
	processor -= now - began - off;
	cell = lens_part_cell(thread, ACCOUNT_LIFE);
	if (cell) {
		cell->wall_ns += began - life->began_ns;
		unaccounted = began - life->began_ns - (processor - life->processor_ns) -
			      (life->off_ns - off);
		if (is_known && unaccounted > 0)
			cell->blocked_ns += unaccounted;
		cell->minor_faults += minor - life->minor_faults;
		cell->major_faults += major - life->major_faults;
		cell->runqueue_ns += processor - life->processor_ns;
		/* With those of the call so far. */
		lens_add_ticks(life, task, cell);
	}
	life->began_ns = began;
	life->processor_ns = processor;
	life->off_ns = off;
	life->minor_faults = minor;
	life->major_faults = major;
	return 0;
}

static __always_inline void lens_leave_outside(struct switching *at)
{
	struct lens_life *life = lens_life_of(at->thread);

	lens_reconcile_beginning(at->thread, at->task, switch_ns(at));
	/* Of a call that was not seen, the whole time is added when it ends. */
	if (!life->began_ns || lens_is_in_unseen_call(at->thread))
		return;
	lens_begin_outside(life, at->task, lens_part_of_wait(at->task, at->state, at->is_held),
			   switch_ns(at));
}

/*
 * Adds a wait outside of calls. `waited`: the increase of the scheduler's counter of waits for a
 * processor. That includes the time in which a thread is throttled, so how long a thread has waited
 * after its limit was lifted is not known.
 */
static __always_inline void lens_add_outside(struct thread_state *thread, struct lens_life *life,
					     u64 off, u64 waited)
{
	u32 part = ACCOUNT_LIFE + life->left_part;
	struct cell *cell = lens_part_cell(thread, part);

	if (!cell)
		return;
	if (part == ACCOUNT_READY)
		waited = off;
	else if (part == ACCOUNT_THROTTLED)
		waited = 0;
	else if (waited > off)
		waited = off;
	cell->count += 1;
	cell->wall_ns += off;
	cell->runqueue_ns += waited;
	cell->blocked_ns += off - waited;
}

static __always_inline void lens_return_outside(struct switching *at)
{
	struct lens_life *life = lens_life_of(at->thread);
	u64 now = switch_ns(at), left = life->left_ns, waited;

	at->thread->lens_switch.switched_in_ns = now;
	if (left && !at->task->sched_info.pcount) {
		lens_begin_to_run(at->thread, now - left);
		return;
	}
	lens_reconcile_beginning(at->thread, at->task, now);
	left = life->left_ns;
	life->left_ns = 0;
	/* The second case: it has run since, before the session began to see its switches. */
	if (!left || life->left_runs != (u32)at->task->sched_info.pcount)
		return;
	/*
	 * The kernel adds the time in the queue of this processor right after this event. After a
	 * migration, it may count from the latest tick of the processor.
	 */
	waited = at->task->sched_info.run_delay - life->left_delay_ns + now - queued_ns(at);
	life->off_ns += now - left;
	lens_add_outside(at->thread, life, now - left, waited);
}

/*
 * A session takes over a thread without a lens, which is not the current one. Without a lens, the
 * gate need not have noted the end of a call, so the thread's registers decide. While the thread
 * runs, its registers say nothing: if it is in a call then, the call counts, and its time begins
 * when the thread first leaves the processor.
 */
static __always_inline void lens_note_unseen_call(struct thread_state *thread,
						  struct task_struct *task)
{
	bool is_in_call;
	u32 word;

	if (!(config.enabled & LENS))
		return;
	lens_reset_call(thread);
	if (task->on_cpu)
		return;
	word = call_word(thread);
	is_in_call = state_in_call_word(word) >= IN_CALL && lens_has_call(task);
	replace_call(thread, word, word, is_in_call ? IN_CALL_BEFORE_LENS : NOT_IN_CALL);
}

/*
 * A session takes the thread over, which is not the current one: the account until now is that of
 * the outer session alone. That session also has the cells of the new row.
 */
static __noinline int lens_leave_row(struct thread_state *thread, struct task_struct *task)
{
	struct lens_life *life = lens_life_of(thread);
	u64 now = bpf_ktime_get_ns();
	u32 word;

	if (life->left_ns && !task->on_cpu && life->left_runs == (u32)task->sched_info.pcount)
		lens_add_outside(thread, life, now - life->left_ns,
				 task->sched_info.run_delay - life->left_delay_ns);
	if (lens_is_in_unseen_call(thread))
		lens_add_life(thread, task, ACCOUNT_UNFINISHED, now, 0);
	if (thread->in_call == IN_OUTER_CALL)
		lens_add_outer_call(thread, task, now);
	lens_add_life(thread, task, ACCOUNT_LIFE, now, 0);
	word = call_word(thread);
	if (state_in_call_word(word) == IN_CALL) {
		life->outer_row = thread->row;
		replace_call(thread, word, word, IN_OUTER_CALL);
	}
	return 0;
}

#endif
