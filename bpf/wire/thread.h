/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The state of a gated thread. */
#ifndef TOLLGATE_WIRE_THREAD_H
#define TOLLGATE_WIRE_THREAD_H

#include "wire/guard.h"
#include "wire/tables.h"

enum call_state {
	NOT_IN_CALL,
	/* `thread_state.call` is the one. */
	IN_CALL,
	/* A gate with plugins only saw a call begin: it does not find out which. */
	IN_UNKNOWN_CALL,
};

/* One entry for each gated thread. A call that does not sleep needs the first 64 bytes only. */
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
	__u64 entered_ns;
	__u32 minor_faults;
	__u32 major_faults;
	/* LENS_SAMPLE: the number of cheap calls that are yet to go untimed. */
	__u32 untimed_left;
	/* It left the CPU to sleep; otherwise it was preempted. */
	__u16 is_asleep;
	/* The session whose plugins it has: its own, or one that it counts in as well. */
	__u16 plugin_session;
	/* In this call: time off the CPU, and when it was switched out (0: it runs). */
	__u64 off_ns;

	__u64 switched_out_ns;
	/* When it was last switched in, until the scheduler's own time for that is read. */
	__u64 switched_in_ns;
	/* sched_info.run_delay when it was first and last switched out in this call. */
	__u64 run_delay_first;
	__u64 run_delay_last;
	/*
	 * A blocking site whose time is known at the next step: its address, the time off the CPU,
	 * the number of sleeps.
	 */
	__u64 site;
	__u64 site_off_ns;
	__u32 site_sleeps;
	/* Sleeps and their time since a site was last sampled, and the time until the next. */
	__u32 unsampled_sleeps;
	__u64 unsampled_sleep_ns;
	__s64 site_budget_ns;

	__u32 pid;
	__u32 tgid;
	/* Its number in the PID namespace of the session's owner. */
	__u32 visible_pid;
	/* It was held once; or, of a process's first thread, another thread of the process was. */
	__u32 ever_held;
	__u64 max_sleep_ns;

	/* Guard: its latest calls by the symbols of its program, the newest in the low bits. */
	__u64 window;
	/* Calls until the profile's counters are updated, and their number at the last update. */
	__u32 guard_left;
	__u32 guard_batch;
	union {
		struct {
			/* LFC: how many of the latest 128 calls were anomalies. */
			__u8 lfc;
			/* Signal handlers that it is in. */
			__u8 handlers;
			/* The kernel restarts the interrupted call: the next one is the same. */
			__u8 is_restart_expected;
			__u8 held;
		};
		/* With any of them, the fast path is not taken. */
		__u32 slow_path_flags;
	};
	__u16 profile_slot;
	/* The session that guards it, which may be another one than the session it counts in. */
	__u16 guard_session;
	/* One bit for each call, the newest in the lowest bit of the first word. */
	__u64 frame[2];
	/* The windows that handlers interrupted, the latest first, with GUARD_RESTARTS. */
	__u64 interrupted[GUARD_HANDLERS];
	/* With `held`. */
	__u64 held_until_ns;
	/* enum guard_precall: what is to happen to the current call. */
	__u32 precall;
	/* The largest LFC since its execve. */
	__u32 max_lfc;
	/* Its own slot. */
	__u32 slot;
	/* Pads to whole cache lines. */
	__u32 unused[3];
};

#endif
