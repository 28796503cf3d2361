/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Pace: tasks with deadlines, and the rules by which they are inferred. */
#ifndef TOLLGATE_WIRE_PACE_H
#define TOLLGATE_WIRE_PACE_H

#include "wire/tables.h"

/* The maximum number of unfinished tasks. Entry 0 is not used. */
#define PACE_TASKS 4096
/* The maximum number of rules of a session. A rule is a bit in struct pace_call. */
#define PACE_RULES 16
#define PACE_PROGRAM_LEN 16
#define PACE_NAME_LEN 64

/*
 * A program requests operations on its tasks by calls of getppid whose first argument is
 * PACE_MAGIC ("TOLLPACE"). getppid ignores its arguments, so without a gate the call does nothing.
 * The second argument is the operation; the others depend on it. The program chooses the IDs of
 * its tasks.
 */
#define PACE_MAGIC 0x544f4c4c50414345ULL

enum pace_operation {
	/* The type's ID, the task's ID. */
	PACE_BEGIN = 1,
	/* The task's ID. */
	PACE_END = 2,
	/* The ID of the task that ends, the ID of the task that begins, its type's ID. */
	PACE_END_AND_BEGIN = 3,
	/* The task's ID, the time from its beginning to its new deadline in ns. */
	PACE_SET_DEADLINE = 4,
	/* The type's ID, the address of its name. The name is a string of up to 63 bytes. */
	PACE_NAME_TYPE = 5,
};

/* What a thread does with a descriptor, or the lack of one. */
enum pace_descriptor {
	/* The call has no descriptor, or one of another kind. */
	PACE_OTHER = 0,
	PACE_SOCKET = 1,
	PACE_PIPE = 2,
	PACE_TERMINAL = 3,
	PACE_INPUT = 4,
	PACE_EPOLL = 5,
	PACE_TIMER = 6,
	PACE_EVENT = 7,
};

/* The rules whose tasks may begin when a call returns: one bit each. */
struct pace_call {
	__u16 if_zero;
	__u16 if_positive;
};

struct pace_rule {
	/* The file name of the executable, cut to 15 bytes; empty: any program. */
	char program[PACE_PROGRAM_LEN];
	/* Bits of enum pace_descriptor; 0: any descriptor, or none. */
	__u32 descriptors;
	/* The local port of the socket; 0: any. */
	__u16 port;
	/* 1: a task ends only when a thread waits in a call that begins tasks of the rule. */
	__u16 includes_waits;
};

/* The rules of a session. */
struct pace_rules {
	struct pace_call calls[CALL_INDICES];
	struct pace_rule rule[PACE_RULES];
};

enum pace_task_state {
	PACE_FREE = 0,
	PACE_LIVE = 1,
	PACE_ENDED = 2,
};

/* An unfinished task. */
struct pace_task {
	__u64 begin_ns;
	/* The processor time of its threads so far. */
	__u64 cpu_ns;
	/* The cycles of this time, each at the speed at which the processor ran. */
	__u64 cycles;
	/* API: the program's IDs of the task and of its type; 0: the task was inferred. */
	__u64 id;
	__u64 type;
	/* API: the time from the beginning to the deadline, if the program has changed it. */
	__u64 deadline_ns;
	/* enum pace_task_state */
	__u32 state;
	/* Changes when the entry gets another task. */
	__u32 number;
	/* The number of its threads that run, are ready to run, or wait for a disk. */
	__s32 ready;
	__u32 tgid;
	__u32 session;
	/* The thread that began it, as the session's PID namespace numbers it. */
	__u32 visible_pid;
	__u16 rule;
	__u16 descriptor;
	__u32 port;
	/* API: the task during which its thread began this one; 0: there is none. */
	__u32 outer;
	__u32 outer_number;
	/* Its own index. */
	__u32 entry;
	/* The slot of the thread that began it. */
	__u32 beginner;
	char program[PACE_PROGRAM_LEN];
};

/* The speed of each processor, in kHz. */
struct pace_speeds {
	__u32 khz[CPUS];
};

/* What pace knows of a thread: one entry for each thread slot. */
struct pace_thread {
	/* The task that it works on and the number of that task; 0: none. */
	__u32 task;
	__u32 number;
	/* 1: it is counted in the task's `ready`. */
	__u32 is_ready;
	/* The call in which it was woken last. */
	__u32 woken_in;
	/* The time of that wake-up; 0: it has been used. */
	__u64 woken_ns;
	/* Its processor time is charged up to this time; 0: it does not run, as far as is known. */
	__u64 charged_ns;
};

enum pace_end {
	/* All threads of the task slept. */
	PACE_END_IDLE = 0,
	/* Another task of the thread began. */
	PACE_END_NEXT = 1,
	/* The program has ended it. */
	PACE_END_PROGRAM = 2,
	/* Its last thread has ended. */
	PACE_END_EXIT = 3,
};

/* RECORD_PACE_TASK: a task has ended. */
struct pace_record {
	__u32 type;
	/* enum pace_end */
	__u32 end;
	__u64 begin_ns;
	__u64 end_ns;
	__u64 cpu_ns;
	__u64 cycles;
	__u64 type_id;
	__u64 deadline_ns;
	__u16 rule;
	__u16 descriptor;
	__u32 port;
	/* The thread that began it, as the session's PID namespace numbers it. */
	__u32 pid;
	__u32 unused;
	char program[PACE_PROGRAM_LEN];
};

/* RECORD_PACE_TYPE: a program names a type. */
struct pace_type_record {
	__u32 type;
	__u32 pid;
	__u64 type_id;
	char program[PACE_PROGRAM_LEN];
	char name[PACE_NAME_LEN];
};

#define PACE_LOSSES(X)                                                                             \
	X(PACE_TASKS_FULL, SESSION, "tasks with deadlines not followed (table full)")              \
	X(PACE_RECORDS, SESSION, "tasks with deadlines not reported (buffer full)")

#endif
