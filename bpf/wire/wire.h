/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Every type that the gate and user space share. This is the single source: the Rust types in
 * crates/kernel are generated from it. Times are nanoseconds of CLOCK_MONOTONIC unless a name or a
 * comment says otherwise; "global" process numbers are those of the initial PID namespace.
 */
#ifndef TOLLGATE_WIRE_WIRE_H
#define TOLLGATE_WIRE_WIRE_H

/* Identifies a map called .bss.tollgate as the gate's ("TOLLGATE"). */
#define GATE_MAGIC 0x544f4c4c47415445ULL

/* x86-64 numbers its calls up to 469 in Linux 6.18, i386 up to 469, x32 up to 547. */
#define CALLS_PER_ABI 576
#define CALL_INDICES (3 * CALLS_PER_ABI)
/* Calls with a number beyond the table share the last index of their ABI. */
#define CALL_UNKNOWN (CALLS_PER_ABI - 1)

/* errno 1..133 and the restart codes 512..516, which are visible at the boundary; 0: any other. */
#define ERRNO_REGULAR 134
#define ERRNO_RESTART_FIRST 512
#define ERRNO_RESTART_COUNT 5
#define ERRNO_INDICES (ERRNO_REGULAR + ERRNO_RESTART_COUNT)

/* The layout is that of crates/stats/src/histogram.rs, which gives its table to the gate. */
#define HISTOGRAM_BUCKETS 280
#define SMALL_VALUES 2048
#define BUCKETS_PER_OCTAVE 8

#define GATE_HOOKS 13
/* The maximum that hold calls before they take effect: crates/kernel/src/enforcement.rs. */
#define GUARD_HOOKS 23
/* Hooks of control groups, for services. */
#define DATAGRAM_HOOKS 2
#define GATE_LINKS (GATE_HOOKS + GUARD_HOOKS + DATAGRAM_HOOKS)
#define GATE_MAPS 46

#define SESSIONS 64
/* 6.8 MiB of cell tables. Further tasks share their session's base row, which is a loss. */
#define ROWS 1024
/* The last rows are the sessions' base rows, one each; only the rows before them are allocated. */
#define ALLOCATABLE_ROWS (ROWS - SESSIONS)
/* 4 MiB of states. Threads beyond this number are a loss. */
#define THREADS 16384
/* Threads are found by the low bits of their number; see by_pid in gate/threads.bpf.h. */
#define PID_TAGS 65536

/* Room for 400 slow calls. User space reads them every 100 ms at the latest. */
#define RING_BYTES (1 << 20)

#define COMM_LEN 16
#define STACK_DEPTH 32
#define PATH_PARTS 12
#define PATH_PART_LEN 48
#define CALL_ARGS 6
#define CALL_STRING_LEN 128
/* No call has more descriptors or more paths: crates/calls/src/arguments.rs. */
#define ARG_NAMES 2

/* The first index of an ABI's calls is abi * CALLS_PER_ABI. */
enum abi {
	ABI_X86_64 = 0,
	ABI_I386 = 1,
	ABI_X32 = 2,
};

/* What applies to a thread. The gate's configuration has the union of all that is compiled in. */
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
	/* Rules are matched when a file is opened; for all threads with SERVICE. */
	SERVICE_FILES = 1 << 9,
	/* Plugins run at the gate hooks; for all gated threads. */
	PLUGIN = 1 << 10,
	/* Plugins also run when a call ends. */
	PLUGIN_EXIT = 1 << 11,
};

/* Gate hooks at which plugins run. */
enum plugin_hook {
	PLUGIN_HOOK_ENTER,
	PLUGIN_HOOK_EXIT,
	PLUGIN_HOOK_FORK,
	PLUGIN_HOOK_EXEC,
	PLUGIN_HOOK_END,
	/* Before the guard tests a call. */
	PLUGIN_HOOK_GUARD,
	/* After the guard has applied its policy to a call. */
	PLUGIN_HOOK_VERDICT,
	PLUGIN_HOOKS,
};

/* Plugins that are loaded for a hook, of all sessions; and those that are linked, of one. */
#define PLUGIN_SLOTS 32
#define PLUGINS_LINKED 8

/* In a guard event's mismatches: a plugin has denounced the call. */
#define GUARD_DENOUNCED 0x8000

/* The guard's latest verdict on a processor, for plugins. */
struct plugin_verdict {
	__u32 mismatches;
	__u32 lfc;
	__u32 action;
	__u32 is_denounced;
};

/* A plugin's slot at a hook, for user space. */
struct plugin_slot {
	/* The session that the plugin runs for; 0: the whole machine. */
	__u32 session;
	__s32 priority;
	/* The process that owns the slot, and the PID namespace of that number; 0: none. */
	__u32 owner_pid;
	__u32 owner_namespace;
	/* Plugins of the same priority run in the order in which they were linked. */
	__u64 since;
	__u32 is_linked;
	__u32 unused;
};

