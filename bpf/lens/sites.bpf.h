/* SPDX-License-Identifier: GPL-2.0 */
/* Blocking sites: the kernel functions in which calls sleep. */
#ifndef TOLLGATE_LENS_SITES_BPF_H
#define TOLLGATE_LENS_SITES_BPF_H

#include "gate/events.bpf.h"
#include "lens/state.bpf.h"
#include "lens/waits.bpf.h"
#include "wire/lens.h"

/*
 * A stack is taken about once for this much sleeping, so that stacks (0.7 us each) cost at most a
 * few percent of that time, however short the sleeps are. Each longer sleep gets its own stack.
 */
#define SITE_BUDGET_NS 20000

#define SITE_FRAMES 16

/* An entry for each combination of row, call and blocking site, made when it is first seen. */
HASH_MAP(lens_sites, 16384, struct site_key, struct site_value);

PERCPU_MAP(lens_stack_scratch, 1, struct stack);

/* do_syscall_64 and the entry code, which are the outermost functions of each call. */
#define ENTRY_FRAMES 2

/*
 * The kernel leaves the innermost functions of the scheduler out of the stack of a sleeping task
 * (v6.18 kernel/stacktrace.c), and a sleep that continues after a signal has no others. The
 * function that continues it stands for them (restart_syscall(2)).
 */
static __always_inline void lens_add_restarted(struct stack *stack, struct task_struct *task)
{
	stack->address[2] = stack->address[1];
	stack->address[1] = stack->address[0];
	stack->address[0] = (u64)BPF_CORE_READ(task, restart_block.fn);
	stack->frames++;
}

/* Fills `stack` with the stack of a sleeping task. Returns false if it cannot be read. */
static __always_inline bool lens_fill_stack(struct stack *stack, struct task_struct *task)
{
	long bytes = bpf_get_task_stack(task, stack->address, sizeof(stack->address), 0);

	stack->frames = 0;
	if (bytes <= 0)
		return false;
	stack->frames = bytes / sizeof(stack->address[0]);
	if (stack->frames <= ENTRY_FRAMES)
		lens_add_restarted(stack, task);
	return true;
}

static __always_inline struct stack *lens_take_stack(struct task_struct *task)
{
	u32 zero = 0;
	struct stack *stack = bpf_map_lookup_elem(&lens_stack_scratch, &zero);

	return stack && lens_fill_stack(stack, task) ? stack : NULL;
}

/* Whether the function at this address sleeps for its callers. */
static __always_inline bool is_wait_text(u64 address)
{
	u32 i;

#pragma unroll
	for (i = 0; i < WAIT_TEXTS; i++) {
		if (address >= config.wait_texts[i].start && address < config.wait_texts[i].end)
			return true;
	}
	return false;
}

/*
 * Takes the stack of the running task, which is being switched out, in the scratch memory of this
 * processor. It begins with the functions that have called the program.
 */
static __always_inline void lens_take_own_stack(void *ctx)
{
	u32 zero = 0;
	struct stack *stack = bpf_map_lookup_elem(&lens_stack_scratch, &zero);
	long bytes;

	if (!stack)
		return;
	bytes = bpf_get_stack(ctx, stack->address, sizeof(stack->address), 0);
	stack->frames = bytes > 0 ? bytes / sizeof(stack->address[0]) : 0;
}

/* The same site as that of lens_site_of_stack(), from lens_take_own_stack(). */
static __always_inline u64 lens_site_of_own_stack(struct task_struct *task)
{
	u32 zero = 0, i;
	struct stack *stack = bpf_map_lookup_elem(&lens_stack_scratch, &zero);
	bool waits, waited = false;
	u64 address;

	if (!stack)
		return SITE_UNKNOWN;
	for (i = 0; i < STACK_DEPTH && i < stack->frames; i++) {
		address = stack->address[i];
		waits = is_wait_text(address);
		if (!waits && waited)
			break;
		waited = waits;
	}
	if (!waited)
		return SITE_UNKNOWN;
	/* A sleep that continues after a signal: see lens_add_restarted(). */
	if (i + ENTRY_FRAMES >= stack->frames && stack->frames < STACK_DEPTH)
		return (u64)BPF_CORE_READ(task, restart_block.fn);
	return i < STACK_DEPTH ? address : SITE_UNKNOWN;
}

/* First frame of a sleeping task's stack that does not sleep for its caller. */
static __always_inline u64 lens_site_of_stack(struct stack *stack)
{
	/* All functions of a sleep that continues are the scheduler's. */
	if (stack->frames <= ENTRY_FRAMES + 1)
		return stack->address[0];
	for (u32 i = 0; i < SITE_FRAMES && i < stack->frames; i++) {
		u64 address = stack->address[i];

		if (!is_wait_text(address))
			return address;
	}
	return SITE_UNKNOWN;
}

/*
 * The wait for a processor that ends now. The kernel adds the time in the queue of this processor
 * to its counter right after this event.
 */
static __always_inline u64 lens_waited(struct switching *at)
{
	return at->task->sched_info.run_delay - at->thread->lens_switch.run_delay_last +
	       switch_ns(at) - queued_ns(at);
}

/*
 * Records the pending blocking site, once its wait for a CPU is known. Returns the time without
 * that wait.
 */
static __always_inline u64 lens_record_site(struct thread_state *thread, u64 run_delay)
{
	/* `fresh` is not on the stack, because a switch has little stack left. */
	static const struct site_value fresh;
	struct lens_cold *cold = lens_cold_of(thread);
	struct site_key key = {
		.address = cold->site,
		.call = lens_call_of(thread),
		.row = thread->row,
	};
	struct site_value *value;
	u64 waited = run_delay - thread->lens_switch.run_delay_last;
	u64 blocked = cold->site_off_ns > waited ? cold->site_off_ns - waited : 0;

	thread->lens.has_site = 0;
	value = bpf_map_lookup_elem(&lens_sites, &key);
	if (!value) {
		bpf_map_update_elem(&lens_sites, &key, &fresh, BPF_NOEXIST);
		value = bpf_map_lookup_elem(&lens_sites, &key);
		if (!value) {
			count_loss(thread->session, LOSS_SITES_FULL);
			return blocked;
		}
	}
	__sync_fetch_and_add(&value->blocked_ns, blocked);
	__sync_fetch_and_add(&value->sleeps, cold->site_sleeps);
	return blocked;
}

#endif
