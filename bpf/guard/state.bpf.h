/* SPDX-License-Identifier: GPL-2.0 */
/* The part of the guard's per-thread state that normal calls do not need. */
#ifndef TOLLGATE_GUARD_STATE_BPF_H
#define TOLLGATE_GUARD_STATE_BPF_H

#include "gate/threads.bpf.h"
#include "wire/guard.h"

struct guard_cold guard_threads[THREADS] SEC(".bss.guard");

/*
 * For a process's first thread: until when a stop of the process by itself is taken for a reaction
 * to a stop of its child by the guard, in units of 2^GUARD_GRACE_SHIFT ns.
 */
u32 guard_reactions[THREADS] SEC(".bss.reactions");

/* The executor of each thread's program: GUARD_EXECUTOR(). */
u32 guard_executors[THREADS] SEC(".bss.executors");

_Static_assert(sizeof(struct guard_cold) == CACHE_LINE, "an entry shares cache lines");
_Static_assert(__builtin_offsetof(struct guard_hot, lfc) % sizeof(u32) == 0 &&
		       __builtin_offsetof(struct guard_hot, held) ==
			       __builtin_offsetof(struct guard_hot, lfc) + 3,
	       "needs_slow_path() tests four bytes at once");

static __always_inline struct guard_cold *guard_cold_at(u32 slot)
{
	return &guard_threads[slot & (THREADS - 1)];
}

static __always_inline struct guard_cold *guard_cold_of(struct thread_state *thread)
{
	return guard_cold_at(thread->slot);
}

/* The slot gets a thread. */
static __always_inline void guard_new_thread(u32 slot)
{
	__builtin_memset(guard_cold_at(slot), 0, sizeof(struct guard_cold));
	guard_reactions[slot & (THREADS - 1)] = 0;
	guard_executors[slot & (THREADS - 1)] = GUARD_EXECUTOR_NONE;
}

#endif
