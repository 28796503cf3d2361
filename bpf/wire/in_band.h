/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * In-band records: the latest calls of a thread, in memory that its process maps to read. The gate
 * is the only writer. docs/decisions/0012-in-band.md has the reasons.
 *
 * The memory of a process has IN_BAND_ENTRIES entries of a page each: the process's own, and one
 * for each thread.
 */
#ifndef TOLLGATE_WIRE_IN_BAND_H
#define TOLLGATE_WIRE_IN_BAND_H

/* It changes with each change of this layout. */
#define IN_BAND_VERSION 2
#define IN_BAND_PAGE 4096
/* The process's entry is the first. */
#define IN_BAND_ENTRIES 257
/* The sites in which threads of a process sleep have numbers from 1 to this one. */
#define IN_BAND_SITES 256
/* The gate may be writing the oldest of these, so a reader finds one fewer. */
#define IN_BAND_CALLS 16
#define IN_BAND_SLEEPS 5
/* A number of waiting threads that is not known. */
#define IN_BAND_UNKNOWN 0xffff

/* How many other threads with in-band records sleep in a site. */
struct in_band_others {
	/* Threads of the same user, and of other users. */
	__u16 same_user;
	__u16 outside;
};

/* The sleeps of a call in one site. */
struct in_band_sleep {
	/* Without the waits for a processor that followed. */
	__u64 ns;
	/* The number of the kernel function; 0: it is not known, or there are too many. */
	__u32 site;
	__u32 count;
	/* When the first of these sleeps began, and when the last one ended. */
	struct in_band_others at_entry;
	struct in_band_others at_exit;
};

/* Times are nanoseconds. */
struct in_band_call {
	__s64 result;
	/* By CLOCK_MONOTONIC. */
	__u64 ended_ns;
	__u64 wall_ns;
	/* Time in sleeps, and ready to run but not on a processor. The rest was on a processor. */
	__u64 blocked_ns;
	__u64 waiting_ns;
	__u32 minor_faults;
	__u32 major_faults;
	/* The number of the call in its ABI; 575 stands for all from 575 on. */
	__u16 number;
	/* 0: x86-64, 1: i386, 2: x32 */
	__u8 abi;
	/* 1: seccomp or a tracer rejected the call. `wall_ns` is 0 unless it waited for that. */
	__u8 is_rejected;
	/* Entries of `sleep`. */
	__u32 sleeps;
	/* Sleeps in further sites. */
	__u64 other_sleeps_ns;
	__u64 unused;
	struct in_band_sleep sleep[IN_BAND_SLEEPS];
};

/* A thread's entry. */
struct in_band_thread {
	/*
	 * The number of calls that were recorded. The latest is calls[(sequence - 1) %
	 * IN_BAND_CALLS]. The gate changes it last, when a record is complete.
	 */
	__u64 sequence;
	/* The number of calls that have ended without a record. */
	__u64 losses;
	__u64 unused[62];
	struct in_band_call calls[IN_BAND_CALLS];
	__u64 unused_end[IN_BAND_PAGE / 8 - 64 - IN_BAND_CALLS * sizeof(struct in_band_call) / 8];
};

/* The process's entry. */
struct in_band_process {
	__u32 version;
	__u32 unused[IN_BAND_PAGE / 4 - 1];
};

#endif
