/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Why a thread slept in a call (LENS_WHY): its waker, and the lock that it waited for. */
#ifndef TOLLGATE_WIRE_WHY_H
#define TOLLGATE_WIRE_WHY_H

#include "wire/tables.h"

/* What a party is. */
enum why_kind {
	/* No wake-up was seen, or the holder of the lock is not known. */
	WHY_UNKNOWN,
	/* A thread in a call. */
	WHY_CALL,
	/* A thread outside of calls, for example in a page fault. */
	WHY_OUTSIDE,
	/* A thread that is not gated and holds a lock. Its call is not known. */
	WHY_BYSTANDER,
	WHY_KERNEL_THREAD,
	WHY_SOFTIRQ,
	/* An interrupt of a device or a timer. */
	WHY_INTERRUPT,
};

/* What has woken a thread, or holds a lock. */
struct why_party {
	/* The kernel function that has woken the thread; 0: the call says enough. */
	__u64 function;
	/* As seen in the PID namespace of the session of the thread that waits. */
	__u32 tgid;
	__u32 pid;
	/* 0: a bystander. */
	__u16 slot;
	/* With WHY_CALL. */
	__u16 call;
	/* enum why_kind */
	__u8 kind;
	/* The holder of the lock sleeps itself. */
	__u8 is_asleep;
	__u8 unused[2];
	/* The names of its process's first thread, and of the thread. */
	char program[COMM_LEN];
	char thread[COMM_LEN];
};

/*
 * The kind of a lock. The first ones are those of the kernel (include/trace/events/lock.h, LCB_F_*)
 * with which the tracepoint contention_begin is called; not in BTF.
 */
enum why_lock_flag {
	WHY_LOCK_SPIN = 1 << 0,
	WHY_LOCK_READ = 1 << 1,
	WHY_LOCK_WRITE = 1 << 2,
	WHY_LOCK_RT = 1 << 3,
	WHY_LOCK_PERCPU = 1 << 4,
	WHY_LOCK_MUTEX = 1 << 5,
	/* A lock of the program, in its own memory. */
	WHY_LOCK_FUTEX = 1 << 8,
	/* The kernel names no flags for a semaphore. */
	WHY_LOCK_SEMAPHORE = 1 << 9,
	/* The lock of the memory map of the process that waits. */
	WHY_LOCK_MMAP = 1 << 10,
};

struct why_lock {
	__u64 address;
	/* Bits of enum why_lock_flag; 0: no lock is known. */
	__u32 flags;
	__u32 unused;
};

/* What a sleep had to do with: its end, and the lock that the thread waited for. */
struct why_cause {
	struct why_party waker;
	struct why_party holder;
	struct why_lock lock;
};

/* A sleep in a call that has ended. */
struct why_sleep {
	__u64 began_ns;
	__u64 ended_ns;
	/* The blocking site. */
	__u64 site;
	__u32 call;
	__u32 unused;
	struct why_party waker;
};

/* The sleeps of a thread that are kept. */
#define WHY_PAST 4
/* The sleeps of others that are followed from a slow call. */
#define WHY_LINKS 4

/* The longest sleep of a slow call, and what those had slept in meanwhile who let it wait. */
struct why_slow {
	struct why_sleep sleep;
	struct why_party holder;
	struct why_lock lock;
	/*
	 * The first one is of the lock's holder if `begins_at_holder`, otherwise of the waker; each
	 * further one is of the waker of the sleep before.
	 */
	struct why_sleep link[WHY_LINKS];
	__u32 links;
	__u32 begins_at_holder;
};

/* A thread's number in its own PID namespace, by which its program knows it. */
struct why_number {
	__u32 namespace_inum;
	__u32 tid;
};

/* A thread's state (why_threads). */
struct why_thread {
	/* The key of its entry in why_numbers; 0: it has none. */
	struct why_number number;
	/* Odd while `past` is being changed. */
	__u32 sequence;
	__u32 unused;
	/* Of the sleep that goes on: the waker sets `waker`, and the thread itself the rest. */
	struct why_cause current;
	/* With LENS_TRACE: the time of the latest wake-up. */
	__u64 woken_ns;
	/* Of the latest sleep that has ended. */
	struct why_cause latest;
	/* The longest sleeps of the recent past, in no order. */
	struct why_sleep past[WHY_PAST];
	/* With `lens_hot.has_long_sleep`. */
	struct why_sleep longest;
	struct why_party longest_holder;
	struct why_lock longest_lock;
};

/* A cause of sleeps in a blocking site (why_causes). */
struct why_key {
	__u64 site;
	__u64 function;
	/* The address of a lock that is a variable of the kernel; 0: it is elsewhere, or none. */
	__u64 lock;
	__u32 row;
	__u32 lock_flags;
	__u16 call;
	/* The call of the party, with WHY_CALL. */
	__u16 party_call;
	/* enum why_kind */
	__u8 kind;
	/* 1: the party holds the lock; 0: it has woken the thread. */
	__u8 is_holder;
	__u8 is_asleep;
	__u8 unused;
	char program[COMM_LEN];
	char thread[COMM_LEN];
};

struct why_value {
	__u64 blocked_ns;
	__u64 sleeps;
	/* The process of the first one with this name. */
	__u32 tgid;
	/* 1: there were others. */
	__u32 is_several;
};

#define WHY_CAUSES 16384

/* Code of the kernel. */
struct address_range {
	__u64 start;
	__u64 end;
};

/*
 * Functions that only pass a wake-up on: those of the scheduler, and those of epoll and poll. Who
 * has called them has woken the thread.
 */
#define WAKE_RANGES 3

struct why_config {
	struct address_range wakes[WAKE_RANGES];
	/* The function that runs softirqs, and the one by which a thread does so itself. */
	struct address_range softirqs;
	struct address_range bh_enable;
	/* The entries of interrupts and exceptions, and of them the one of page faults. */
	struct address_range entries;
	struct address_range page_fault;
	/* The kernel's variables. */
	struct address_range variables;
};

#endif