/* The plugins at a hook, in chains, by their numbers from 1 on; 0: none. */
struct plugin_chain {
	/* The first plugin of each session. */
	__u8 first[SESSIONS];
	/*
	 * The plugin after each plugin. An unlinked plugin keeps its entry as long as a thread may
	 * be in it.
	 */
	__u8 next[PLUGIN_SLOTS + 8];
	struct plugin_slot slots[PLUGIN_SLOTS + 1];
};

enum loss {
	/* A task could not be gated: THREADS are gated already. */
	LOSS_THREADS_FULL,
	/* A call's end was not seen. */
	LOSS_EXITS,
	/* A call was not recorded: every cell is taken. */
	LOSS_CALLS,
	/* A call counts in its session's base row instead of its own: few cells are left. */
	LOSS_CELLS_FULL,
	/* A process, thread or command shares its session's base row: no other row is free. */
	LOSS_ROWS_FULL,
	/* A call's end during a change of generations looked like that of a denied call. */
	LOSS_RECONFIGURED,
	/* A blocking site was not recorded: the table of sites is full. */
	LOSS_SITES_FULL,
	/*
	 * The losses from here on do not concern the session that the tasks came from:
	 * crates/kernel/src/losses.rs.
	 */
	/* A slow call was not reported: the ring buffer was full. */
	LOSS_SLOW_CALLS,
	/* The end of a process or thread was not reported; its row is read at the end instead. */
	LOSS_ROW_NOTICES,
	/* A program runs without a profile: none was ready. */
	LOSS_PROFILES,
	/* A call of a program without a profile was not tested. */
	LOSS_UNGUARDED_CALLS,
	/* The start of a program or an anomaly was not reported: the ring buffer was full. */
	LOSS_GUARD_EVENTS,
	/* A thread's usage was not charged: there is no memory for its service's account. */
	LOSS_CHARGES,
	/*
	 * The service that uses a connection was not recorded: CONNECTIONS are open already, or
	 * there is no memory.
	 */
	LOSS_CONNECTIONS,
	/* No service is left for a rule to start: the work counts for the service above. */
	LOSS_DYNAMIC_SERVICES,
	/* A thread's migration was not requested: too many requests were pending. */
	LOSS_MIGRATIONS,
	/* Rules were not matched for an opened file: its path has too many names. */
	LOSS_FILES,
	LOSSES,
};

enum per {
	PER_ALL = 0,
	PER_PROCESS = 1,
	PER_THREAD = 2,
	PER_COMMAND = 3,
};

#define INTERPRETERS 20
#define INTERPRETER_NAME_LEN 16

/* A program that is many, by the script that it is given: crates/kernel/src/identity.rs. */
struct interpreter {
	/* The file's name, without a version at the end. */
	char name[INTERPRETER_NAME_LEN];
	/*
	 * Letters that end an option, one bit each from 'A' on: those that code follows, and those
	 * that another value follows.
	 */
	__u64 code;
	__u64 value;
};

/* Constants of one load of the gate (read-only data). */
struct gate_config {
	__u32 generation;
	__u32 enabled;
	/* Bounds of .sched.text: frames in it are the scheduler's, not a blocking site. */
	__u64 sched_text_start;
	__u64 sched_text_end;
	__u32 cells;
	/* Cells below this number are for any row, the others for sessions' base rows only. */
	__u32 unreserved_cells;
	/* The histogram's buckets for the smallest values. */
	__u8 small_buckets[SMALL_VALUES];
	/* Which calls can be held before they take effect: enum guard_precall. */
	__u32 precall[CALL_INDICES];
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
	/* Digest of the kernel side's sources: only the same build may join. */
	__u32 build;
	/* Only the generation named here acts; the programs of others return at once. */
	__u32 generation;
	__u32 enabled;
	/* The lowest unused slot, row, cell and dynamic service. Freed ones come back by queues. */
	__u32 next_thread;
	__u32 next_row;
	__u32 next_cell;
	__u32 next_service;
	/* Entries in `pending_children`: the fork hook looks them up only if there are some. */
	__u32 nurseries;
	/* Session that gates every new process, or 0. */
	__u32 system_wide_session;
	/* The number of profiles in the queue of this name. */
	__s32 ready_profiles;
	/* Guard: a thread was held at some time. */
	__u32 ever_held;
	/* How often the active generation was gone and an earlier one was made active again. */
	__u32 rollbacks;
	/*
	 * The session whose services are active, or 0; and the number of the active ruleset, whose
	 * lowest bit selects one of the two in memory.
	 */
	__u32 services_session;
	__u32 ruleset;
	/* What a joining process opens: crates/kernel/src/gate/. */
	__u32 link_ids[GATE_LINKS];
	__u32 map_ids[GATE_MAPS];
};

/*
 * Guard. A program's calls are renumbered in the order in which it first makes them, so that a
 * window of nine fits in a word: 0 is no call, GUARD_SYMBOL_OTHER any call after the first 126.
 */
