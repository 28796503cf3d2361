/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Pace: tasks with deadlines, and the rules by which they are inferred. */
#ifndef TOLLGATE_WIRE_PACE_H
#define TOLLGATE_WIRE_PACE_H

#include "wire/tables.h"

/* The maximum number of unfinished tasks. Entry 0 is not used. */
#define PACE_TASKS 4096
/* Tasks that programs begin are found by buckets of their IDs' hashes: twice as many as tasks. */
#define PACE_BUCKET_BITS 10
#define PACE_WAYS 8
#define PACE_INDEX (PACE_WAYS << PACE_BUCKET_BITS)
/* In struct pace_task: its bucket is full. */
#define PACE_UNINDEXED 0xffff
/* The maximum number of rules of a session. A rule is a bit in struct pace_call. */
#define PACE_RULES 16
/* The maximum number of schedules. Entry 0 is not used. */
#define PACE_SCHEDULES 4096
/* The maximum number of speeds in a schedule. User space leaves out further ones. */
#define PACE_STEPS 16
/* The maximum number of speeds whose power is known. */
#define PACE_POWERS 64
/* The maximum number of exempt programs of a session: as many as rules. */
#define PACE_EXEMPT 16
/* The maximum number of users who may request operations in a session: as many as rules. */
#define PACE_USERS 16
#define PACE_PROGRAM_LEN 16
#define PACE_NAME_LEN 64

/*
 * A program requests operations on its tasks by calls of getppid whose first argument is
 * PACE_MAGIC ("TOLLPACE"). getppid ignores its arguments, so without a gate the call does nothing.
 * The second argument is the operation; the others depend on it. The program chooses the IDs of
 * its tasks. If a task begins right after another one has ended on the same processor, it begins
 * faster if the lower halves of both IDs are equal.
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

/* The kind of a call's descriptor. */
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
	/* If it returns 0 after the thread has slept in it: the time to wait has passed. */
	__u16 if_timeout;
	__u16 unused;
};

struct pace_rule {
	/* The file name of the executable, cut to 15 bytes; empty: any program. */
	char program[PACE_PROGRAM_LEN];
	/* Bits of enum pace_descriptor; 0: any descriptor, or none. */
	__u32 descriptors;
	/* The local port of the socket; 0: any. */
	__u16 port;
	/* 1: the task continues while its first thread sleeps in a call that begins no task. */
	__u16 includes_waits;
};

/* The rules of a session. */
struct pace_rules {
	struct pace_call calls[CALL_INDICES];
	struct pace_rule rule[PACE_RULES];
	/* The file names of the executables whose threads work on no task, cut to 15 bytes. */
	char exempt[PACE_EXEMPT][PACE_PROGRAM_LEN];
	/* Their number. */
	__u32 exempt_programs;
	/* 1: only root and these users may request operations on their tasks. */
	__u32 has_users;
	__u32 user[PACE_USERS];
	/* The number of users. */
	__u32 users;
	/* 1: a program has begun a task itself. The kernel side sets it. */
	__u32 has_own_tasks;
};

enum pace_task_state {
	PACE_FREE = 0,
	PACE_LIVE = 1,
	PACE_ENDED = 2,
};

/* In the `life` of struct pace_task. */
#define PACE_NUMBER_SHIFT 32

/* An unfinished task. */
struct pace_task {
	/*
	 * enum pace_task_state, plus the number of the entry's task << PACE_NUMBER_SHIFT. The
	 * number changes when the entry gets another task. Both are in one word, so that a
	 * processor that has found a task cannot end a later one of the same entry.
	 */
	__u64 life;
	__u64 begin_ns;
	/* The processor time of its threads so far. */
	__u64 cpu_ns;
	/* The cycles of this time, each at the speed at which the processor ran. */
	__u64 cycles;
	/* The modelled energy of this time in pJ, beyond that of an idle processor. */
	__u64 energy_pj;
	/* If a program began it: the program's IDs of the task and of its type; otherwise 0. */
	__u64 id;
	__u64 type;
	/* The time from the beginning to the deadline, if the program has changed it. */
	__u64 deadline_ns;
	/* The number of its threads that run, are ready to run, or wait for a disk. */
	__s32 ready;
	__u32 tgid;
	__u32 session;
	/* The thread that began it, as the session's PID namespace numbers it. */
	__u32 visible_pid;
	__u8 rule;
	/* enum pace_descriptor */
	__u8 descriptor;
	/* If a program began it: its slot in pace_index, plus 1, or PACE_UNINDEXED; or else 0. */
	__u16 index_slot;
	/* Of a socket, the local port; of an input device, the event: type << 16 | code. */
	__u32 detail;
	/* If a program began it: the task of the thread before; 0: there was none. */
	__u32 outer;
	__u32 outer_number;
	/* Its own index. */
	__u32 entry;
	/* The slot of the thread that began it. */
	__u32 beginner;
	/* Its entry in pace_schedules; 0: it runs at the fastest speed. */
	__u16 schedule;
	/* 1: it has been late (pace_find_need). */
	__u16 is_late;
	/* The frequency domain whose tasks it is counted among, plus 1; 0: it is not paced. */
	__u32 domain;
	char program[PACE_PROGRAM_LEN];
};

