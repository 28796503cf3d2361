/* SPDX-License-Identifier: GPL-2.0 */
/* A trace: a record of each call, and of each time off the processor within one. */
#ifndef TOLLGATE_LENS_TRACE_BPF_H
#define TOLLGATE_LENS_TRACE_BPF_H

#include "gate/threads.bpf.h"
#include "lens/state.bpf.h"
#include "lens/why.bpf.h"
#include "wire/trace.h"

/*
 * The buffer of a session, which user space makes with TRACE_RING_BYTES. The verifier does not
 * compare the sizes of ring buffers, and this one is made for each load of the gate.
 */
struct trace_ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, SESSIONS);
	__type(key, u32);
	__array(values, struct trace_ring);
} lens_traces SEC(".maps");

/*
 * Reserves a record of a thread at a time; NULL: the trace of its session has ended or not begun,
 * or the buffer is full, which is a loss.
 */
static __always_inline void *trace_reserve(struct thread_state *thread, u64 now, u64 bytes)
{
	u32 index = thread->session;
	struct session *session = session_at(index);
	void *ring, *record;

	if (!session || now >= READ_ONCE(session->trace_until_ns))
		return NULL;
	ring = bpf_map_lookup_elem(&lens_traces, &index);
	record = ring ? bpf_ringbuf_reserve(ring, bytes, 0) : NULL;
	if (!record)
		count_loss(index, LOSS_TRACE);
	return record;
}

/*
 * The current thread ends a call. This is a global function, so that it is verified once, as is the
 * next one. User space reads the buffer often enough without being woken up.
 */
__noinline int lens_trace_call(u32 slot, s64 result, u64 now)
{
	struct thread_state *thread = thread_at(slot);
	struct task_struct *task = bpf_get_current_task_btf();
	struct trace_call *record;
	struct session *session;

	if (!(config.enabled & LENS_TRACE))
		return 0;
	record = trace_reserve(thread, now, sizeof(*record));
	if (!record)
		return 0;
	session = session_at(thread->session);
	record->type = TRACE_CALL;
	record->pid = thread->visible_pid;
	record->tgid = visible_pid(task->group_leader, session ? session->pid_level : 0);
	record->call = thread->call;
	record->began_ns = thread->lens.entered_ns;
	record->ended_ns = now;
	record->result = result;
	bpf_get_current_comm(record->comm, sizeof(record->comm));
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return 0;
}

/*
 * With LENS_WHY: records what has ended the latest sleep of a thread. The record of the wait
 * follows.
 */
__noinline int lens_trace_waker(u32 slot, u64 returned)
{
	struct thread_state *thread = thread_at(slot);
	struct why_thread *why = why_of(slot);
	struct trace_waker *record;

	if (!(config.enabled & LENS_TRACE) || !(config.enabled & LENS_WHY) || !why)
		return 0;
	record = trace_reserve(thread, returned, sizeof(*record));
	if (!record)
		return 0;
	record->type = TRACE_WAKER;
	record->pid = thread->visible_pid;
	record->left_ns = thread->lens_switch.switched_out_ns;
	record->woken_ns = why->woken_ns;
	record->waker = why->latest.waker;
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return 0;
}

/* A thread has returned to a processor within a call. `site`: 0 if none was taken. */
__noinline int lens_trace_wait(u32 slot, u64 ready, u64 returned, u64 site)
{
	struct thread_state *thread = thread_at(slot);
	u64 left = thread->lens_switch.switched_out_ns;
	struct trace_wait *record;

	if (!(config.enabled & LENS_TRACE))
		return 0;
	record = trace_reserve(thread, returned, sizeof(*record));
	if (!record)
		return 0;
	record->type = TRACE_WAIT;
	record->pid = thread->visible_pid;
	record->left_ns = left;
	if (!thread->lens.is_asleep)
		ready = left;
	else if (ready < left)
		ready = returned;
	record->ready_ns = ready;
	record->returned_ns = returned;
	record->site = site;
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return 0;
}

#endif
