/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The gate's own types: its configuration, its header, sessions and rows.
 *
 * The headers in this folder have every type and table that the gate and user space share, and no
 * others. They are the single source: the Rust types in crates/kernel are generated from them.
 * Times are nanoseconds of CLOCK_MONOTONIC unless a name or a comment says otherwise; "global"
 * process numbers are those of the initial PID namespace.
 */
#ifndef TOLLGATE_WIRE_GATE_H
#define TOLLGATE_WIRE_GATE_H

#include "wire/files.h"
#include "wire/guard.h"
#include "wire/identity.h"
#include "wire/lens.h"
#include "wire/losses.h"
#include "wire/programs.h"
#include "wire/tables.h"
#include "wire/trace.h"
#include "wire/why.h"

/* Identifies a map called .bss.tollgate as the gate's ("TOLLGATE"). */
#define GATE_MAGIC 0x544f4c4c47415445ULL

/* The maximum number of programs for pre-call holds: crates/kernel/src/precall.rs. */
#define GUARD_HOOKS 23
/* The maximum number of shared maps: crates/kernel/src/gate/maps.rs. */
#define GATE_MAPS 89
/*
 * The maximum number of links. It includes one unused entry if the number of links and maps would
 * be even otherwise, because `struct gate_header` must not end in padding. This is not a macro,
 * because the generator of the Rust types would not know its value.
 */
enum {
	GATE_LINKS = GATE_PROGRAMS + GUARD_HOOKS +
		     (GATE_PROGRAMS + GUARD_HOOKS + GATE_MAPS + 1) % 2
};

/*
 * The extensions and options that apply to a thread. `gate_config.enabled` has all that are
 * compiled in.
 */
enum gate_mask {
	LENS = 1 << 0,
	LENS_SITES = 1 << 1,
	LENS_SLOW = 1 << 2,
	LENS_SAMPLE = 1 << 3,
	GUARD = 1 << 4,
	/* Calls are held before they take effect, by programs on LSM or cgroup hooks. */
	GUARD_LSM = 1 << 5,
	GUARD_CGROUP = 1 << 6,
	/* Programs have profiles by script, unit or container: guard_parameters.scope. */
	GUARD_SCOPED = 1 << 7,
	/* Usage is charged to the service that the thread works for. */
	SERVICE = 1 << 8,
	/* Rules are matched when a thread with SERVICE opens a file. */
	SERVICE_FILES = 1 << 9,
	/* Plugins run at the gate hooks for every gated thread. */
	PLUGIN = 1 << 10,
	/* Plugins also run when a call ends. */
	PLUGIN_EXIT = 1 << 11,
	/* Tasks with deadlines are followed. */
	PACE = 1 << 12,
	/* Tasks that enter a control group of a session become tasks of the session. */
	FOLLOW_CGROUPS = 1 << 13,
	/* Processes of a session can have records of their calls in their own memory. */
	LENS_IN_BAND = 1 << 14,
	/* 1 << 15 is that of the example in docs/extending.md. */
	/* Calls are also counted by file. */
	LENS_FILES = 1 << 16,
	/* Calls and waits are recorded one by one. */
	LENS_TRACE = 1 << 17,
	/* The stacks of blocked intervals are sampled for a flame graph. */
	LENS_FLAME = 1 << 18,
	/* The stacks of processor time in calls are sampled for a flame graph. */
	LENS_FLAME_CPU = 1 << 19,
	/* Each sleep is recorded with its waker and the holder of its lock. */
	LENS_WHY = 1 << 20,

	/* No extension: a watch has attached the thread, and has not begun to count. */
	AWAITS_BEGIN = 1 << 24,
};

/* The extensions of a mask. */
#define EXTENSIONS (AWAITS_BEGIN - 1)

enum per {
	PER_ALL = 0,
	PER_PROCESS = 1,
	PER_THREAD = 2,
	PER_COMMAND = 3,
};

/*
 * The properties of a call that the gate needs. The flags share a word with those of enum
 * guard_precall (PRECALL_BITS), which say how the call can be held before it takes effect. User
 * space finds the calls by name, in all ABIs, and sets their flags in gate_config.call_flags.
 */
enum call_flag {
	CALL_EXECVE = 1 << 21,
	CALL_SIGRETURN = 1 << 22,
	/* restart_syscall, by which the kernel continues an interrupted call. */
	CALL_RESTART = 1 << 23,
	CALL_OPENS = 1 << 24,
	CALL_SENDS = 1 << 25,
	/* It may change the effective user. */
	CALL_SETS_USER = 1 << 26,
	CALL_IO_URING = 1 << 27,
	/* The descriptor by which it sends is its third argument, and not the first one. */
	CALL_THIRD_DESCRIPTOR = 1 << 28,
	/* By this call, a program requests an operation on one of its tasks. */
	CALL_REQUESTS_PACE = 1 << 29,
	/* Its first argument is the descriptor by which it receives or waits. */
	CALL_HAS_DESCRIPTOR = 1 << 30,
	/* exit and exit_group. */
	CALL_NEVER_RETURNS = 1U << 31,
};

