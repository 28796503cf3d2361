/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The lens: cells, blocking sites and slow calls. */
#ifndef TOLLGATE_WIRE_LENS_H
#define TOLLGATE_WIRE_LENS_H

#include "wire/path.h"
#include "wire/tables.h"
#include "wire/why.h"

/*
 * Errors have indices for errno 1..133 and for the restart codes 512..516, which are visible at the
 * boundary. Index 0 is for any other error.
 */
#define ERRNO_REGULAR 134
#define ERRNO_RESTART_FIRST 512
#define ERRNO_RESTART_COUNT 5
#define ERRNO_INDICES (ERRNO_REGULAR + ERRNO_RESTART_COUNT)

/* The layout is that of crates/stats/src/histogram.rs, which gives its table to the gate. */
#define HISTOGRAM_BUCKETS 280
#define SMALL_VALUES 2048
#define BUCKETS_PER_OCTAVE 8

/* Statistics of one call in one row, per CPU. */
struct cell {
	__u64 count;
	/* Calls of `count` that seccomp or a tracer rejected before dispatch. They have no time. */
	__u64 denied;
	/* Calls that had not ended when their thread did. */
	__u64 unfinished;
	__u64 wall_ns;
	__u64 blocked_ns;
	__u64 runqueue_ns;
	__u64 max_ns;
	__u64 minor_faults;
	__u64 major_faults;
	/*
	 * LENS_SAMPLE: cheap calls that were timed, the sums of their times and of the squares, and
	 * cheap calls that were not timed.
	 */
	__u64 sampled;
	__u64 sampled_ns;
	__u64 sampled_ns2;
	__u64 skipped;
	/* Of io_uring's requests: see enum request_cell. */
	__u64 submitted;
	/* Consecutive timed calls that were cheap. */
	__u32 cheap_streak;
	__u32 unused;
	/* These may wrap, so readers add up differences. */
	__u32 errors[ERRNO_INDICES];
	__u32 histogram[HISTOGRAM_BUCKETS];
};

/*
 * The parts of threads' lives that have cells as calls do, with indices after those of the calls.
 * Of a cell, they use `count`, the times and the faults.
 */
enum account_part {
	/*
	 * Whole lives, of which calls and all other parts are parts: the number of threads, their
	 * time while they counted, as blocked_ns the unaccounted part of it, and as runqueue_ns
	 * their processor time by the scheduler. As sampled_ns and sampled_ns2, they have the
	 * processor time in user mode and in the kernel, as the kernel counts it at its ticks
	 * (task_struct.utime and stime).
	 */
	ACCOUNT_LIFE = CALL_INDICES,
	/* Calls that are in no call's cell, because their beginning or their end was not seen. */
	ACCOUNT_UNFINISHED,
	/*
	 * Calls that began in an outer row and are counted there. This part has their time since
	 * the thread began to count in its own row.
	 */
	ACCOUNT_OUTER,
	/*
	 * Of calls that are counted in this row: the time that rows below it have as ACCOUNT_OUTER.
	 * It is subtracted, because the cells of those rows also count in the session of this one.
	 */
	ACCOUNT_REPEATED,
	/* Ready to run outside of calls, but not on a processor. */
	ACCOUNT_READY,
	/* Other sleeps between a call and the program: in the kernel's work after the call. */
	ACCOUNT_ASLEEP,
	/* Other sleeps of a thread that has left the program by an exception: in page faults. */
	ACCOUNT_FAULTING,
	/* By a signal, a tracer or the freezer of cgroup v2. */
	ACCOUNT_STOPPED,
	/* By the guard. */
	ACCOUNT_HELD,
	/* By a limit on the processor time of a control group, since Linux 6.18. */
	ACCOUNT_THROTTLED,
	ACCOUNT_END,
};

/*
 * The operations of io_uring with cells of their own, which follow those of the account. Linux 6.18
 * has 63. Those with higher numbers share the last cell.
 */
#define IO_URING_OPERATIONS 128

/*
 * Requests are counted by operation. Of a cell, they use `submitted`, `count` for those that have
 * completed, the errors, `wall_ns`, `max_ns` and the histogram. A silent request is one that asks
 * for no completion unless it fails: `skipped` has those that were submitted, and `denied` those
 * that have completed.
 */
enum request_cell {
	REQUESTS_BEGIN = ACCOUNT_END,
	REQUEST_UNKNOWN = REQUESTS_BEGIN + IO_URING_OPERATIONS - 1,
	CELL_INDICES,
};

