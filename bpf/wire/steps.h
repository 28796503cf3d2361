/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Only for the differential test: events of threads, and the guard's results. */
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

#endif
