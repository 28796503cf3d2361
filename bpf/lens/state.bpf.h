/* SPDX-License-Identifier: GPL-2.0 */
/* The part of the lens's per-thread state that only some calls need. */
#ifndef TOLLGATE_LENS_STATE_BPF_H
#define TOLLGATE_LENS_STATE_BPF_H

#include "gate/threads.bpf.h"
#include "wire/lens.h"

struct lens_cold lens_threads[THREADS] SEC(".bss.lens");

_Static_assert(sizeof(struct lens_cold) == CACHE_LINE, "an entry shares cache lines");

static __always_inline struct lens_cold *lens_cold_of(struct thread_state *thread)
{
	return &lens_threads[thread->slot & (THREADS - 1)];
}

/* The slot gets a thread. */
static __always_inline void lens_new_thread(u32 slot)
{
	__builtin_memset(&lens_threads[slot & (THREADS - 1)], 0, sizeof(struct lens_cold));
}

#endif
