/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Only for the differential tests: the inputs of guard and pace, and their results. */
#ifndef TOLLGATE_WIRE_STEPS_H
#define TOLLGATE_WIRE_STEPS_H

/* What happens to a thread. */
enum guard_step_kind {
	STEP_CALL = 0,
	STEP_SIGNAL = 1,
	STEP_SIGNAL_RESTARTS = 2,
	STEP_STOP = 3,
};

struct guard_step {
	__u32 kind;
	__u32 thread;
	__u32 call;
	__u32 mismatches;
	__u32 lfc;
	__u32 state;
	__u64 anomalies;
};

#define GUARD_STEPS 65536
#define GUARD_STEP_THREADS 8

/* A moment of a task of pace. */
struct pace_moment {
	/* The work that the task has done, and the time since it began. */
	__u64 cycles;
	__u64 ns;
	/* The time from the beginning to the deadline, if the program has changed it; or 0. */
	__u64 deadline_ns;
	/* 1: the task was late at the moment before; then, at this one. */
	__u64 is_late;
	/* The results: its speed (0: the fastest), and the cycles at which its next step begins. */
	__u64 khz;
	__u64 next;
};

#endif
