/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Parents that stop themselves when a child stops, as sudo, runuser and nsenter do. They rely on a
 * shell to continue them, but after a stop by the guard no shell does. Such a stop is marked as a
 * consequence of the guard's, and Tollgate ends it (crates/kernel/src/guard/left_stopped.rs).
 */
#ifndef TOLLGATE_GUARD_PARENTS_BPF_H
#define TOLLGATE_GUARD_PARENTS_BPF_H

#include "guard/state.bpf.h"

/* include/uapi/asm-generic/siginfo.h: kill(), sigqueue() and tgkill(). */
#define SI_USER 0
#define SI_QUEUE -1
#define SI_TKILL -6

static __always_inline bool is_held(struct thread_state *thread)
{
	return READ_ONCE(thread->guard.held) && has(thread, GUARD);
}

/* Slot of a thread of the process, of the first one if possible; 0: none was found. */
static __always_inline u32 process_slot(struct task_struct *task)
{
	u32 slot = slot_of(task->group_leader);

	return slot ?: slot_of(task);
}

/*
 * The guard, or Tollgate for it, stops or continues a process, or the process stops itself with its
 * child. The child's stop may be over, and the child may have ended, before the parent reacts.
 */
static __always_inline void guard_expect_reaction(struct task_struct *child)
{
	u32 slot = process_slot(child->real_parent);

	if (!slot || !thread_at(slot)->guard.session)
		return;
	guard_reactions[slot & (THREADS - 1)] =
		(bpf_ktime_get_ns() + GUARD_REACTION_NS) >> GUARD_GRACE_SHIFT;
	/* The sweeps have to find the parent, also if this session's guard is about to end. */
	guard_cold_at(slot)->ever_held = 1;
}

struct child_search {
	/* The parent's process. */
	u32 tgid;
	u16 is_any_held;
	/* Another process has stopped a child, and has to continue the parent as well. */
	u16 is_any_foreign;
};

static long match_stopped_child(u32 i, struct child_search *search)
{
	struct thread_state *thread = thread_at(i);
	struct task_struct *task = (void *)thread->task;
	u32 foreign_stop = guard_cold_at(i)->foreign_stop;

	if (!task || (!foreign_stop && !is_held(thread)) ||
	    BPF_CORE_READ(task, real_parent, tgid) != search->tgid)
		return 0;
	if (foreign_stop & ~FOREIGN_STOP_WITH_CHILD)
		search->is_any_foreign = 1;
	else
		search->is_any_held = 1;
	return 0;
}

static __always_inline bool is_same_process_group(struct task_struct *a, struct task_struct *b)
{
	return BPF_CORE_READ(a, signal, pids[PIDTYPE_PGID]) ==
	       BPF_CORE_READ(b, signal, pids[PIDTYPE_PGID]);
}

/*
 * Whether a process stops itself, or its process group, because the guard has stopped a child of
 * it. `info`: of the stop signal.
 */
static __always_inline bool is_reaction(struct kernel_siginfo *info, struct task_struct *task)
{
	struct task_struct *sender = bpf_get_current_task_btf();
	struct child_search search = { .tgid = sender->tgid };
	int code = BPF_CORE_READ(info, si_code);
	u32 slot;

	if (likely(!READ_ONCE(header.ever_held)) ||
	    (code != SI_USER && code != SI_QUEUE && code != SI_TKILL) ||
	    (sender->tgid != task->tgid && !is_same_process_group(sender, task)))
		return false;
	slot = process_slot(sender);
	if (!slot || !thread_at(slot)->guard.session)
		return false;
	bpf_loop(header.next_thread, match_stopped_child, &search, 0);
	if (search.is_any_foreign)
		return false;
	return search.is_any_held || bpf_ktime_get_ns() >> GUARD_GRACE_SHIFT <
					     guard_reactions[slot & (THREADS - 1)];
}

#endif