/* An io_uring request that has not completed, by the address of its struct io_kiocb. */
struct request {
	__u64 submitted_ns;
	/*
	 * Its ring, and what the program has given it as its name. They distinguish a silent
	 * request from what is at its address after its end. The name of others may change.
	 */
	__u64 ring;
	__u64 user_data;
	/* row.began_ns of the row: it may be freed and allocated again before the completion. */
	__u64 row_began_ns;
	__u16 row;
	/* The index of its cell. */
	__u16 cell;
	__u32 is_silent;
};

/*
 * Requests of watched programs in flight, on the whole machine: some 6 MiB if there are so many.
 */
#define REQUESTS_IN_FLIGHT 65536

/*
 * The cell of each call and part in a row, in the low bits (0: none yet). The number of entries is
 * even, because the entries of mapped arrays have a multiple of eight bytes.
 */
struct cell_table {
	__u32 cell[CELL_INDICES + CELL_INDICES % 2];
};

/* Upper bound of the number of cells: crates/kernel/src/gate/load.rs. */
#define CELLS_MAX 4096
#define CELL_CHEAP 0x80000000
#define CELL_INDEX 0xffff

/*
 * The address of a blocking site whose stack could not be read, or had only the scheduler's frames.
 */
#define SITE_UNKNOWN 1

struct site_key {
	__u64 address;
	__u32 call;
	__u32 row;
};

struct site_value {
	__u64 blocked_ns;
	__u64 sleeps;
};

#define STACK_DEPTH 32
#define CALL_STRING_LEN 128
/* The files whose code is on a user stack: the program, the C library, and two more. */
#define STACK_FILES 4
/* The frame's code is in no file, or in one for which there was no room. */
#define NO_STACK_FILE 0xff
/* The frame's address is not mapped: it is what the unwinder has found beyond the last frame. */
#define NO_STACK_MAPPING 0xfe
/* No call has more descriptors or more paths: crates/calls/src/arguments.rs. */
#define ARG_NAMES 2

struct arg_kinds {
	/* The first file descriptors and the first paths among the arguments; CALL_ARGS: none. */
	__u8 fd[ARG_NAMES];
	__u8 path[ARG_NAMES];
	/* What the call does with the files of its descriptors: bits of enum file_use. */
	__u32 file_use;
};

struct arg_string {
	/* The argument's index; CALL_ARGS: none. */
	__u32 arg;
	char text[CALL_STRING_LEN];
};

/* A kernel stack, the innermost function first. */
struct stack {
	__u32 frames;
	__u32 unused;
	__u64 address[STACK_DEPTH];
};

struct slow_call {
	__u32 type;
	__u32 session;
	__u32 pid;
	__u32 tgid;
	__u32 call;
	char comm[COMM_LEN];
	__s64 result;
	__u64 ended_ns;
	__u64 wall_ns;
	__u64 blocked_ns;
	__u64 runqueue_ns;
	__u64 args[CALL_ARGS];
	__u32 kernel_frames;
	__u32 user_frames;
	struct arg_string path[ARG_NAMES];
	struct fd_path fd[ARG_NAMES];
	/* The stack of the longest sleep. */
	__u64 kernel_stack[STACK_DEPTH];
	__u64 user_stack[STACK_DEPTH];
	/*
	 * For each frame of the user stack: the file that is mapped there, and the offset in it.
	 * The process may have ended when user space reads the record, and with it its mappings.
	 */
	__u64 user_offset[STACK_DEPTH];
	__u8 user_file[STACK_DEPTH];
	__u32 stack_files;
	__u32 unused;
	struct fd_path stack_file[STACK_FILES];
	/* With LENS_WHY, if there is a kernel stack. */
	__u32 has_why;
	struct why_slow why;
};

/* A piece of the user stack: 16 KiB, copied in blocks, until one cannot be read. */
#define FLAME_BLOCK 512
#define FLAME_BLOCKS 32
#define FLAME_STACK_BYTES (FLAME_BLOCK * FLAME_BLOCKS)

/* Flame graphs of a session have at most this many samples a second. */
#define FLAME_RATE 2000

/*
 * RECORD_FLAME_SLEEP: a blocked interval of a call that has been sampled. What the program did is
 * in the record of the call, which follows when the call ends.
 */
