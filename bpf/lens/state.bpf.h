/* SPDX-License-Identifier: GPL-2.0 */
/* The part of the lens's per-thread state that only some calls need. */
#ifndef TOLLGATE_LENS_STATE_BPF_H
#define TOLLGATE_LENS_STATE_BPF_H

#include "gate/threads.bpf.h"
#include "wire/lens.h"

/*
 * include/linux/sched.h: threads that the kernel has added to a process, for io_uring and vhost.
 * They make no calls. Before Linux 6.4, PF_USER_WORKER is not used.
 */
#define PF_IO_WORKER 0x00000010
#define PF_USER_WORKER 0x00004000

struct lens_cold lens_threads[THREADS] SEC(".bss.lens");

ARRAY_MAP(lens_arg_kinds, CALL_INDICES, struct arg_kinds, 0);

_Static_assert(sizeof(struct lens_cold) == CACHE_LINE, "an entry shares cache lines");

static __always_inline struct lens_cold *lens_cold_of(struct thread_state *thread)
{
	return &lens_threads[thread->slot & (THREADS - 1)];
}

/* What an earlier call or wait has left does not belong to the thread's next call. */
static __always_inline void lens_reset_call(struct thread_state *thread)
{
	thread->lens.entered_ns = 0;
	thread->lens.off_ns = 0;
	thread->lens.is_off_cpu = 0;
	thread->lens.has_site = 0;
	thread->lens.has_long_sleep = 0;
	lens_cold_of(thread)->waits_since_ns = 0;
}

/* The slot gets a thread. */
static __always_inline void lens_new_thread(u32 slot)
{
	__builtin_memset(&lens_threads[slot & (THREADS - 1)], 0, sizeof(struct lens_cold));
}

#endif
