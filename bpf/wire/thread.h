/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The state of a gated thread. */
#ifndef TOLLGATE_WIRE_THREAD_H
#define TOLLGATE_WIRE_THREAD_H

#include "wire/guard.h"
#include "wire/lens.h"
#include "wire/tables.h"

enum call_state {
	NOT_IN_CALL,
	/*
	 * Before a call: a supervisor of seccomp or a tracer decides on it (bpf/lens/waits.bpf.h).
	 */
	BEFORE_CALL,
	/* In the call `thread_state.call`. */
	IN_CALL,
	/* In a gate with plugins only, which does not compute the index of the call. */
	IN_UNKNOWN_CALL,
	/* In a call that began in an outer row (`lens_life.outer_row`), and counts there. */
	IN_OUTER_CALL,
	/*
	 * In a call that began while the thread had no lens: it may have been a member of a service
	 * only. The lens may get the thread before the call ends.
	 */
	IN_CALL_BEFORE_LENS,
};

/*
 * One entry for each gated thread. It has what most calls and context switches need. What an
 * extension needs less often is in an array of its own, at the index of the thread's slot:
 * lens_threads, guard_threads and members. lens_threads and guard_threads are cleared together with
 * this entry, when a slot gets a thread (gate_thread).
 *
 * The first cache line is all that a call without a guard needs, if the thread does not sleep.
 */
struct thread_state {
	/* Address of its task_struct; 0: the slot is free. */
	__u64 task;
	__u32 mask;
	/* The generation at its latest entry or exit of a call; 0: none was seen. */
	__u32 generation;
	__u16 call;
	/* enum call_state */
	__u8 in_call;
	/* 1: nothing counts until it calls execve. */
	__u8 until_exec;
	__u16 row;
	__u16 session;
	/* The session whose plugins it has: its own, or another one in which it also counts. */
	__u16 plugin_session;
	/* Its own slot. */
	__u16 slot;
	__u32 tgid;
	struct lens_hot lens;

	/* The second cache line. */
	struct guard_hot guard;
	__u32 pid;
	/* Its number in the PID namespace of the session's owner. */
	__u32 visible_pid;
	struct lens_switch lens_switch;
};

#endif