struct flame_sleep {
	__u32 type;
	/* The thread's slot, and the number of the call among its calls that slept. */
	__u32 slot;
	__u32 sequence;
	__u32 unused;
	/* The blocked time that the interval stands for. */
	__u64 blocked_ns;
	struct stack kernel;
};

/* The registers from which a user stack is unwound. */
struct flame_registers {
	__u64 ip, sp, bp, bx, r12, r13, r14, r15;
};

/*
 * RECORD_FLAME_SAMPLE: what the program did at a call. With blocked time, `kernel` has no frames:
 * they are in the records of the call's intervals. With processor time, it is complete by itself.
 */
struct flame_sample {
	__u32 type;
	__u32 slot;
	__u32 sequence;
	__u32 call;
	/* As seen in the session's PID namespace. */
	__u32 tgid;
	/* 0: the registers and the stack are not those of the call's begin. */
	__u32 stack_bytes;
	/* The name of the process. */
	char comm[COMM_LEN];
	/*
	 * The program's memory: where its code, its first stack and its mappings begin, and the
	 * inode of its file.
	 */
	__u64 start_code;
	__u64 start_stack;
	__u64 mmap_base;
	__u64 inode;
	struct flame_registers registers;
	struct stack kernel;
	__u8 user_stack[FLAME_STACK_BYTES];
};

/* The state of a thread whose blocked intervals are sampled (lens_flame_threads). */
struct flame_thread {
	/* The blocked time that is left until the next sample; blocked time since the last one. */
	__s64 budget_ns;
	__u64 unsampled_ns;
	/* The number of its latest call that slept, and of the intervals sampled in it. */
	__u32 sequence;
	__u32 samples;
	/* mm_struct.start_stack of the program that user space was woken up for. */
	__u64 start_stack;
};

/* The samples of a session in a period of 2^FLAME_PERIOD_SHIFT ns, some 17 ms. */
#define FLAME_PERIOD_SHIFT 24

struct flame_rate {
	__u64 period;
	__u64 samples;
};

/* A thread's state: what the lens needs at each call. */
struct lens_hot {
	__u64 entered_ns;
	/* In this call: time off the CPU. */
	__u64 off_ns;
	__u32 minor_faults;
	__u32 major_faults;
	/*
	 * Its in-band records: the process's memory (0: none), and the entry there. Without memory,
	 * the entry is a token of user space: a request is being served.
	 */
	__u16 in_band_entry;
	__u8 in_band_process;
	/* LENS_SAMPLE: how many more cheap calls go untimed. */
	__u8 untimed_left;
	/* In this call: it is switched out, or its switch in was not reported. */
	__u8 is_off_cpu;
	/* It was switched out to sleep; otherwise it was preempted. */
	__u8 is_asleep;
	/* In this call: `lens_cold.site` is a blocking site whose time is not complete yet. */
	__u8 has_site;
	/* In this call: `lens_cold.max_sleep_ns` is set, and the stack of that sleep is saved. */
	__u8 has_long_sleep;
};

/* A thread's state: what the lens needs at each switch within a call. */
struct lens_switch {
	/* When it was last switched out. */
	__u64 switched_out_ns;
	/*
	 * When it was last switched in. Reset to 0 after it was compared with the scheduler's
	 * timestamp of the same switch (sched_info.last_arrival).
	 */
	__u64 switched_in_ns;
	/* sched_info.run_delay when it was first and last switched out in this call. */
	__u64 run_delay_first;
	__u64 run_delay_last;
};

/* A thread's state: what the lens needs at a sleep, with LENS_SITES or LENS_SLOW (lens_threads). */
struct lens_cold {
	/* With `has_site`: the site's address, the time off the CPU, the number of sleeps. */
	__u64 site;
	__u64 site_off_ns;
	__u32 site_sleeps;
	/*
	 * Sleeps and their time since a site was last sampled, and the sleeping time that is left
	 * until the next sample.
	 */
	__u32 unsampled_sleeps;
	__u64 unsampled_sleep_ns;
	__s64 site_budget_ns;
	/* With `has_long_sleep`: the time of the longest sleep. */
	__u64 max_sleep_ns;
	/* When the thread began to wait for a decision on its call, and the call; 0: it did not. */
	__u64 waits_since_ns;
	__u32 waits_for_call;
	/*
	 * In this call, with in-band records: the number of sites in which it has slept, and which
	 * of them was the latest, counted from 1, while the wait after that sleep is not known (0:
	 * it is).
	 */
	__u16 in_band_sleeps;
	__u16 in_band_latest;
};

