/* SPDX-License-Identifier: GPL-2.0 */
/*
 * tally: the test build's second extension. It has the shape of one that keeps a sequence a thread (a
 * few dependent loads and stores at every entry), so that what two extensions cost together can be
 * compared with what each costs alone.
 */
#ifndef TOLLGATE_TALLY_BPF_H
#define TOLLGATE_TALLY_BPF_H

#include "state.bpf.h"

#ifdef TOLLGATE_TEST_EXTENSION
PERCPU_MAP(tallies, CALL_SLOTS, u64);

static __always_inline void tally_enter(struct thread_state *thread, u32 call)
{
	u64 *tally = bpf_map_lookup_elem(&tallies, &call);

	thread->tally += 1;
	if (tally)
		*tally += thread->tally & 1;
}
#else
static __always_inline void tally_enter(struct thread_state *thread, u32 call)
{
}
#endif

#endif