/*
 * The number of free entries of pace_tasks that each processor keeps at most. While it has at most
 * half of that number, it takes one from the queue, so that an entry is not used again at once.
 */
#define PACE_KEPT 8

/* A processor. */
struct pace_cpu {
	/* The address of the scheduler's queue (struct rq); 0: not known yet. */
	__u64 queue;
	/* The speed at which it runs, in kHz. */
	__u32 khz;
	/* 1: the driver reports when the speed changes (power:cpu_frequency). */
	__u32 is_reported;
	/* The slot of the thread with a task that runs on it; 0: there is none. */
	__u32 slot;
	/* Its frequency domain, and the next processor of the domain, in a circle. */
	__u32 domain;
	__u32 next;
	/* The power at its speed beyond that of an idle processor; 0: it is not known. */
	__u32 milliwatts;
	/* The numbers of entries that were added to `kept` and taken from it. */
	__u32 added;
	__u32 taken;
	__u32 kept[PACE_KEPT];
	/* The entry whose task a program has ended here last. It keeps its slot in the index. */
	__u32 latest;
	/* The cycles of a nanosecond at its speed, << PACE_CYCLES_SHIFT. */
	__u32 cycles_per_ns;
	/* When its counter of cycles was last read, and what it was. */
	__u64 counted_ns;
	__u64 counted;
	/* The cycles that other processors have charged since, by time and speed. */
	__u64 estimated;
	/* 1: pace_counters has a counter of its cycles. User space sets it. */
	__u32 has_counter;
	/*
	 * The slot of the thread for which its counter was last read, as long as the thread has not
	 * left the processor; 0: there is none.
	 */
	__u32 counted_slot;
};

/*
 * A division takes up to 40 cycles. With 20 bits, the error of a speed of 100 MHz is 10^-5, and
 * cycles_per_ns has room for 4,000 GHz. An hour at 4 GHz fits into 64 bits.
 */
#define PACE_CYCLES_SHIFT 20

enum pace_mode {
	/* No task is unfinished, and no other work was ready to run since. */
	PACE_RELEASED = 0,
	/* The domain runs at a speed. */
	PACE_AT = 1,
	/* Other work is ready to run, too: the speed that the governor chooses, if it is faster. */
	PACE_AT_LEAST = 2,
	/* No task is unfinished, and other work is ready to run. */
	PACE_RELEASED_BUSY = 3,
};

/* A frequency domain: processors that have the same speed. */
struct pace_domain {
	/* The wanted speed in kHz (0: the fastest), plus enum pace_mode << PACE_MODE_SHIFT. */
	__u64 wanted;
	/* The number of its unfinished tasks. */
	__u32 tasks;
	/* 1: several tasks were unfinished at the same time since the domain last had none. */
	__u32 is_crowded;
	/* The task and its number, if it is the only one. */
	__u32 task;
	__u32 number;
	/* 1: other work was ready to run at the latest two searches for it. */
	__u32 has_others;
	/* 1: other work was ready to run at the latest search. */
	__u32 saw_others;
	/* The first of its processors, and their number. */
	__u32 first;
	__u32 cpus;
	/* When the next search for other work is due; 0: none is. */
	__u64 search_ns;
	/* When its last task ended. */
	__u64 released_ns;
	/* The cycles at which the next step of its only task begins; 0: there is none. */
	__u64 next_step;
};

#define PACE_MODE_SHIFT 32

/* The speed of a task from some amount of work on. */
struct pace_step {
	/* The cycles that the task has done when the step begins. */
	__u64 cycles;
	/* The time from the beginning of the task to the step, as it is planned. */
	__u64 ns;
	__u64 khz;
};

/* A schedule of a type. User space writes the half that is not used, and then selects it. */
struct pace_schedule {
	/* The half that is used. */
	__u32 half;
	/* The numbers of steps. */
	__u32 steps[2];
	__u32 unused;
	/* The time from the beginning of a task to its deadline. */
	__u64 deadline_ns[2];
	/* The time from the beginning of a task to the end of its schedule. */
	__u64 planned_ns[2];
	struct pace_step step[2 * PACE_STEPS];
};