#define GUARD_SYMBOL_BITS 7
#define GUARD_SYMBOLS (1 << GUARD_SYMBOL_BITS)
#define GUARD_SYMBOL_OTHER (GUARD_SYMBOLS - 1)
#define GUARD_LOOKAHEAD_MAX 9
#define GUARD_SEQUENCE_MAX 8
#define GUARD_WINDOW_MASK ((1ULL << (GUARD_SYMBOL_BITS * GUARD_LOOKAHEAD_MAX)) - 1)
/* In the bit that a window leaves free: of interrupted calls, and of entries of `known_cache`. */
#define GUARD_RESTARTS (1ULL << 63)
#define GUARD_CACHED (1ULL << 63)
/* Nested signal handlers whose windows are kept. */
#define GUARD_HANDLERS 4
#define GUARD_FRAME 128

/* Programs that have a profile at the same time, over all sessions. */
#define GUARD_PROFILES 1024
/* The slot of a program for which no profile was ready. */
#define GUARD_PROFILE_NONE GUARD_PROFILES
/* The slot of programs that the session does not guard. */
#define GUARD_PROFILE_UNSELECTED (GUARD_PROFILES + 1)
/* With these, a profile is 24 KiB: docs/decisions/0003-guard.md. */
#define GUARD_PAIRS_LOG2 11
#define GUARD_PAIRS (1 << GUARD_PAIRS_LOG2)
#define GUARD_WINDOWS_LOG2 10
#define GUARD_WINDOWS (1 << GUARD_WINDOWS_LOG2)
#define GUARD_CACHE_LOG2 9
#define GUARD_CACHE (1 << GUARD_CACHE_LOG2)
/* Where these windows do not suffice, user space adds this many, up to twice: 32 KiB each. */
#define GUARD_OVERFLOW_LOG2 12
#define GUARD_OVERFLOW (1 << GUARD_OVERFLOW_LOG2)
#define GUARD_OVERFLOW_MAX 2
/* Entries that are searched for a pair or a window. */
#define GUARD_PROBES 64
/* The maximum number of a thread's calls that its profile's counters lag behind. */
#define GUARD_BATCH 1024

enum guard_state {
	GUARD_TRAINING = 0,
	GUARD_FROZEN = 1,
	GUARD_NORMAL = 2,
};

/*
 * A pair's entry: the distances at which it was learned, those at which it is normal, the earlier
 * call, the current call.
 */
#define GUARD_PAIR_LEARNED 0xff
#define GUARD_PAIR_NORMAL_SHIFT 8
#define GUARD_PAIR_KEY_SHIFT 16
/* A window's entry. */
#define GUARD_WINDOW_LEARNED 1
#define GUARD_WINDOW_NORMAL 2
#define GUARD_WINDOW_KEY_SHIFT 2

/* A program's normal behavior: pH's profile, with its training and test data side by side. */
struct guard_profile {
	__u32 state;
	/* Symbols that were assigned. */
	__u32 symbols;
	/* Calls since training began, and their number at the latest change. */
	__u64 trained;
	__u64 changed_at;
	/* Since the profile became normal. */
	__u64 anomalies;
	/* All calls since the profile was made. */
	__u64 calls;
	/* Windows that did not fit, or whose pairs did not. */
	__u64 unlearned;
	/* Slots in `overflow_windows`; 0: none. */
	__u32 overflow[GUARD_OVERFLOW_MAX];
	/* Never held or killed, only observed. */
	__u32 is_exempt;
	__u32 unused;
	/* Incremented at each freezing; user space knows the time. */
	__u32 freezes_count;
	/* Incremented when training data is wiped, or normal data is set. */
	__u32 wipes;
	__u8 symbol_of[CALL_INDICES];
	/* Windows of nine that the fast path takes as known, by hash. */
	__u64 known_cache[GUARD_CACHE];
	__u64 windows[GUARD_WINDOWS];
	__u32 pairs[GUARD_PAIRS];
};

/* An event of a thread in the differential test, and what the guard makes of it. */
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

struct guard_overflow {
	__u64 windows[GUARD_OVERFLOW];
};

/* No session has this number; 0 is the session of the kernel's own processes. */
#define GUARD_NO_SID 0xffffffff

/* pH's parameters, as far as the kernel side needs them. */
struct guard_parameters {
	__u8 lookahead;
	__u8 sequence;
	__u16 tolerize_limit;
	__u32 anomaly_limit;
	__u32 normal_factor;
	__u32 normal_factor_den;
	/* enum guard_response */
	__u32 response;
	/* enum scope_kind */
	__u32 scope;
	__u64 delay_factor_ns;
	__u64 delay_cap_ns;
	/* With this many processes held, further ones are only observed. */
	__u32 max_held;
	/*
	 * Processes of this session (setsid) are only observed. A number of the initial PID
	 * namespace, or GUARD_NO_SID.
	 */
	__u32 exempt_sid;
	/*
	 * For how long an execve is held if the thread's LFC has reached `suspend_execve` since its
	 * last execve; 0: not at all.
	 */
	__u64 suspend_execve_ns;
	__u32 suspend_execve;
	__u32 unused;
};

/* What distinguishes programs besides their content. */
enum scope_kind {
	SCOPE_CONTENT = 0,
	SCOPE_SCRIPT = 1,
	SCOPE_UNIT = 2,
	SCOPE_IMAGE = 3,
};