/* A thread's state: the account (lens_lives). */
struct lens_life {
	/* When it began to count; 0: it does not count. */
	__u64 began_ns;
	/* Its processor time until then. */
	__u64 processor_ns;
	/*
	 * Its time off processors since then. If it was off a processor already, this begins with
	 * the time before, as a negative number: the whole wait is added when it ends.
	 */
	__s64 off_ns;
	/* Its page faults until it began to count. */
	__u32 minor_faults;
	__u32 major_faults;
	/*
	 * When it was switched out outside of a call (0: it is not off a processor), its run_delay
	 * at that time, and the number of its switches in (sched_info.pcount).
	 */
	__u64 left_ns;
	__u64 left_delay_ns;
	__u32 left_runs;
	/* Its processor time in user mode and in the kernel that is counted already, in ms. */
	__u32 user_ms;
	__u32 system_ms;
	/* In IN_OUTER_CALL: the row in which the call is counted. */
	__u16 outer_row;
	/* The part of the account to which that wait belongs, less ACCOUNT_LIFE. */
	__u8 left_part;
	/* LIFE_BEGAN_IN_CALL and LIFE_BEGAN_IN_EXECVE */
	__u8 beginning;
};

/* It began to count, or a new thread to run, within a call whose beginning was not seen. */
#define LIFE_BEGAN_IN_CALL 1
/* It began to count with the call of execve that it is in. */
#define LIFE_BEGAN_IN_EXECVE 2

/* Processes with in-band records, from 1 on: thread_state has 8 bits for the number. */
#define IN_BAND_PROCESSES 256

/* A process with in-band records. */
struct in_band_owner {
	/* 0: the entry is free. */
	__u32 session;
	/* The number of sites in which its threads have slept. */
	__u32 sites;
};

/* A thread with in-band records that sleeps in a call (in_band_waits). */
struct in_band_wait {
	/* Its site, also when the sleep has ended. */
	__u64 site;
	/*
	 * The counters in which it counts: that of its user in the lower half, and that of the site
	 * in the upper one. 0: it counts in none. The code that sets it to 0 lowers the counters.
	 */
	__u32 counters;
	/* The other threads that slept there when it began, as in wire/in_band.h. */
	__u16 same_user;
	__u16 outside;
};

#define IN_BAND_COUNTERS 4096

/* How many threads sleep in a site now: those of a user, and all. */
struct in_band_counters {
	/* The number of counters that have a site; the first one is never used. */
	__u32 used;
	__u32 unused;
	__u32 waiting[IN_BAND_COUNTERS];
};

/* Stands for all users: the kernel has no user of this number (include/linux/uidgid.h). */
#define IN_BAND_ALL_USERS 0xffffffff

struct in_band_counter_key {
	__u64 address;
	__u32 user;
	__u32 unused;
};

struct in_band_site_key {
	__u64 address;
	__u32 process;
	__u32 unused;
};

/*
 * REQUESTS: an io_uring request is not counted at all. REQUEST_ENDS: if the completion queue has no
 * room, the kernel reports a completion without its request.
 *
 * CELLS_FULL: so few cells are left that calls count in their sessions' common row, not in their
 * own row.
 */
#define LENS_LOSSES(X)                                                                             \
	X(EXITS, LENS, "calls without an observed end")                                            \
	X(CALLS, LENS, "calls not recorded (table full)")                                          \
	X(CELLS_FULL, LENS, "calls counted in their session's common row (table full)")            \
	X(REQUESTS, LENS, "io_uring requests not counted (table full)")                            \
	X(REQUEST_ENDS, LENS, "io_uring requests without an observed end (queue full)")            \
	X(SITES_FULL, LENS, "blocking sites not recorded (table full)")                            \
	X(FILES_FULL, LENS, "calls not counted for their file (table full)")                       \
	X(CAUSES_FULL, LENS, "wakers and holders of locks not recorded (table full)")              \
	X(SLOW_CALLS, SESSION, "slow calls not reported (buffer full)")                            \
	X(FLAME_RATE, SESSION, "blocked intervals not sampled (more than 2,000 a second)")         \
	X(FLAME_FULL, SESSION, "stacks for flame graphs not recorded (buffer full)")               \
	X(TRACE, SESSION, "calls and waits not in the trace (buffer full)")

#endif
