/* SPDX-License-Identifier: GPL-2.0 */
/* LENS_WHY: who wakes a thread. This is found when it is woken, in the context of the waker. */
#ifndef TOLLGATE_LENS_WHY_WAKERS_BPF_H
#define TOLLGATE_LENS_WHY_WAKERS_BPF_H

#include "lens/sites.bpf.h"
#include "lens/why_state.bpf.h"

/* arch/x86/include/asm/page_64_types.h, without KASAN */
#define KERNEL_STACK_BYTES 16384

enum why_stack_flag {
	/* The function that only passes the wake-up on was found. */
	STACK_HAS_WAKE = 1 << 0,
	STACK_HAS_SOFTIRQ = 1 << 1,
	STACK_HAS_INTERRUPT = 1 << 2,
	/*
	 * The thread that runs here has called softirqs itself, for example because it sends a
	 * packet over loopback.
	 */
	STACK_RUNS_SOFTIRQ = 1 << 3,
};

/* The stack of a waker, and what it shows: the verifier need not follow what is in memory. */
struct why_waker_stack {
	struct stack stack;
	/* The first function that does not only pass the wake-up on; 0: none was found. */
	u64 function;
	/* Bits of enum why_stack_flag. */
	u64 flags;
};

PERCPU_MAP(why_stack_scratch, 1, struct why_waker_stack);

static __always_inline bool is_within(u64 address, const volatile struct address_range *range)
{
	return address >= range->start && address < range->end;
}

static __always_inline bool only_passes_on(u64 address)
{
	return is_within(address, &config.why.wakes[0]) ||
	       is_within(address, &config.why.wakes[1]) || is_within(address, &config.why.wakes[2]);
}

struct why_frames {
	struct why_waker_stack *waker;
};

/* Returns 1 if the other frames are those of what was interrupted, or are not needed. */
static long why_read_frame(u32 frame, struct why_frames *frames)
{
	struct why_waker_stack *waker = frames->waker;
	u64 address = waker->stack.address[frame & (STACK_DEPTH - 1)];

	if (!waker->function) {
		if (only_passes_on(address))
			waker->flags |= STACK_HAS_WAKE;
		else if (waker->flags & STACK_HAS_WAKE)
			waker->function = address;
	}
	if (is_within(address, &config.why.softirqs)) {
		waker->flags |= STACK_HAS_SOFTIRQ;
	} else if (is_within(address, &config.why.bh_enable)) {
		if (waker->flags & STACK_HAS_SOFTIRQ) {
			waker->flags |= STACK_RUNS_SOFTIRQ;
			return 1;
		}
	} else if (is_within(address, &config.why.entries) &&
		   !is_within(address, &config.why.page_fault)) {
		waker->flags |= STACK_HAS_INTERRUPT;
		return 1;
	}
	return 0;
}

/*
 * Whether the program runs on the stack of the task. Interrupts of the kernel and softirqs have a
 * stack of their own, and those of user space are not in a call.
 */
static __always_inline bool is_on_task_stack(void *ctx, struct why_waker_stack *scratch,
					     struct task_struct *task)
{
	volatile u64 *saved = &scratch->function;

	/* See resync_current(): what was read from memory is a number. */
	*saved = (u64)ctx;
	return *saved - (u64)task->stack < KERNEL_STACK_BYTES;
}

/* What the running task is, outside of interrupts. */
static __always_inline u32 why_kind_of(struct task_struct *task)
{
	if (task->flags & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER))
		return WHY_KERNEL_THREAD;
	return lens_has_call(task) ? WHY_CALL : WHY_OUTSIDE;
}

/*
 * The running task wakes the thread in `slot`. It is a global function, so that the verifier checks
 * it once, as are the others. `is_in_call`: it does so in a call, and no stack was taken.
 */
__noinline int why_woken(u32 slot, u32 is_in_call)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 zero = 0;
	struct why_waker_stack *stack = bpf_map_lookup_elem(&why_stack_scratch, &zero);
	struct why_frames frames = { .waker = stack };
	struct why_thread *why = why_of(slot);
	struct why_party *waker;
	struct pt_regs *regs;
	u64 flags;

	if (!(config.enabled & LENS_WHY) || !why || !stack)
		return 0;
	waker = &why->current.waker;
	if (has(thread_at(slot), LENS_TRACE))
		why->woken_ns = bpf_ktime_get_ns();
	stack->function = 0;
	stack->flags = 0;
	if (!is_in_call)
		bpf_loop(stack->stack.frames, why_read_frame, &frames, 0);
	flags = stack->flags;
	waker->function = stack->function;
	if (flags & STACK_HAS_INTERRUPT ||
	    (flags & (STACK_HAS_SOFTIRQ | STACK_RUNS_SOFTIRQ)) == STACK_HAS_SOFTIRQ) {
		__builtin_memset(waker->program, 0, COMM_LEN);
		__builtin_memset(waker->thread, 0, COMM_LEN);
		waker->slot = 0;
		waker->pid = 0;
		waker->tgid = 0;
		waker->kind = flags & STACK_HAS_SOFTIRQ ? WHY_SOFTIRQ : WHY_INTERRUPT;
		return 0;
	}
	waker->kind = why_kind_of(task);
	if (waker->kind == WHY_CALL) {
		regs = (void *)bpf_task_pt_regs(task);
		waker->call = call_index(task, regs->orig_ax);
	}
	waker->slot = running_slot(task);
	why_name(waker, task, why_pid_level(slot));
	return 0;
}

/* A thread is woken. It does not sleep if it wakes itself. */
static __always_inline void lens_waking(void *ctx, struct thread_state *thread)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 zero = 0;
	struct why_waker_stack *stack = bpf_map_lookup_elem(&why_stack_scratch, &zero);
	bool is_in_call;
	long bytes;

	if (thread->task == (u64)task || !stack)
		return;
	is_in_call = why_kind_of(task) == WHY_CALL && is_on_task_stack(ctx, stack, task);
	if (!is_in_call) {
		bytes = bpf_get_stack(ctx, stack->stack.address, sizeof(stack->stack.address), 0);
		stack->stack.frames = bytes > 0 ? bytes / sizeof(u64) : 0;
	}
	why_woken(thread->slot, is_in_call);
}

#endif