struct fd_path {
	/* The argument that it belongs to; CALL_ARGS: none. */
	__u32 arg;
	__u16 mode;
	__u16 parts;
	/* 1: the parts lead up to the root. */
	__u32 complete;
	__u32 unused;
	__u64 inode;
	/* From the file up to the root, across mount points; longer names are cut. */
	char part[PATH_PARTS][PATH_PART_LEN];
};

#define SCOPE_TEXT_LEN 256

/* The name of a scope, read when a program begins. */
struct scope_name {
	/* A script as its interpreter was given it, a unit, or a container's control group. */
	char text[SCOPE_TEXT_LEN];
	/* The folder that a script's relative name starts from. */
	struct fd_path folder;
};

/* In place of a scope: every scope without an entry of its own. */
#define SCOPE_ANY 1

/* The file of a program, and its scope. */
struct guard_program {
	__u64 inode;
	__s64 ctime_ns;
	__u64 size;
	/* Hash of the scope's name (bpf/gate/identity.bpf.h); 0: none. */
	__u64 scope;
	__u32 device;
	__u32 session;
};

/*
 * Service. Work is charged to the service that the thread is bound to. The usage is the difference
 * of the kernel's own counters of the task, read when the binding changes and when the task ends,
 * so that nothing is done at a switch or a call.
 */
#define SERVICES 8192
#define SERVICE_ROOT 0
#define SERVICE_SHARED 1
/* In place of a service: the other end is not known. */
#define SERVICE_NONE 0xffff

/* A service by its number. */
struct service {
	/* The service itself or, once it is removed, the one that received its members. */
	__u16 successor;
	/* The service as rules name it: itself, or the one below which a rule has started it. */
	__u16 rule_service;
	/* The service whose control group its threads run in; SERVICE_ROOT: their original ones. */
	__u16 cgroup_of;
	/* enum service_migrate_flags */
	__u16 migrate_flags;
	/*
	 * Until then a thread is migrated as soon as it works for the service: others had to wait
	 * for its threads.
	 */
	__u64 contended_until_ns;
};

/* When to migrate a thread to its service's control group, besides at a preemption. */
enum service_migrate_flags {
	/* As soon as it is bound to the service otherwise than by a request. */
	MIGRATE_AT_ONCE = 1 << 0,
	/* Also if no other thread waits for its processor. */
	MIGRATE_UNCONTENDED = 1 << 1,
};

/*
 * A request to user space: migrate a thread to the control group of a service; SERVICE_ROOT: to
 * where it was before.
 */
struct service_migration {
	/* As the session of the services numbers threads. */
	__u32 tid;
	__u32 slot;
	/* When the thread began (CLOCK_BOOTTIME): thread numbers are reused. */
	__u64 began_ns;
	__u16 cgroup_of;
	/*
	 * The thread is bound otherwise than by a request: all limits of the service apply to it,
	 * not only those of processors.
	 */
	__u8 has_all_limits;
	/* Migrate the thread only when it has slept for a while after its reply. */
	__u8 is_return;
	__u8 unused[4];
};

/* In place of a service: the migration failed, so it is requested again. */
#define CGROUP_UNKNOWN 0xffff

#define MIGRATION_RING_BYTES 65536

#define NO_LIMIT 0x7fffffffffffffff

/* Limits of a service, and what it has of them, together with the services below it. */
struct service_limit {
	/* The service above. */
	__u16 parent;
	/*
	 * Beyond a limit, a thread works for this service from then on; SERVICE_NONE: it gets
	 * `error`.
	 */
	__u16 fallback;
	/* A negative errno. */
	__s32 error;
	__u64 sockets_max;
	__u64 connections_max;
	/* Bytes sent in a second. */
	__u64 rate_max;
	__u64 sockets;
	__u64 connections;
	/* When all that was sent would be on its way at that rate. */
	__u64 sent_until_ns;
	__u64 refused;
	__u64 rebound;
	/* Packets. */
	__u64 slowed;
	__u64 dropped;
};

/* A service and its ancestors, without the root. */
#define SERVICE_DEPTH 8

/* The services in whose counts a socket is; 0: no more. */
struct socket_counted_by {
	__u16 socket[SERVICE_DEPTH];
	__u16 connection[SERVICE_DEPTH];
};

/* The kernel's counters of a task. */
struct task_counters {
	__u64 cpu_ns;
	/* Waiting for a processor. */
	__u64 wait_ns;
	__u64 switches;
	__u64 preemptions;
	__u64 minor_faults;
	__u64 major_faults;
	/* By read, write and similar calls, of any file. */
	__u64 read_bytes;
	__u64 written_bytes;
	/* To and from a disk. */
	__u64 storage_read_bytes;
	__u64 storage_written_bytes;
};

/* What a service has used, on one processor; and what a thread has used since it was bound. */
struct service_account {
	struct task_counters task;
	/* How long its threads existed: they are blocked when they neither run nor wait. */
	__u64 present_ns;
	__u64 calls;
	/* Over sockets. */
	__u64 received_bytes;
	__u64 sent_bytes;
	/* How often usage was charged to it. */
	__u64 charges;
	/* Replies to others, sent by threads that worked for it by then. */
	__u64 shared_replies;
};

