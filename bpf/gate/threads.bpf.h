/* SPDX-License-Identifier: GPL-2.0 */
/* How the state of a task is found: the table of threads, and the task that each processor runs. */
#ifndef TOLLGATE_GATE_THREADS_BPF_H
#define TOLLGATE_GATE_THREADS_BPF_H

#include "gate/state.bpf.h"

/* The task that runs on a processor, as far as the gate knows. One cache line each. */
struct cpu_state {
	/* Where its registers are saved when it enters the kernel. This identifies the task. */
	u64 regs;
	/* Its task_struct. */
	u64 task;
	/* Its slot; 0: a bystander. */
	u32 slot;
	/* 1: pace must know of each switch here. It is next to `slot`: see needs_handlers(). */
	u32 is_watched;
	/*
	 * The distance from the bottom of a task's kernel stack to its saved registers. It is the
	 * same for all tasks, and 0 until the gate has seen one.
	 */
	u64 regs_offset;
	/* CLOCK_MONOTONIC minus the scheduler's clock, at the latest reported switch to a task. */
	s64 clock_offset;
} __attribute__((aligned(64)));

struct thread_state threads[THREADS] SEC(".bss.threads");
struct cpu_state cpus[CPUS] SEC(".bss.cpus");

_Static_assert(__builtin_offsetof(struct thread_state, guard) == CACHE_LINE &&
		       sizeof(struct thread_state) == 2 * CACHE_LINE,
	       "a thread's state is not one cache line for calls and another one for the rest");
_Static_assert(THREADS <= 1 << 16, "`thread_state.slot` has 16 bits");

/* In the word that has the call of a thread, and its state. */
#define IN_CALL_SHIFT 16
#define CALL_AND_STATE_MASK 0xffffff
_Static_assert(__builtin_offsetof(struct thread_state, call) % sizeof(u32) == 0 &&
		       __builtin_offsetof(struct thread_state, in_call) ==
			       __builtin_offsetof(struct thread_state, call) + sizeof(u16),
	       "the call of a thread and its state are not in one word");

/*
 * The word that has the call of a thread, and its state. Another processor needs it to change the
 * state of a thread that may run meanwhile.
 */
static __always_inline u32 call_word(struct thread_state *thread)
{
	return READ_ONCE(*(u32 *)&thread->call);
}

static __always_inline u32 state_in_call_word(u32 word)
{
	return (u8)(word >> IN_CALL_SHIFT);
}

/* Replaces the call and its state, unless the word differs from `word` now. */
static __always_inline void replace_call(struct thread_state *thread, u32 word, u16 call, u8 state)
{
	u32 changed = word & ~CALL_AND_STATE_MASK;

	changed |= state << IN_CALL_SHIFT | call;
	__sync_val_compare_and_swap((u32 *)&thread->call, word, changed);
}

FREE_LIST(free_threads, THREADS);

/* Threads are found by the low bits of their number. */
#define PID_TAGS 65536

/*
 * The slot of the thread whose number has these low bits. Once two gated threads have had the same
 * bits, BY_PID_SHARED is set, and by_task has the threads that are not here. by_pid is an array,
 * because it is read at every context switch of the machine, and a helper's call and return cost
 * more than the look-up on processors that need return thunks (8 ns each with Safe RET:
 * docs/decisions/0001-gate.md).
 */
u32 by_pid[PID_TAGS] SEC(".bss.by_pid");
#define BY_PID_SHARED 0x80000000
HASH_MAP(by_task, THREADS, u64, u32);

static __always_inline struct cpu_state *this_cpu(void)
{
	return &cpus[bpf_get_smp_processor_id() & (CPUS - 1)];
}

/*
 * Whether a switch from the task that runs here concerns an extension. `slot` and `is_watched` are
 * tested by one load, because every switch of the machine passes here.
 */
static __always_inline bool needs_handlers(struct cpu_state *cpu)
{
	return *(u64 *)&cpu->slot;
}

static __always_inline struct thread_state *thread_at(u32 slot)
{
	return &threads[slot & (THREADS - 1)];
}

static __always_inline u32 *pid_bucket(u32 pid)
{
	return &by_pid[pid & (PID_TAGS - 1)];
}

/* Slot of the task at this address, if it had this number when it got the slot; 0: a bystander. */
static __always_inline u32 slot_by_pid(u32 pid, u64 address)
{
	u32 tag = *pid_bucket(pid), *slot;

	if (likely(!tag))
		return 0;
	if (thread_at(tag & ~BY_PID_SHARED)->task == address)
		return tag & ~BY_PID_SHARED;
	if (!(tag & BY_PID_SHARED))
		return 0;
	slot = bpf_map_lookup_elem(&by_task, &address);
	return slot ? *slot : 0;
}