/* A type of tasks that has a schedule. */
struct pace_type_key {
	__u64 type;
	__u32 detail;
	__u16 rule;
	__u16 descriptor;
	char program[PACE_PROGRAM_LEN];
};

/* A domain should have another speed, which user space reads from `struct pace_domain`. */
struct pace_speed_change {
	__u32 domain;
	__u32 unused;
	__u64 ns;
};

/*
 * One page, the smallest ring buffer, which has room for 170 changes. More are not lost, because
 * user space reads the latest wanted speed.
 */
#define PACE_SPEED_CHANGES_BYTES 4096

/* The power of a processor at a speed, beyond that of an idle one. */
struct pace_power {
	__u32 khz;
	__u32 milliwatts;
};

struct pace_control {
	/*
	 * The lowest entry of pace_tasks that has never been used. Freed ones are kept by the
	 * processors or in a queue. User space sets it to 1 before the first task.
	 */
	__u32 next_task;
	/* The session whose tasks decide the speeds; 0: there is none. */
	__u32 session;
	/* The generation whose programs the timers run, and the number of timers. */
	__u32 timers_generation;
	__u32 timers;
	/*
	 * How often to search for other work that is ready to run, while a task runs below the
	 * fastest speed. Work that is ready for a shorter time does not change the speed.
	 */
	__u64 search_interval_ns;
	/* For how long after its last task a domain is watched for other work. */
	__u64 release_delay_ns;
	/* In ascending order. A speed between two has the power of the faster one. */
	struct pace_power power[PACE_POWERS];
	/* The bit of each of these levels that is worthwhile. */
	__u64 worthwhile;
	__u32 powers;
	/* The fastest speed of the domains, in kHz. */
	__u32 fastest_khz;
	/* The number of unfinished tasks that have no slot in pace_index. */
	__u32 unindexed;
	/* The event of perf that counts cycles, and the number of processors on which it does. */
	__u32 counter_type;
	__u64 counter_config;
	__u32 counters;
	__u32 unused;
	/* The sessions that count cycles in this way, a bit for each. */
	__u64 counting_sessions;
};

/* What pace knows of a thread: one entry for each thread slot. */
struct pace_thread {
	/* The task that it works on and the number of that task; 0: none. */
	__u32 task;
	__u32 number;
	/* 1: it is counted in the task's `ready`. */
	__u32 is_ready;
	/* The calls in which it was woken last and has slept last: the index plus 1; 0: none. */
	__u16 woken_in;
	__u16 slept_in;
	/* 1: `program` and `is_exempt` are known. They are found when they are first needed. */
	__u16 is_known;
	/* 1: its program is exempt, and it works on no task. */
	__u16 is_exempt;
	/* The session that follows its tasks, which need not be the session of the thread. */
	__u32 session;
	char program[PACE_PROGRAM_LEN];
	/* The time of its latest wake-up; 0: a task has begun with it. */
	__u64 woken_ns;
	/* Its processor time is charged up to this time; 0: it does not run, as far as is known. */
	__u64 charged_ns;
	/* When it last left a processor with its task, or joined the task. */
	__u64 left_ns;
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

/* A task that has ended. */
struct pace_record {
	__u64 begin_ns;
	__u64 end_ns;
	__u64 cpu_ns;
	__u64 cycles;
	__u64 energy_pj;
	__u64 type_id;
	__u64 deadline_ns;
	__u16 rule;
	__u16 descriptor;
	__u32 detail;
	/* The thread that began it, as the session's PID namespace numbers it. */
	__u32 pid;
	/* enum pace_end */
	__u32 end;
	char program[PACE_PROGRAM_LEN];
};

/* The tasks that have ended on a processor, and that user space has not read yet. */
#define PACE_ENDED_TASKS 2048

/*
 * Their records, in a ring. Each side writes one of the numbers, which have cache lines of their
 * own. RECORD_PACE_ENDED wakes up user space when half of the ring is used.
 */
struct pace_ended {
	/* The number of records that were added. */
	__u64 added;
	__u64 unused[CACHE_LINE / sizeof(__u64) - 1];
	/* The number of records that user space has read. */
	__u64 taken;
	__u64 also_unused[CACHE_LINE / sizeof(__u64) - 1];
	struct pace_record records[PACE_ENDED_TASKS];
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
	X(PACE_RECORDS, SESSION, "tasks with deadlines not reported (buffer full)")                \
	X(PACE_TYPE_NAMES, SESSION, "names of types of tasks not reported (buffer full)")          \
	X(PACE_OTHER_SESSION, SESSION,                                                             \
	  "threads whose tasks with deadlines another session follows")                            \
	X(PACE_DENIED, SESSION, "operations on tasks denied (user not in the rules)")

#endif