/* How a thread came to work for its service. */
enum service_binding {
	BINDING_OWN = 0,
	/* By a message, a file or a signal, until it works for another service. */
	BINDING_REQUEST = 1,
	/*
	 * By hand, with all that it starts: under the limits of the service as with BINDING_OWN,
	 * and not subject to rules on what a process is.
	 */
	BINDING_EXPLICIT = 2,
};

/* Why a thread has its binding. */
enum service_why {
	/* Its parent has it. */
	WHY_FORKED = 0,
	/* By a rule, on this event (crates/service/src/rule.rs, Event). */
	WHY_FORK = 1,
	WHY_EXEC = 2,
	WHY_ATTACHED = 3,
	WHY_USER = 4,
	WHY_RECEIVED = 5,
	WHY_OPENED = 6,
	/* A request that it sent for this service was answered. */
	WHY_RESUMED = 7,
	/* It was assigned by hand. */
	WHY_ASSIGNED = 8,
	/* It used io_uring, whose work cannot be followed. */
	WHY_IO_URING = 9,
	/* Its own service is at a limit. */
	WHY_LIMITED = 10,
	/* Its parent was asked by a signal to start it. */
	WHY_SIGNALLED = 11,
	/* It replied to another client than it received from last: it serves several at once. */
	WHY_SHARED_REPLY = 12,
};

#define SERVICE_EVENTS 6
#define SERVICE_TUPLES 32

/* Conditions of a tuple of rules, with their values in struct rule_query. */
enum service_field {
	FIELD_EXE = 1 << 0,
	FIELD_USER = 1 << 1,
	FIELD_UNIT = 1 << 2,
	FIELD_SERVICE = 1 << 3,
	FIELD_LISTEN_PATH = 1 << 4,
	FIELD_LISTEN_ADDRESS = 1 << 5,
	FIELD_LISTEN_PORT = 1 << 6,
	FIELD_CLIENT = 1 << 7,
	FIELD_PEER = 1 << 8,
	FIELD_CGROUP = 1 << 9,
	FIELD_FILE = 1 << 10,
};

/* Rules with conditions of one shape: one look-up finds the one that matches. */
struct service_tuple {
	/* enum service_field */
	__u16 fields;
	__u8 cgroup_depth;
	/* The client's address family (4 or 6), and the length of the network's prefix. */
	__u8 client_family;
	__u8 client_bits;
	__u8 file_depth;
	__u8 unused[2];
};

#define SERVICE_TUPLES_ALL (SERVICE_EVENTS * SERVICE_TUPLES)

/* The active rules, and which tuples are matched at each event. */
struct service_ruleset {
	__u32 number;
	/* Conditions of any tuple. */
	__u32 fields;
	/* The maximum number of names in a file's path, over all tuples. */
	__u32 file_depth;
	__u32 tuple_count[SERVICE_EVENTS];
	/* The tuples of each event, as indices of `tuple`. */
	__u8 tuples_of_event[SERVICE_TUPLES_ALL];
	struct service_tuple tuple[SERVICE_TUPLES_ALL];
};

/* A rule of a tuple, by the hash of its conditions' values. */
struct service_key {
	__u32 ruleset;
	__u32 tuple;
	__u64 hash;
};

/* In each of the two rulesets. */
#define SERVICE_RULES 65536

enum service_action {
	ACTION_NONE = 0,
	ACTION_BELONGS = 1,
	ACTION_INHERITS = 2,
	ACTION_ADOPTS_PEER = 3,
	/* A service for each value of `each`, below this one. */
	ACTION_CREATES = 4,
};

enum service_split {
	SPLIT_USER = 0,
	SPLIT_UNIT = 1,
	SPLIT_EXE = 2,
	SPLIT_CLIENT = 3,
};

/* A service that a rule has started, by the value that it is for. */
struct dynamic_service_key {
	__u16 below;
	/* enum service_split */
	__u8 each;
	__u8 unused[5];
	/*
	 * The user, the hash of the unit's name or of the program's path, or the client's address,
	 * IPv4 as IPv4-mapped IPv6.
	 */
	__u64 value[2];
};

/* Numbers of dynamic services; the services before them have names. */
#define SERVICES_DYNAMIC 6144

/* Room for the unit of a container engine: 64 digits, and words around them. */
#define SERVICE_NAME_LEN 92

struct dynamic_service {
	__u32 number;
	/*
	 * Of its first member, which may end before user space looks: its unit, or its program's
	 * file without folders.
	 */
	char name[SERVICE_NAME_LEN];
};

struct service_rule {
	/* In the ruleset; the lowest decides. */
	__u32 precedence;
	__u16 service;
	/* enum service_action */
	__u8 then;
	/*
	 * `events` has a bit for each event at which the rule is matched. With `names_events`, what
	 * a process is counts also where the thread is bound by a request or by hand.
	 */
	__u8 events;
	__u8 names_events;
	/* enum service_split, with ACTION_CREATES */
	__u8 each;
	__u8 unused[2];
};

