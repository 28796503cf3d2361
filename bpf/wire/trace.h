/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The lens: a trace of single calls and waits. */
#ifndef TOLLGATE_WIRE_TRACE_H
#define TOLLGATE_WIRE_TRACE_H

#include "wire/tables.h"
#include "wire/why.h"

/* Room for some 130,000 calls. User space reads them at least every 20 ms. */
#define TRACE_RING_BYTES (1 << 23)

enum trace_type {
	TRACE_CALL = 1,
	TRACE_WAIT = 2,
	TRACE_WAKER = 3,
};

/* A call that has ended. Process numbers are those of the session's PID namespace. */
struct trace_call {
	__u32 type;
	__u32 pid;
	__u32 tgid;
	__u32 call;
	__u64 began_ns;
	__u64 ended_ns;
	__s64 result;
	char comm[COMM_LEN];
};

/* A time off the processor within a call. The record comes before that of the call. */
struct trace_wait {
	__u32 type;
	__u32 pid;
	__u64 left_ns;
	/* When it was woken up. If it was preempted, this is `left_ns`. */
	__u64 ready_ns;
	__u64 returned_ns;
	/* The blocking site; 0: none was taken. */
	__u64 site;
};

/* With LENS_WHY: what has ended a sleep of a thread. The record comes before that of the wait. */
struct trace_waker {
	__u32 type;
	__u32 pid;
	/* As in the record of the wait. */
	__u64 left_ns;
	/* It is valid only if `waker` is known. */
	__u64 woken_ns;
	struct why_party waker;
};

#endif