/* Constants of one load of the gate (read-only data). */
/* Code of the kernel. */
struct text_range {
	__u64 start;
	__u64 end;
};

/*
 * Code that sleeps for its callers: .sched.text, and `wait_woken`, `do_wait_intr` and
 * `do_wait_intr_irq` of kernel/sched/wait.c, which are not in that section (6.18).
 */
#define WAIT_TEXTS 4

struct gate_config {
	__u32 generation;
	__u32 enabled;
	/* Frames in these are no blocking sites. */
	struct text_range wait_texts[WAIT_TEXTS];
	struct why_config why;
	__u32 cells;
	/* Cells below this number are for any row, the others for common rows only. */
	__u32 unreserved_cells;
	/* The number of possible processors. */
	__u32 processors;
	__u32 unused;
	/* The histogram's buckets for the smallest values. */
	__u8 small_buckets[SMALL_VALUES];
	/* The flags of each call: bits of enum call_flag and of enum guard_precall. */
	__u32 call_flags[CALL_INDICES];
	struct interpreter interpreters[INTERPRETERS];
};

/* Shared by all generations and all Tollgate processes. */
struct gate_header {
	__u64 magic;
	/*
	 * Salt of the hashes by which rules of services are found, so that names cannot be chosen
	 * to have the same hash.
	 */
	__u64 salt;
	/*
	 * Digest of the sources of the gate and of its tables. A process joins only if its build
	 * has the same digest.
	 */
	__u32 build;
	/* Only the generation named here acts; the programs of others return at once. */
	__u32 generation;
	__u32 enabled;
	/*
	 * The lowest thread slot, row, cell and dynamic service that has never been used. Freed
	 * ones are in queues.
	 */
	__u32 next_thread;
	__u32 next_row;
	__u32 next_cell;
	__u32 next_service;
	/* Entries of `pending_children`: the fork hook searches them only if there are any. */
	__u32 pending_children_count;
	/* Session that gates every new process, or 0. */
	__u32 system_wide_session;
	/* The number of profiles in the queue `guard_ready_profiles`. */
	__s32 ready_profiles;
	/* Guard: a thread was held at some time. */
	__u32 ever_held;
	/* Lens: a request of io_uring was counted at some time. */
	__u32 ever_requested;
	/*
	 * How often the gate was rolled back to an earlier generation because the active one was
	 * gone.
	 */
	__u32 rollbacks;
	/* The session whose services are active, or 0. */
	__u32 services_session;
	/* The number of the active ruleset. Its lowest bit selects one of the two in memory. */
	__u32 ruleset;
	/*
	 * The links and maps that a process opens when it joins the gate: crates/kernel/src/gate/.
	 */
	__u32 link_ids[GATE_LINKS];
	__u32 map_ids[GATE_MAPS];
};

/* Room for 400 slow calls. User space reads them at least every 100 ms. */
#define RING_BYTES (1 << 20)
/* The buffer of a session with flame graphs: room for 490 samples, more than in 200 ms. */
#define FLAME_RING_BYTES (1 << 23)

enum record_type {
	RECORD_ROW_DONE = 1,
	RECORD_SLOW_CALL = 2,
	RECORD_GUARD_PROGRAM = 3,
	RECORD_GUARD_EVENT = 4,
	RECORD_PACE_ENDED = 5,
	RECORD_PACE_TYPE = 6,
	RECORD_CGROUP_ENTERED = 7,
	RECORD_FLAME_SLEEP = 9,
	RECORD_FLAME_SAMPLE = 10,
};

enum session_beginning {
	/* It counts. */
	SESSION_BEGUN = 0,
	/* It attaches tasks, but does not count yet. */
	SESSION_WAITS = 1,
	/* It is about to count: the accounts of its threads begin. */
	SESSION_BEGINS = 2,
};