/* A message that the thread finds at its next call or switch. */
enum service_message {
	/* It is bound to this service; the value is the time, in milliseconds. */
	MESSAGE_ASSIGN = 1,
	/* A rule of a new ruleset matches it; the value is the rule, as precedence + 1. */
	MESSAGE_RECLASSIFIED = 2,
	/*
	 * The service of a message's sender, which was not known when it was received; the value is
	 * the receive's number.
	 */
	MESSAGE_PEER = 3,
};

#define MESSAGE_SERVICE_SHIFT 16
#define MESSAGE_VALUE_SHIFT 32

/* What is known of a connection over which a message came. */
struct service_connection {
	__u64 listen_path;
	__u64 listen_address;
	/* Network order; IPv4 as IPv4-mapped IPv6. */
	__u64 client[2];
	__u32 listen_port;
	__u32 client_family;
};

/* A thread, as a member of its service. */
struct service_member {
	/* Odd while it changes. */
	__u32 version;
	__u16 service;
	/* enum service_why */
	__u8 why;
	/* enum service_binding */
	__u8 binding;
	/* The rule that decided, as precedence + 1, and its ruleset. */
	__u32 rule_number;
	__u32 ruleset;
	/* enum service_message, in the low bits */
	__u64 message;
	/* The binding changed while the thread ran: its switches in are recorded since then. */
	__u8 tracks_switch_in;
	__u8 is_exiting;
	__u8 has_io_uring;
	/* It is being forked or attached: it has used nothing since `charged_at`. */
	__u8 is_new;
	/*
	 * Incremented when what the thread is, or an assignment by hand, gives it another service:
	 * its earlier requests do not count then.
	 */
	__u16 epoch;
	/* The service in whose control group it is, or is about to be. */
	__u16 in_cgroup_of;
	__u32 user;
	/* The descriptor of its latest call, if that sends. */
	__u32 descriptor;
	/* Hashes of the program's path, and of the unit. */
	__u64 exe;
	__u64 unit;
	/* When the thread was bound (a charge leaves this), and since when nothing was charged. */
	__u64 bound_ns;
	__u64 charged_ns;
	struct task_counters charged_at;
	/* Since then. */
	__u64 calls;
	__u64 received_bytes;
	__u64 sent_bytes;
	/*
	 * With `tracks_switch_in`: when it was switched in last, its CPU time and its number of
	 * switches until then.
	 */
	__u64 switched_in_ns;
	__u64 switched_in_cpu_ns;
	__u64 switched_in_switches;
	/* Requests received so far, and the connection of the latest one. */
	__u32 receives;
	struct service_connection connection;
	/* The source of the datagram that it is about to receive; port 0: not known. */
	__u64 datagram_from[2];
	__u16 datagram_port;
	/* It has replied to its client, and has received no work since. */
	__u16 has_replied;
	/* For this many more bindings, it counts as a thread that works long for each. */
	__u32 migrate_credit;
	/* When it went to sleep after a reply, in its service's control group; 0: it is awake. */
	__u64 slept_ns;
	/*
	 * Begin of the thread (CLOCK_BOOTTIME) for which a migration with `is_return` is pending.
	 * User space sets it to 0: none is pending.
	 */
	__u64 return_thread_ns;
	/* In a process's first thread, a request by a signal: service/signals.bpf.h. */
	__u64 fork_request;
};

/* One direction of a connection, and the service that uses it. */
struct service_direction {
	/* The service of the latest sender at that time; SERVICE_NONE: nothing was sent. */
	__u16 service;
	/* The latest sender: its `epoch` at that time, and its slot. */
	__u16 epoch;
	__u32 sender;
	/*
	 * A thread that received before the sender was known: its slot, and the receive's number.
	 */
	__u32 receiver;
	__u32 receive_number;
	/* enum service_binding of the latest sender. */
	__u8 binding;
	/* Nothing was sent yet: the sender is the thread that opened the connection. */
	__u8 is_opening;
	__u16 unused;
	/* The descriptor of the latest send. */
	__u32 descriptor;
};

/* Addresses of the sender and of the receiver, IPv4 as IPv4-mapped IPv6. */
struct service_flow_key {
	__u64 from[2];
	__u64 to[2];
	__u16 from_port;
	__u16 to_port;
	__u32 net;
};

/* At a time, over loopback; each has two directions. */
#define CONNECTIONS 131072

/* Datagrams from one socket to one port. */
struct datagram_key {
	__u64 from[2];
	__u16 from_port;
	__u16 to_port;
	__u32 net;
};

struct datagram_sender {
	/* The service of the latest sender at that time. */
	__u16 service;
	/* The other end had sent before this end ever did. */
	__u16 is_answer;
};

/* Those used last are kept; 3 MiB. */
#define DATAGRAM_SENDERS 32768

enum service_role {
	ROLE_UNKNOWN = 0,
	ROLE_ACCEPTED = 1,
	ROLE_OPENED = 2,
	ROLE_NEITHER = 3,
};

