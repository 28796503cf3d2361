/* SPDX-License-Identifier: GPL-2.0 */
/* What all parts of the gate use: its configuration and header, sessions, records and losses. */
#ifndef TOLLGATE_GATE_STATE_BPF_H
#define TOLLGATE_GATE_STATE_BPF_H

#include "lib/kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "lib/compat.bpf.h"
#include "lib/maps.bpf.h"
#include "wire/gate.h"
#include "wire/thread.h"

const volatile struct gate_config config = {};

/*
 * Whether an extension is compiled in and applies to the thread. The test has two steps with a
 * barrier between them. The verifier removes the code behind a test of `config.enabled`, because
 * that is constant. Without the barrier, the compiler could join both tests into one that is not
 * constant, and the code would stay.
 */
static __always_inline bool has(struct thread_state *thread, u32 what)
{
	u32 mask;

	if (!(config.enabled & what))
		return false;
	mask = thread->mask;
	barrier_var(mask);
	return mask & what;
}

/*
 * What is read at the beginning and the end of a call is in global variables. An array among them
 * is indexed by a masked number, without the comparison and the key on the stack that a look-up in
 * a map needs. Each variable has its own section, and so its own map.
 */
struct gate_header header SEC(".bss.tollgate");

ARRAY_MAP(sessions, SESSIONS, struct session, BPF_F_MMAPABLE);
PERCPU_MAP(losses, SESSIONS *LOSSES, u64);

/* One ring buffer for each session. The session's owner adds it and is its only reader. */
struct ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RING_BYTES);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, SESSIONS);
	__type(key, u32);
	__array(values, struct ring);
} records SEC(".maps");

static __always_inline struct session *session_at(u32 index)
{
	return bpf_map_lookup_elem(&sessions, &index);
}

/* Another generation is active: this one was replaced, or is not active yet. */
static __always_inline bool is_retired(void)
{
	return READ_ONCE(header.generation) != config.generation;
}

static __always_inline void count_loss(u32 session, enum loss reason)
{
	u32 index = session * LOSSES + reason;
	u64 *count = bpf_map_lookup_elem(&losses, &index);

	/* An interrupt may count on the same processor meanwhile. */
	if (count)
		__sync_fetch_and_add(count, 1);
}

/*
 * Reserves a record in a session's ring buffer. If the buffer is full or missing, counts a loss and
 * returns NULL.
 */
static __always_inline void *reserve_record(u32 session, u64 bytes, enum loss reason)
{
	void *ring = bpf_map_lookup_elem(&records, &session);
	void *record = ring ? bpf_ringbuf_reserve(ring, bytes, 0) : NULL;

	if (!record)
		count_loss(session, reason);
	return record;
}

/*
 * The flags of bpf_ringbuf_submit for a record that may wait until user space reads the buffer,
 * which it does each 100 ms. A wake-up interrupts the current thread. User space is woken up when
 * half of the buffer is used, and again at each further sixteenth; the tolerance of two records is
 * for their headers, and for those that are reserved at the same time. A record that must not wait
 * is submitted with BPF_RB_FORCE_WAKEUP: without flags, a record wakes up user space only if all
 * earlier ones have been read.
 */
static __always_inline u64 deferred_wakeup(u32 session, u64 bytes)
{
	void *ring = bpf_map_lookup_elem(&records, &session);
	u64 used, size;

	if (!ring)
		return BPF_RB_NO_WAKEUP;
	used = bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA);
	size = bpf_ringbuf_query(ring, BPF_RB_RING_SIZE);
	if (used >= size / 2 && (used & (size / 16 - 1)) < 2 * bytes)
		return BPF_RB_FORCE_WAKEUP;
	return BPF_RB_NO_WAKEUP;
}

#endif