/* The tasks and options of one `run`, `lens` or `daemon`. */
struct session {
	__u32 used;
	__u32 mask;
	__u32 per;
	__u32 base_row;
	__u64 slow_limit_ns;
	/* With LENS_TRACE: what ends before this time is recorded. */
	__u64 trace_until_ns;
	/* Depth of the owner's PID namespace, whose process numbers are reported. */
	__u32 pid_level;
	/* The generation whose links the owner holds. */
	__u32 holds_generation;
	/* The number of the process that owns the session, and the PID namespace of that number. */
	__u32 owner_pid;
	__u32 owner_namespace;
	/* Losses of sessions that took tasks over from this one, and ended before it. */
	__u64 inherited_losses[LOSSES];
	struct guard_parameters guard;
	/* Processes held at user space's latest poll, and holds that began since. */
	__u32 held;
	__u32 holds_begun;
	/* It gates every new process, unless another session does so now. */
	__u32 is_system_wide;
	/* SIGCONTs that others sent to its processes since its owner's latest poll. */
	__u32 sigconts;
	/* A process other than the session's owner has switched the guard off. */
	__u32 is_disabled;
	/* Plugins are linked for its tasks only. */
	__u32 has_own_plugins;
	/* The global number of the owner, if the session follows control groups. */
	__u32 owner_tgid;
	/* enum session_beginning */
	__u32 beginning;
	/*
	 * Larger than the number of every session that existed when this one began. If a task
	 * counts in two sessions with plugins of their own, it has the plugins of the later one.
	 */
	__u64 number;
	/* Guard: when the owner last checked its holds, by CLOCK_BOOTTIME. */
	__u64 guard_tended_ns;
	/*
	 * SIGCONTs that others have sent to its held processes, and a thread of the process that
	 * got the latest one, as in `visible_pid`.
	 */
	__u64 foreign_continues;
	__u32 foreign_continued;
	/* Another pass attaches the same tasks: those without room are counted then. */
	__u32 attaches_again;
};

enum row_state {
	ROW_FREE = 0,
	ROW_LIVE = 1,
	/*
	 * The row's session has ended or does not need the row any more, and has handed it over to
	 * the session of the parent row.
	 */
	ROW_DONE = 2,
};

/* A row of a report: everything, or one process, thread or command. */
struct row {
	__u32 state;
	__u32 session;
	/* The row that its threads were in before this session took them over; 0: none. */
	__u32 parent;
	/* Gated threads that count in the row, or in rows of which it is a parent. */
	__s32 threads;
	/* As seen in the session's PID namespace. */
	__u32 pid;
	__u32 tgid;
	/* 1: some calls of its threads count in the common row, because no counters were left. */
	__u32 is_partial;
	__u32 unused;
	/* When the process or thread was created. It distinguishes those with equal numbers. */
	__u64 started_ns;
	/* When its first thread joined it, and when the last one left it (0: it has threads). */
	__u64 began_ns;
	__u64 ended_ns;
	/* comm; for PER_COMMAND, the whole name of the program's file if it is known. */
	char comm[COMMAND_LEN];
	/* row_key.name, if tasks share the row. */
	char key[COMM_LEN];
};

/* Identifies a row that tasks of a session share. */
struct row_key {
	__u32 session;
	/* As in struct row. */
	__u32 parent;
	/*
	 * PER_COMMAND: the command's name, or half of it and a hash if comm cannot have all of it;
	 * PER_PROCESS: the process's global number; PER_ALL: empty.
	 */
	char name[COMM_LEN];
};

struct row_done {
	__u32 type;
	__u32 session;
	__u32 row;
};

/* A thread whose new children belong to a session, by its number in its own PID namespace. */
struct pending_child_key {
	__u32 namespace_inum;
	__u32 tid;
};

struct pending_child {
	__u32 session;
	__u32 until_exec;
};

/* A process that is to be attached. */
struct attach_request {
	__u32 session;
	/* The process is the session's owner. It is not attached; the session gets its numbers. */
	__u32 is_owner;
	/*
	 * User space finds the identity, because the kernel side can only find that of the current
	 * process.
	 */
	__u64 identity;
};

/* The number of followed control groups, and of names of those that may be created. */
#define FOLLOWED_CGROUPS 16384
#define AWAITED_CGROUPS 1024

/* A control group of any hierarchy. An identifier is not used again. */
struct cgroup_key {
	__u64 id;
	__u32 hierarchy;
	__u32 unused;
};

/* In place of a hierarchy's number: any hierarchy; or the name alone counts, wherever it is. */
#define ANY_HIERARCHY 0xffffffff
#define ANY_PARENT 0xfffffffe
#define AWAITED_PATH_LEN 252

/* A control group that belongs to a session as soon as it is created. */
struct awaited_cgroup {
	__u32 hierarchy;
	/* The path from the root of the hierarchy, or the name; filled with zeros. */
	char path[AWAITED_PATH_LEN];
};

/* A process has entered a control group of a session, and user space has to attach it. */
struct cgroup_entered {
	__u32 type;
	__u32 session;
	/* As seen in the session's PID namespace. */
	__u32 tgid;
	__u32 unused;
};

#endif