/* One end of a connection. */
struct service_socket {
	/* enum service_role */
	__u16 role;
	/* `cached_rule` holds for this peer, program, user and ruleset. */
	__u16 cached_peer;
	__u32 cached_user;
	__u64 cached_exe;
	__u32 cached_ruleset;
	struct service_rule cached_rule;
	__u64 listen_path;
	/*
	 * The thread that received last (0: its sender was not known), its `epoch` at that time,
	 * and the service that it worked for after that.
	 */
	__u32 receiver;
	__u16 receiver_epoch;
	__u16 receiver_service;
	__u32 unused;
	/* What its owner sends. */
	struct service_direction direction;
};

/* One byte less than in sockaddr_un, and a NUL. */
#define UNIX_NAME_LEN 108

/* One end of a connection, as the iterator over sockets writes it. */
struct service_socket_record {
	/* By which processes have it open; and that of a Unix socket's other end. */
	__u64 inode;
	__u64 peer_inode;
	/* The direction of what its owner sends, over TCP or UDP. */
	struct service_flow_key route;
	__u16 is_unix;
	/* enum service_role */
	__u16 role;
	/*
	 * The thread that sent last (0: none, or it has ended), as the reader's PID namespace
	 * numbers it, and its service.
	 */
	__u32 sender;
	__u32 service;
	__u32 binding;
	/* The rule that decided for the receiver, as precedence + 1, and its ruleset. */
	__u32 rule_number;
	__u32 book;
	/* Of a Unix socket, with '@' for a NUL in front; empty: it has none. */
	char name[UNIX_NAME_LEN];
	__u32 unused;
};

/* A thread, as the iterator over members writes it. */
struct service_member_record {
	__u32 pid;
	__u32 tgid;
	__u32 slot;
	/* Of the member. */
	__u16 epoch;
	/*
	 * The service that `since` was used for. `service` may already be the one that the thread
	 * gets before it does anything more.
	 */
	__u16 used_for;
	__u16 service;
	__u8 why;
	__u8 binding;
	__u32 rule;
	__u32 book;
	__u32 user;
	/* 0: when the ruleset became active. */
	__u64 bound_ns;
	/* When the thread began (CLOCK_BOOTTIME). */
	__u64 began_ns;
	struct service_account since;
	char comm[COMM_LEN];
};

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

/* The tasks and options of one `run`, `lens` or `daemon`. */
struct session {
	__u32 used;
	__u32 mask;
	__u32 per;
	__u32 base_row;
	__u64 slow_limit_ns;
	/* Depth of the owner's PID namespace, whose process numbers are reported. */
	__u32 pid_level;
	/* The generation whose links the owner holds. */
	__u32 holds_generation;
	/* The process that owns the session, and the PID namespace of that number. */
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
	/* SIGCONTs that were sent to its processes since its owner's latest poll. */
	__u32 sigconts;
	/* Another process than its owner has switched the guard off. */
	__u32 is_disabled;
	/* Plugins are linked for its tasks only. */
	__u32 has_own_plugins;
	/*
	 * Larger than that of every session that existed when it began. Of two sessions with
	 * plugins of their own, a task has the plugins of the later one.
	 */
	__u64 number;
};

enum row_state {
	ROW_FREE = 0,
	ROW_LIVE = 1,
	/*
	 * Handed over by its session, which has ended or does not need it any more, to the session
	 * of its parent row.
	 */
	ROW_DONE = 2,
};

/* A row of a report: everything, or one process, thread or command. */
struct group {
	__u32 state;
	__u32 session;
	/* The row that its threads were in before this session took them over; 0: none. */
	__u32 parent;
	__s32 threads;
	/* As seen in the session's PID namespace. */
	__u32 pid;
	__u32 tgid;
	char comm[COMM_LEN];
};

/* Statistics of one call in one row, per CPU. */
struct cell {
	__u64 count;
	/* Of `count`: rejected before dispatch (seccomp, ptrace), and so without a time. */
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
	/* Consecutive timed calls that were cheap. */
	__u32 cheap_streak;
	__u32 unused;
	/* These may wrap: readers add up differences. */
	__u32 errors[ERRNO_INDICES];
	__u32 histogram[HISTOGRAM_BUCKETS];
};

/* The cell of each call in a row, in the low bits (0: none yet). */
struct cell_table {
	__u32 cell[CALL_INDICES];
};

/* Upper bound of the number of cells: crates/kernel/src/gate/load.rs. */
#define CELLS_MAX 4096
#define CELL_CHEAP 0x80000000
#define CELL_INDEX 0xffff

/* The address of a blocking site whose stack could not be read, or was the scheduler's only. */
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

/* A row that tasks of a session share, with the row that they count in as well (struct group). */
struct row_key {
	__u32 session;
	__u32 parent;
	/*
	 * PER_COMMAND: the command's name; PER_PROCESS: the process's global number; PER_ALL:
	 * empty.
	 */
	char name[COMM_LEN];
};

/* A thread, as its own PID namespace numbers it, whose new children belong to a session. */
struct pending_child_key {
	__u32 namespace_inum;
	__u32 tid;
};

struct pending_child {
	__u32 session;
	__u32 until_exec;
};

/* The maximum of Linux 6.18 on x86 (arch/x86/Kconfig, NR_CPUS_RANGE_END). */
#define CPUS 8192