static __always_inline u32 slot_of(struct task_struct *task)
{
	return slot_by_pid(task->pid, (u64)task);
}

/* Records the task that runs on this processor now. */
static __always_inline void set_current(struct cpu_state *cpu, struct task_struct *task, u32 slot)
{
	cpu->task = (u64)task;
	cpu->slot = slot;
	cpu->regs = (u64)task->stack + cpu->regs_offset;
}

/*
 * The task that makes or ends a call is not the recorded one: the switch to it was not reported, or
 * is older than the gate.
 */
static __noinline void resync_current(struct cpu_state *cpu, u64 regs)
{
	struct task_struct *task = bpf_get_current_task_btf();
	volatile u64 *saved = &cpu->regs;

	/*
	 * To the verifier, `regs` is a pointer, and older kernels forbid arithmetic on it. What was
	 * read from memory is a number.
	 */
	*saved = regs;
	cpu->regs_offset = *saved - (u64)task->stack;
	set_current(cpu, task, slot_of(task));
}

/*
 * State of the thread that makes or ends a call here. A task's registers are always saved at the
 * same address, the top of its kernel stack. So one comparison shows whether this is the task that
 * sched_switch has recorded, without a helper call. sched_switch alone does not suffice: one
 * vendor's 6.18 kernel fails to report one switch in about 100 (docs/decisions/0001-gate.md).
 */
static __always_inline struct thread_state *current_thread(struct pt_regs *regs)
{
	struct cpu_state *cpu = this_cpu();

	if (unlikely(cpu->regs != (u64)regs))
		resync_current(cpu, (u64)regs);
	if (likely(!cpu->slot))
		return NULL;
	return thread_at(cpu->slot);
}

/* The slot of the thread that runs here, even if the switch to it was not reported. */
static __always_inline u32 running_slot(struct task_struct *task)
{
	struct cpu_state *cpu = this_cpu();

	return likely(cpu->task == (u64)task) ? cpu->slot : slot_of(task);
}

/* Makes a slot findable by its task. Returns false if there is no memory for it. */
static __always_inline bool insert_slot(struct task_struct *task, u32 slot)
{
	u32 *tag = pid_bucket(task->pid);
	u64 address = (u64)task;

	if (__sync_val_compare_and_swap(tag, 0, slot) == 0)
		return true;
	if (__sync_val_compare_and_swap(tag, BY_PID_SHARED, BY_PID_SHARED | slot) == BY_PID_SHARED)
		return true;
	if (bpf_map_update_elem(&by_task, &address, &slot, BPF_ANY))
		return false;
	__sync_fetch_and_or(tag, BY_PID_SHARED);
	return true;
}

static __always_inline void remove_slot(u32 pid, u64 address, u32 slot)
{
	u32 *tag = pid_bucket(pid);

	if (__sync_val_compare_and_swap(tag, slot, 0) == slot)
		return;
	if (__sync_val_compare_and_swap(tag, BY_PID_SHARED | slot, BY_PID_SHARED) ==
	    (BY_PID_SHARED | slot))
		return;
	bpf_map_delete_elem(&by_task, &address);
}

/* A task's number at depth `level` of the PID namespaces. Returns false if it has none there. */
static __always_inline bool number_at(struct task_struct *task, u32 level, struct upid *upid)
{
	struct pid *pid = BPF_CORE_READ(task, thread_pid);

	if (!pid || level > BPF_CORE_READ(pid, level))
		return false;
	/*
	 * The array has one entry for each level. CO-RE relocates its start; the stride is the size
	 * of the kernel's structure.
	 */
	bpf_probe_read_kernel(upid, sizeof(*upid),
			      (void *)&pid->numbers + level * bpf_core_type_size(struct upid));
	return true;
}

/* A process number, as the PID namespace at depth `level` sees it. */
static __always_inline u32 visible_pid(struct task_struct *task, u32 level)
{
	struct upid upid = {};

	return number_at(task, level, &upid) ? upid.nr : 0;
}

/* include/linux/pid_namespace.h, MAX_PID_NS_LEVEL */
#define MAX_PID_LEVEL 32

/* The depth of a PID namespace in which a task has a number; MAX_PID_LEVEL: it has none there. */
static __always_inline u32 level_of_namespace(struct task_struct *task, u32 namespace_inum)
{
	struct upid upid = {};
	u32 level;

	for (level = 0; level < MAX_PID_LEVEL && number_at(task, level, &upid); level++) {
		if (BPF_CORE_READ(upid.ns, ns.inum) == namespace_inum)
			return level;
	}
	return MAX_PID_LEVEL;
}

#endif