/* The task that runs on a processor, as far as the gate knows. One cache line each. */
struct cpu_state {
	/* Where its registers are saved when it enters the kernel, which identifies the task. */
	__u64 regs;
	/* Its task_struct. */
	__u64 task;
	/* Its slot; 0: a bystander. */
	__u32 slot;
	__u32 unused;
	/*
	 * From the bottom of a task's kernel stack to its saved registers; the same for all tasks,
	 * 0 until seen.
	 */
	__u64 regs_offset;
	/* CLOCK_MONOTONIC minus the scheduler's clock, at the latest reported switch to a task. */
	__s64 clock_offset;
} __attribute__((aligned(64)));

/* A process that is to be attached. */
struct attach_request {
	__u32 session;
	__u32 unused;
	/* As user space found it: the kernel side can read only the current process's own. */
	__u64 scope;
};

struct arg_kinds {
	/* The first file descriptors and the first paths among the arguments; CALL_ARGS: none. */
	__u8 fd[ARG_NAMES];
	__u8 path[ARG_NAMES];
};

enum record_type {
	RECORD_ROW_DONE = 1,
	RECORD_SLOW_CALL = 2,
	RECORD_GUARD_PROGRAM = 3,
	RECORD_GUARD_EVENT = 4,
};

struct row_done {
	__u32 type;
	__u32 session;
	__u32 row;
};

/* What is done about an anomalous call; from GUARD_DELAY on, about every call with an LFC. */
enum guard_response {
	GUARD_OBSERVE = 0,
	/* Held for 2^LFC times the factor. */
	GUARD_DELAY = 1,
	/*
	 * As GUARD_DELAY, but an execve is refused or, where no hook can do that, its process is
	 * killed before the new program runs.
	 */
	GUARD_DENY = 2,
	/* Held until it is released. */
	GUARD_STOP = 3,
	GUARD_KILL = 4,
};

/* Why less was done than the response says. */
enum guard_restraint {
	GUARD_UNRESTRAINED = 0,
	/* Its program, or its session (setsid), is exempt. */
	GUARD_EXEMPT = 1,
	/* The maximum number of processes is held already. */
	GUARD_MAX_HELD = 2,
};

/*
 * Calls that can be held before they take effect, by the hooks that they pass first. A hook acts
 * only in its own calls: most hooks are also passed within other calls, which cannot be undone
 * cleanly there.
 */
enum guard_precall {
	PRECALL_EXECVE = 1 << 0,
	PRECALL_OPEN = 1 << 1,
	/* mkdir, mknod, link, symlink */
	PRECALL_MAKE = 1 << 2,
	/* unlink, rmdir, rename */
	PRECALL_REMOVE = 1 << 3,
	PRECALL_CONNECT = 1 << 4,
	PRECALL_BIND = 1 << 5,
	PRECALL_SOCKET = 1 << 6,
	PRECALL_SEND = 1 << 7,
	PRECALL_MMAP = 1 << 8,
	PRECALL_MPROTECT = 1 << 9,
	PRECALL_PTRACE = 1 << 10,
	PRECALL_KILL = 1 << 11,
	PRECALL_SETUID = 1 << 12,
	PRECALL_SETGID = 1 << 13,
	PRECALL_SETGROUPS = 1 << 14,
	PRECALL_BPF = 1 << 15,
	/* Without a hook: the kernel creates no process while a signal is pending. */
	PRECALL_FORK = 1 << 16,
	/* Over IPv4 and IPv6 only: programs of control groups see no other sockets. */
	PRECALL_IP_ONLY = 1 << 17,
	/* For one call: it is refused, not held. */
	PRECALL_DENY = 1 << 18,
	/* For one call: a part was undone, and so the rest must be. */
	PRECALL_UNDONE = 1 << 19,
	/* A stop would make it fail with EINTR: the thread is stopped at its next call. */
	PRECALL_DEFER = 1 << 20,
};

/* An anomalous call, or one at which its thread was held. */
struct guard_event {
	__u32 type;
	__u32 session;
	/* As seen in the session's PID namespace. */
	__u32 pid;
	__u32 tgid;
	__u32 profile_slot;
	__u32 call;
	__u64 time_ns;
	/* Until when the thread is held; 0: it is not. */
	__u64 held_until_ns;
	/* Including this call. */
	__u64 window;
	__u16 mismatches;
	__u8 lfc;
	/* enum guard_response: what was done. */
	__u8 action;
	char comm[COMM_LEN];
	/* enum guard_restraint */
	__u32 restraint;
	/* enum guard_precall: where the hold takes effect; 0: at the call's end. */
	__u32 precall;
};

/* A program has got a profile, for its first thread. */
struct guard_program_record {
	__u32 type;
	__u32 session;
	__u32 pid;
	__u32 profile_slot;
	struct guard_program program;
	struct fd_path path;
	struct scope_name scope;
};

struct arg_string {
	/* The argument's index; CALL_ARGS: none. */
	__u32 arg;
	char text[CALL_STRING_LEN];
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
};

struct stack {
	__u32 frames;
	__u32 unused;
	__u64 address[STACK_DEPTH];
};

#endif
