/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Every type that crosses the border between the gate and user space. This is the single source: the
 * Rust types in crates/kernel are generated from it. Times are nanoseconds of CLOCK_MONOTONIC unless a
 * name says otherwise; "global" process numbers are those of the initial PID namespace.
 */
#ifndef TOLLGATE_WIRE_H
#define TOLLGATE_WIRE_H

/* Says that a map called .bss.tollgate is ours ("TOLLGATE"). */
#define GATE_MAGIC 0x544f4c4c47415445ULL

/* x86-64 numbers its calls up to 469 in Linux 6.18, i386 up to 469, x32 up to 547. */
#define CALLS_PER_ABI 576
#define CALL_SLOTS (3 * CALLS_PER_ABI)
/* Calls with a number beyond the table share the last slot of their ABI. */
#define CALL_UNKNOWN (CALLS_PER_ABI - 1)

/* errno 1..133 and the restart codes 512..516, which are visible at the boundary; 0: any other. */
#define ERRNO_PLAIN 134
#define ERRNO_RESTART_FIRST 512
#define ERRNO_RESTART_COUNT 5
#define ERRNO_SLOTS (ERRNO_PLAIN + ERRNO_RESTART_COUNT)

/* The histogram's layout is crates/stats/src/histogram.rs, which hands its table to the gate. */
#define HISTOGRAM_BUCKETS 280
#define SMALL_VALUES 2048
#define BUCKETS_PER_OCTAVE 8

#define GATE_HOOKS 13
/* The most that hold calls before they take effect: crates/kernel/src/before.rs. */
#define GUARD_HOOKS 23
/* Of control groups, for services. */
#define DATAGRAM_HOOKS 2
#define GATE_LINKS (GATE_HOOKS + GUARD_HOOKS + DATAGRAM_HOOKS)
#define GATE_MAPS 46

#define SESSIONS 64
/* 6.8 MiB of cell tables. Later rows share their session's, which is counted. */
#define GROUPS 1024
/* The last groups are the base groups of the sessions, one each; only those before them are taken as rows. */
#define ROWS (GROUPS - SESSIONS)
/* 4 MiB of states. Threads beyond them are counted as a loss. */
#define THREADS 16384
/* Threads are found by the low bits of their number; see by_pid in state.bpf.h. */
#define PID_TAGS 65536

/* 400 slow calls, which user space takes out every 100 ms at the latest. */
#define RING_BYTES (1 << 20)

#define COMM_LEN 16
#define STACK_DEPTH 32
#define PATH_PARTS 12
#define PATH_PART_LEN 48
#define CALL_ARGS 6
#define CALL_STRING_LEN 128
/* No call has more descriptors, or more paths: crates/calls/src/arguments.rs. */
#define ARG_NAMES 2

/* Index of an ABI's first call slot is abi * CALLS_PER_ABI. */
enum abi {
	ABI_X86_64 = 0,
	ABI_I386 = 1,
	ABI_X32 = 2,
};

/* What applies to a thread; the gate's configuration has the union of all that is compiled in. */
enum gate_mask {
	LENS = 1 << 0,
	LENS_SITES = 1 << 1,
	LENS_SLOW = 1 << 2,
	LENS_SAMPLE = 1 << 3,
	GUARD = 1 << 4,
	/* Its holds come before calls take effect, by programs on hooks of security modules or of control groups. */
	GUARD_LSM = 1 << 5,
	GUARD_CGROUP = 1 << 6,
	/* Its programs have profiles by script, unit or container: guard_parameters.scope. */
	GUARD_SCOPED = 1 << 7,
	/* What it uses is charged to the service it works for. */
	SERVICE = 1 << 8,
	/* Rules ask for files that are opened: of all with SERVICE. */
	SERVICE_FILES = 1 << 9,
	/* Plugins run at its hooks; of all gated threads. */
	PLUGIN = 1 << 10,
	/* Also when a call ends. */
	PLUGIN_EXIT = 1 << 11,
};

/* Hooks of the gate at which plugins run. */
enum plugin_hook {
	PLUGIN_ENTERS,
	PLUGIN_EXITS,
	PLUGIN_FORKS,
	PLUGIN_EXECS,
	PLUGIN_ENDS,
	/* Before the guard looks at a call. */
	PLUGIN_GUARDS,
	/* After the guard has done something about a call, or would have. */
	PLUGIN_VERDICTS,
	PLUGIN_HOOKS,
};

/* Plugins that are loaded for a hook at a time, of all sessions; and those that are linked, of one. */
#define PLUGIN_SLOTS 32
#define PLUGINS_LINKED 8

/* In a guard event's mismatches: a plugin has called it an anomaly. */
#define GUARD_DENOUNCED 0x8000

/* What the guard has said last on a processor, for plugins. */
struct plugin_verdict {
	__u32 mismatches;
	__u32 lfc;
	__u32 action;
	__u32 is_denounced;
};

/* A plugin's place at a hook, for user space. */
struct plugin_slot {
	/* Whose: that of a session, or of the whole machine (0). */
	__u32 session;
	__s32 priority;
	/* Who has it: a process, and the PID namespace that this number is of; 0: nobody. */
	__u32 owner_pid;
	__u32 owner_namespace;
	/* Plugins of the same priority run in the order in which they came. */
	__u64 since;
	__u32 is_linked;
	__u32 unused;
};

/* Which plugins run at a hook, one after the other, by their numbers from 1 on; 0: none. */
struct plugin_chain {
	/* Of each session. */
	__u8 first[SESSIONS];
	/* After each plugin, also after one that was taken out, as long as somebody may be in it. */
	__u8 next[PLUGIN_SLOTS + 8];
	struct plugin_slot slots[PLUGIN_SLOTS + 1];
};

enum loss {
	/* A task could not be gated: THREADS are gated already. */
	LOSS_THREADS_FULL,
	/* A call's end was not seen. */
	LOSS_ENDS,
	/* A call was not recorded: every cell is taken. */
	LOSS_CALLS,
	/* A call counts in its session's common row instead of its own: few cells are left. */
	LOSS_CELLS_FULL,
	/* A process, thread or command shares its session's: ROWS exist already. */
	LOSS_GROUPS_FULL,
	/* A call that ended while a new configuration took over could not be told from a denied one. */
	LOSS_HANDOVER,
	/* A blocking site was not recorded: the table of sites is full. */
	LOSS_SITES_FULL,
	/* From here on, of no concern to the session that the tasks came from: crates/kernel/src/losses.rs. */
	/* A slow call was not reported: the ring buffer was full. */
	LOSS_SLOW_CALLS,
	/* A finished process or thread was not announced; it is read at the end instead. */
	LOSS_GROUP_NOTICES,
	/* A program runs without a profile: none was ready. */
	LOSS_PROFILES,
	/* A call of such a program was not judged. */
	LOSS_UNGUARDED_CALLS,
	/* A program's first appearance, or an anomaly, was not reported: the ring buffer was full. */
	LOSS_GUARD_EVENTS,
	/* What a thread used was charged to nobody: there is no memory for its service's account. */
	LOSS_CHARGES,
	/* For whom a connection is used was not noted: CONNECTIONS are open already, or there is no memory. */
	LOSS_CONNECTIONS,
	/* Work for whom a rule was to start a service is the one's below which: as many as can be are started. */
	LOSS_SERVICES,
	/* A thread was not asked to be put in its service's control group: too many were at once. */
	LOSS_PLACEMENTS,
	/* Rules were not asked of an opened file: there are too many names in its path. */
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

/* A program that is many, by the script it is given: crates/kernel/src/scope.rs. */
struct interpreter {
	/* Its file's, without a version at the end. */
	char name[INTERPRETER_NAME_LEN];
	/* Letters, a bit each from 'A' on, at the end of options that have code after them, or another value. */
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
	/* Cells below this number are for any group, the rest only for the common rows of sessions. */
	__u32 cells_for_all;
	/* The histogram's buckets of the smallest values. */
	__u8 small_buckets[SMALL_VALUES];
	/* Which calls can be held before they take effect: enum guard_before. */
	__u32 before[CALL_SLOTS];
	struct interpreter interpreters[INTERPRETERS];
};

/* Shared by all generations and all Tollgate processes. */
struct gate_header {
	__u64 magic;
	/* Of the hashes by which services' rules are found, so that nobody makes names that have the same one. */
	__u64 salt;
	/* Digest of the kernel side's sources: only the same build may join. */
	__u32 build;
	/* Only the generation named here acts; the programs of others return at once. */
	__u32 generation;
	__u32 enabled;
	/* The lowest never-used slot, group, cell and number of a started service; used ones come back by queue. */
	__u32 next_thread;
	__u32 next_group;
	__u32 next_cell;
	__u32 next_service;
	/* How many entries `nurseries` has: the fork hook looks only if there is one. */
	__u32 nurseries;
	/* Session that gates every new process, or 0. */
	__u32 everything;
	/* How many empty profiles wait in the queue of this name. */
	__s32 ready_profiles;
	/* Guard: somebody was held once. */
	__u32 was_held;
	/* How often the one in charge was gone, and the one before it was put back. */
	__u32 put_back;
	/* Session whose services are in force, or 0; and which of the two books of rules is. */
	__u32 services;
	__u32 book;
	/* What a joining process opens: see crates/kernel/src/gate/. */
	__u32 link_ids[GATE_LINKS];
	__u32 map_ids[GATE_MAPS];
};

/*
 * Guard. A program's calls are renumbered in the order in which it first makes them, so that a window of
 * nine fits in a word; 0 is no call, GUARD_OTHER any call after the first 126.
 */
#define GUARD_SYMBOL_BITS 7
#define GUARD_SYMBOLS (1 << GUARD_SYMBOL_BITS)
#define GUARD_OTHER (GUARD_SYMBOLS - 1)
#define GUARD_LOOKAHEAD_MAX 9
#define GUARD_SEQUENCE_MAX 8
#define GUARD_WINDOW_MASK ((1ULL << (GUARD_SYMBOL_BITS * GUARD_LOOKAHEAD_MAX)) - 1)
/* In the bit that a window leaves free: of interrupted calls, and of entries of `recent`. */
#define GUARD_AGAIN (1ULL << 63)
#define GUARD_KNOWN (1ULL << 63)
/* Handlers within handlers whose windows are kept. */
#define GUARD_HANDLERS 4
#define GUARD_FRAME 128

/* Programs that have a profile at the same time, over all sessions. */
#define GUARD_PROFILES 1024
/* The place of a program for which none was ready. */
#define GUARD_NO_PROFILE GUARD_PROFILES
/* The place of programs that the session was not asked to guard. */
#define GUARD_NOT_CHOSEN (GUARD_PROFILES + 1)
/* With these, a profile is 24 KiB: docs/decisions/0003-guard.md. */
#define GUARD_PAIRS_LOG2 11
#define GUARD_PAIRS (1 << GUARD_PAIRS_LOG2)
#define GUARD_WINDOWS_LOG2 10
#define GUARD_WINDOWS (1 << GUARD_WINDOWS_LOG2)
#define GUARD_RECENT_LOG2 9
#define GUARD_RECENT (1 << GUARD_RECENT_LOG2)
/* Where these windows are not enough, user space adds this many more, up to twice: 32 KiB each. */
#define GUARD_MORE_LOG2 12
#define GUARD_MORE (1 << GUARD_MORE_LOG2)
#define GUARD_MORE_TIMES 2
/* Places that are looked at for a pair or a window. */
#define GUARD_PROBES 64
/* The most calls of a thread that its profile's counters may lag behind. */
#define GUARD_BATCH 1024

enum guard_state {
	GUARD_TRAINING = 0,
	GUARD_FROZEN = 1,
	GUARD_NORMAL = 2,
};

/* A pair's entry: the distances at which it was learned and is normal, the earlier call, the current one. */
#define GUARD_PAIR_LEARNED 0xff
#define GUARD_PAIR_NORMAL_SHIFT 8
#define GUARD_PAIR_KEY_SHIFT 16
/* A window's entry. */
#define GUARD_WINDOW_LEARNED 1
#define GUARD_WINDOW_NORMAL 2
#define GUARD_WINDOW_KEY_SHIFT 2

/* What a program's calls are like: pH's profile, with its training and its test data side by side. */
struct guard_profile {
	__u32 state;
	/* Symbols that were given out. */
	__u32 symbols;
	/* Calls since training began, and how many of them there were at the last change. */
	__u64 trained;
	__u64 changed_at;
	/* Since it became normal. */
	__u64 anomalies;
	/* All calls since it was made. */
	__u64 calls;
	/* Windows for which, or for whose pairs, there was no room. */
	__u64 unlearned;
	/* Places in `more_windows`, 0: none. */
	__u32 more[GUARD_MORE_TIMES];
	/* Never held or killed, only observed. */
	__u32 is_spared;
	__u32 unused;
	/* Counts up at each freezing; user space knows since when. */
	__u32 freezings;
	/* Counts up whenever training data is forgotten, or normal data is set. */
	__u32 forgettings;
	__u8 symbol_of[CALL_SLOTS];
	/* Windows of nine that the thread's way may take as known, by hash. */
	__u64 recent[GUARD_RECENT];
	__u64 windows[GUARD_WINDOWS];
	__u32 pairs[GUARD_PAIRS];
};

/* Something that happens to a thread, as the differential test has it happen; then what the guard says of it. */
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

struct guard_more {
	__u64 windows[GUARD_MORE];
};

/* No session has this number; that of the kernel's own processes is 0. */
#define GUARD_NO_SID 0xffffffff

/* pH's parameters that the kernel side needs. */
struct guard_parameters {
	__u8 lookahead;
	__u8 sequence;
	__u16 tolerize_limit;
	__u32 anomaly_limit;
	__u32 normal_factor;
	__u32 normal_factor_den;
	/* enum guard_response */
	__u32 response;
	/* enum guard_scope */
	__u32 scope;
	__u64 delay_factor_ns;
	__u64 delay_cap_ns;
	/* Beyond so many held processes, what would be held is observed only. */
	__u32 held_most;
	/* Processes of this session (setsid) are observed only; the initial PID namespace's number, or GUARD_NO_SID. */
	__u32 spared_sid;
	/* An execve is held for so long by a thread that once had this LFC; 0: by none. */
	__u64 suspend_execve_ns;
	__u32 suspend_execve;
	__u32 unused;
};

/* What a program's profile is of, besides its content. */
enum guard_scope {
	GUARD_CONTENT = 0,
	GUARD_SCRIPT = 1,
	GUARD_UNIT = 2,
	GUARD_IMAGE = 3,
};

struct fd_path {
	/* Argument it belongs to; CALL_ARGS: none. */
	__u32 arg;
	__u16 mode;
	__u16 parts;
	/* 1: the parts lead up to the root. */
	__u32 complete;
	__u32 unused;
	__u64 inode;
	/* From the file up to the root, mount points crossed; each cut where it is longer. */
	char part[PATH_PARTS][PATH_PART_LEN];
};

#define SCOPE_TEXT_LEN 256

/* What a scope is called where a program begins. */
struct scope_name {
	/* A script as its interpreter was given it, a unit, or a container's control group. */
	char text[SCOPE_TEXT_LEN];
	/* Where a script's name begins that is not absolute. */
	struct fd_path folder;
};

/* In place of a scope: all that the program has no name with. */
#define GUARD_ANY_SCOPE 1

/* Which file's content a program is, and in which scope. */
struct guard_program {
	__u64 inode;
	__s64 ctime_ns;
	__u64 size;
	/* Of its name (bpf/scope.bpf.h); 0: none. */
	__u64 scope;
	__u32 device;
	__u32 session;
};

/*
 * Service. Work is charged to the service that the thread's label names. The figures are differences of the kernel's own
 * counters of the task, taken when the label changes and at its end, so that nothing is done at a switch or a call.
 */
#define SERVICES 8192
#define SERVICE_ROOT 0
#define SERVICE_SHARED 1
/* In place of a service: the other end is not known. */
#define SERVICE_NONE 0xffff

/* A service by its number. */
struct service {
	/* Itself, or, once it is gone, to which its members belong. */
	__u16 heir;
	/* Rules know it by this one: itself, or below which a rule has started it. */
	__u16 known_as;
	/* In whose control group its threads are to run; SERVICE_ROOT: where they were before. */
	__u16 place;
	/* enum service_placing */
	__u16 placing;
	/* Until then its threads go to its group as soon as they work for it: others had to wait for them. */
	__u64 competes_until_ns;
};

/* When a thread is put in its service's control group, other than when it has to wait for others that run. */
enum service_placing {
	/* As soon as it has the label for what it is. */
	PLACE_AT_ONCE = 1 << 0,
	/* Also where nobody else wants to run. */
	PLACE_ALONE = 1 << 1,
};

/* User space puts a thread in the control group of a service; SERVICE_ROOT: where it was before. */
struct service_placement {
	/* As the services' session numbers threads. */
	__u32 tid;
	__u32 slot;
	/* When it began, as numbers are given again. */
	__u64 began_ns;
	__u16 place;
	/* It works for its service for what it is: it is under all of its limits, not only those of processors. */
	__u8 is_own;
	/* The thread is moved only if it has slept for a while after its answer. */
	__u8 leaves;
	__u8 unused[4];
};

/* Instead of a service: it was not put where it was to be, so it is asked for again. */
#define PLACED_NOWHERE 0xffff

#define PLACEMENT_BYTES 65536

#define NO_LIMIT 0x7fffffffffffffff

/* What a service, with those below it, has of what is limited. */
struct service_limit {
	/* The service above. */
	__u16 parent;
	/* Whoever would have more works for this one from then on; SERVICE_NONE: it gets `error`. */
	__u16 fallback;
	/* A negative errno. */
	__s32 error;
	__u64 sockets_max;
	__u64 connections_max;
	/* Bytes a second, to send. */
	__u64 rate_max;
	__u64 sockets;
	__u64 connections;
	/* When all that was sent would be on its way at that rate. */
	__u64 sent_until_ns;
	__u64 refused;
	__u64 moved;
	/* Packets. */
	__u64 slowed;
	__u64 dropped;
};

/* Services above one, with itself, but for the root. */
#define SERVICE_DEPTH 8

/* In whose counts a socket is; 0: no more. */
struct service_counted {
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
	/* By read, write and the like, of anything. */
	__u64 read_bytes;
	__u64 written_bytes;
	/* To and from a disk. */
	__u64 storage_read_bytes;
	__u64 storage_written_bytes;
};

/* What a service has used, a processor; and what a thread has since its label is what it is. */
struct service_account {
	struct task_counters task;
	/* For which its threads were there: what is neither running nor waiting is blocked. */
	__u64 present_ns;
	__u64 calls;
	/* Over sockets. */
	__u64 received_bytes;
	__u64 sent_bytes;
	/* Threads that were given its label. */
	__u64 labels;
	/* Answers to others that were sent by threads which worked for it by then. */
	__u64 overlaps;
};

/* Whether a thread works for its service for what it is. */
enum service_borrowed {
	BORROWED_NOT = 0,
	/* By a message, a file or a signal, until it works for somebody else. */
	BORROWED_FOR_WORK = 1,
	/* By hand, with all that it starts: under the service's limits as if for what it is, and left alone by rules on that. */
	BORROWED_BY_HAND = 2,
};

/* Why a thread has its label. */
enum service_why {
	/* Its parent has. */
	WHY_FORKED = 0,
	/* By a rule, on this event (crates/service/src/rule.rs, Event). */
	WHY_FORK = 1,
	WHY_EXEC = 2,
	WHY_FOUND = 3,
	WHY_USER = 4,
	WHY_RECEIVED = 5,
	WHY_OPENED = 6,
	/* What it asked for in this service's name was answered. */
	WHY_RESUMED = 7,
	/* Somebody said so. */
	WHY_ASSIGNED = 8,
	/* It used io_uring, whose work cannot be followed. */
	WHY_IO_URING = 9,
	/* Its own has as much as it may have. */
	WHY_LIMITED = 10,
	/* Its parent was asked to start it, by a signal. */
	WHY_ASKED = 11,
	/* It has answered somebody else than it has received from last: it serves several at once. */
	WHY_SEVERAL = 12,
};

#define SERVICE_EVENTS 6
#define SERVICE_SETS 32

/* Conditions of a set of rules, as struct service_facts has them. */
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

/* Rules with the same conditions, of which one look-up finds the one that fits. */
struct service_set {
	/* enum service_field */
	__u16 fields;
	__u8 cgroup_depth;
	/* 4 or 6, and the length of the network's prefix. */
	__u8 client_family;
	__u8 client_bits;
	__u8 file_depth;
	__u8 unused[2];
};

#define SERVICE_SETS_ALL (SERVICE_EVENTS * SERVICE_SETS)

/* Which sets each event asks. */
struct service_book {
	__u32 number;
	/* Conditions of any of its sets. */
	__u32 fields;
	/* The most names that any of its sets has in a file's path. */
	__u32 file_depth;
	__u32 asked[SERVICE_EVENTS];
	/* So many of them, for each event. */
	__u8 ask[SERVICE_SETS_ALL];
	struct service_set set[SERVICE_SETS_ALL];
};

/* A rule of a set, by the hash of its conditions' values. */
struct service_key {
	__u32 book;
	__u32 set;
	__u64 hash;
};

/* Of each of two books. */
#define SERVICE_RULES 65536

enum service_then {
	THEN_NOTHING = 0,
	THEN_BELONGS = 1,
	THEN_INHERITS = 2,
	THEN_ADOPTS_PEER = 3,
	/* One for each value of what `each` says, below this one. */
	THEN_STARTS = 4,
};

enum service_each {
	EACH_USER = 0,
	EACH_UNIT = 1,
	EACH_EXE = 2,
	EACH_CLIENT = 3,
};

/* A service that a rule has started. */
struct service_started {
	__u16 below;
	/* enum service_each */
	__u8 each;
	__u8 unused[5];
	/* The user, the hash of the unit's name or the program's path, or the address, IPv4 as IPv4 in IPv6. */
	__u64 value[2];
};

/* From this number on they are started by rules; those before have names. */
#define SERVICES_STARTED 6144

/* Room for an engine's unit: 64 digits, and words around them. */
#define SERVICE_NAME_LEN 92

struct service_start {
	__u32 number;
	/* Of its first member, who may end before anybody looks: its unit, or its program's file without folders. */
	char name[SERVICE_NAME_LEN];
};

struct service_rule {
	/* In the book, where the first decides. */
	__u32 place;
	__u16 service;
	/* enum service_then */
	__u8 then;
	/* A bit each on which it is asked; and whether also of who was asked to work for its service, of what it is. */
	__u8 events;
	__u8 names_events;
	/* enum service_each, with THEN_STARTS */
	__u8 each;
	__u8 unused[2];
};

/* Something that the thread is to find at its next call or switch. */
enum service_message {
	/* It is given this label; the value is when, in milliseconds. */
	MESSAGE_ASSIGN = 1,
	/* A rule has found it. */
	MESSAGE_FOUND = 2,
	/* Whose message it received, which was not known then. */
	MESSAGE_PEER = 3,
};

#define MESSAGE_SERVICE_SHIFT 16
#define MESSAGE_VALUE_SHIFT 32

/* What is known of a connection when a message has come by it. */
struct service_connection {
	__u64 listen_path;
	__u64 listen_address;
	/* Network order; IPv4 is IPv4 in IPv6. */
	__u64 client[2];
	__u32 listen_port;
	__u32 client_family;
};

/* A thread, as a member of its service. */
struct service_member {
	/* Odd while it changes. */
	__u32 version;
	__u16 service;
	/* enum service_why, of the label */
	__u8 why;
	/* It works for its service because somebody asked it to. */
	__u8 borrowed;
	/* The rule that decided, as place + 1, and its book. */
	__u32 rule;
	__u32 book;
	/* enum service_message, in the low bits */
	__u64 message;
	/* Its label has changed while it ran: from then on it is noted when it comes to a processor. */
	__u8 moves;
	__u8 is_exiting;
	__u8 has_io_uring;
	/* It is being forked or taken in: it has used nothing since `at`. */
	__u8 is_new;
	/* Counts up where it gets another service for what it is, or by hand: what it asked for before is of no account then. */
	__u16 epoch;
	/* The service in whose control group it is, or is about to be. */
	__u16 placed;
	__u32 user;
	/* By which its latest call sends, if that is one that does. */
	__u32 descriptor;
	/* Hashes of its program's path, and of its unit. */
	__u64 exe;
	__u64 unit;
	/* When it was given the label, which stays the same in a charge, and since when it was not charged. */
	__u64 labelled_ns;
	__u64 since_ns;
	struct task_counters at;
	/* Since then. */
	__u64 calls;
	__u64 received_bytes;
	__u64 sent_bytes;
	/* With `moves`: when it came to a processor, its time on one before, and how often it had left one. */
	__u64 came_ns;
	__u64 came_cpu_ns;
	__u64 came_switches;
	/* Receipts whose sender was not known, and the latest one's connection. */
	__u32 receipts;
	struct service_connection connection;
	/* From where the datagram is that it is about to receive; port 0: that is not known. */
	__u64 datagram_from[2];
	__u16 datagram_port;
	/* It has answered its client, and has received no work since. */
	__u16 has_answered;
	/* So many more labels it is taken for one that works long for each. */
	__u32 is_worth;
	/* When it went to sleep after an answer, in its service's control group; 0: it is awake. */
	__u64 slept_ns;
	/*
	 * Begin of the thread that has a placement with `leaves` pending. User space sets it to 0: none is pending.
	 */
	__u64 leaving_began_ns;
	/* Who has asked by a signal, of a process's first thread: service_workers.bpf.h. */
	__u64 asked;
};

/* One direction of a connection: for whom it is used. */
struct service_direction {
	/* For whom who sent last worked then; SERVICE_NONE: nobody has sent. */
	__u16 service;
	/* Of who sent last: its slot, and its `epoch` then. */
	__u16 epoch;
	__u32 sender;
	/* Slot of who received before that was known, and its number of the receipt. */
	__u32 reader;
	__u32 receipt;
	/* Whether who sent last did so for somebody else. */
	__u8 borrowed;
	/* Nothing was sent yet: this is of who opened the connection. */
	__u8 is_opening;
	__u16 unused;
	/* By which it was sent last. */
	__u32 descriptor;
};

/* By the addresses of who sends and who receives, IPv4 as IPv4 in IPv6. */
struct service_route {
	__u64 from[2];
	__u64 to[2];
	__u16 from_port;
	__u16 to_port;
	__u32 net;
};

/* At the same time, over loopback; each has two directions. */
#define CONNECTIONS 131072

/* Datagrams from one socket to one port. */
struct service_flow {
	__u64 from[2];
	__u16 from_port;
	__u16 to_port;
	__u32 net;
};

struct service_flow_sender {
	/* For whom who sent last worked then. */
	__u16 service;
	/* The other end had sent before this one ever did. */
	__u16 is_answer;
};

/* Those used last are kept; 3 MiB. */
#define FLOWS 32768

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
	/* The answer holds for this peer, program, user and book. */
	__u16 asked_peer;
	__u32 asked_user;
	__u64 asked_exe;
	__u32 asked_book;
	struct service_rule answer;
	__u64 listen_path;
	/* Who has received by it last (0: it was not known from whom), its `epoch` then, and for whom it worked after that. */
	__u32 reader;
	__u16 reader_epoch;
	__u16 reader_service;
	__u32 unused;
	/* What its owner sends. */
	struct service_direction direction;
};

/* One less than sockaddr_un has, and a NUL. */
#define UNIX_NAME_LEN 108

/* One end of a connection as the sockets' iterator tells of it. */
struct service_socket_record {
	/* By which processes have it open; and of a Unix socket's other end. */
	__u64 inode;
	__u64 peer_inode;
	/* What its owner sends goes this way, over TCP. */
	struct service_route route;
	__u16 is_unix;
	/* enum service_role */
	__u16 role;
	/* Who has sent by it last (0: nobody has, or is gone), as its session numbers it, and for whom. */
	__u32 sender;
	__u32 service;
	__u32 borrowed;
	/* The rule that has decided for who received by it, as place + 1, and its book. */
	__u32 rule;
	__u32 book;
	/* Of a Unix socket, with '@' for a NUL in front; empty: it has none. */
	char name[UNIX_NAME_LEN];
	__u32 unused;
};

/* A thread as the members' iterator tells of it. */
struct service_member_record {
	__u32 pid;
	__u32 tgid;
	__u32 slot;
	/* Of the member. */
	__u16 epoch;
	/* Which service `since` is for: it may be given to another one before it does anything more. */
	__u16 used_for;
	__u16 service;
	__u8 why;
	__u8 borrowed;
	__u32 rule;
	__u32 book;
	__u32 user;
	/* 0: when the book came into force. */
	__u64 labelled_ns;
	/* When the thread began. */
	__u64 began_ns;
	struct service_account since;
	char comm[COMM_LEN];
};

enum call_state {
	NOT_IN_CALL,
	/* `thread_state.call` is the one. */
	IN_CALL,
	/* A gate that has only plugins saw it begin, which does not ask which one it is. */
	IN_SOME_CALL,
};

/* One entry a gated thread. The first 64 bytes are all a call that does not sleep needs. */
struct thread_state {
	/* Address of its task_struct; 0: this slot is free. */
	__u64 task;
	__u32 mask;
	/* Which generation saw it cross last; 0: no crossing seen. */
	__u32 generation;
	__u16 call;
	/* enum call_state */
	__u8 in_call;
	/* 1: nothing counts until it calls execve. */
	__u8 until_exec;
	__u16 group;
	__u16 session;
	__u64 entered_ns;
	__u32 minor_faults;
	__u32 major_faults;
	/* LENS_SAMPLE: this many cheap calls are still to go untimed. */
	__u32 skip;
	/* It left the CPU to sleep; otherwise it was preempted. */
	__u16 sleeps;
	/* Whose plugins it has: its session's own, or those of another that it counts in. */
	__u16 plugin_session;
	/* In this call: time off the CPU, and when it left it (0: on it). */
	__u64 off_ns;

	__u64 left_ns;
	/* When it last came back, until the scheduler's own time for that is read. */
	__u64 returned_ns;
	/* sched_info.run_delay at the first and the latest time it left the CPU in this call. */
	__u64 run_delay_first;
	__u64 run_delay_latest;
	/* A blocking site whose time is known at the next step: its address, the time off CPU, the sleeps. */
	__u64 site;
	__u64 site_off_ns;
	__u32 site_sleeps;
	/* Sleeps and sleeping time since a site was last taken, and how much more till the next. */
	__u32 unsited_sleeps;
	__u64 unsited_ns;
	__s64 site_budget_ns;

	__u32 pid;
	__u32 tgid;
	/* Its number as the session's watcher sees it. */
	__u32 visible_pid;
	/* It was held once, or another thread of the process that it is the first of. */
	__u32 was_held;
	__u64 longest_sleep_ns;

	/* Guard: its latest calls by the symbols of its program, the newest in the low bits. */
	__u64 window;
	/* Calls until the profile's counters are brought up to date, and how many there were at the last time. */
	__u32 guard_left;
	__u32 guard_batch;
	union {
		struct {
			/* LFC: how many of the latest 128 calls were anomalies. */
			__u8 lfc;
			/* Signal handlers that it is in. */
			__u8 handlers;
			/* The call interrupted by a signal will be made again: it is the same one. */
			__u8 again;
			__u8 held;
		};
		/* Any of them: not the fast way. */
		__u32 attention;
	};
	__u16 profile;
	/* The session that guards it, which may be another than the one it counts in. */
	__u16 guard_session;
	/* A bit a call, the newest in the lowest bit of the first. */
	__u64 frame[2];
	/* What the handlers interrupted, the latest first: windows, with GUARD_AGAIN. */
	__u64 interrupted[GUARD_HANDLERS];
	/* With `held`. */
	__u64 held_until_ns;
	/* enum guard_before: what is to happen to the call that it is in. */
	__u32 before;
	/* The largest LFC since its execve. */
	__u32 lfc_most;
	/* Its own. */
	__u32 slot;
	/* Whole cache lines. */
	__u32 unused[3];
};

/* Who watches what: one `run`, one `lens`. */
struct session {
	__u32 used;
	__u32 mask;
	__u32 per;
	__u32 base_group;
	__u64 slower_ns;
	/* Depth of the watcher's PID namespace: process numbers are reported as seen there. */
	__u32 pid_level;
	/* The generation whose links the watcher holds. */
	__u32 holds_generation;
	/* The watcher, and the PID namespace that this number is of. */
	__u32 owner_pid;
	__u32 owner_namespace;
	/* Of sessions that took tasks over from this one, and ended before it. */
	__u64 inherited_losses[LOSSES];
	struct guard_parameters guard;
	/* Processes held when user space last looked, and holds that began since. */
	__u32 held;
	__u32 holds_since;
	/* It gates every new process, unless another session does so now. */
	__u32 wants_everything;
	/* SIGCONTs that its processes were sent since its owner last looked. */
	__u32 continued;
	/* Somebody else than its owner has switched the guard off. */
	__u32 is_off;
	/* Plugins are linked for its tasks alone. */
	__u32 own_plugins;
	/* Larger than those of all that were there when it began: of two with plugins of their own, the later one's are a task's. */
	__u64 number;
};

enum group_state {
	GROUP_FREE = 0,
	GROUP_LIVE = 1,
	/* Handed over by a session that ended or is through with it, to be read by the one it counts in as well. */
	GROUP_DONE = 2,
};

/* A row of a report: everything, or a process, a thread, a command. */
struct group {
	__u32 state;
	__u32 session;
	/* The group its threads were in before this session took them over; 0: none. */
	__u32 parent;
	__s32 threads;
	/* As seen in the session's PID namespace. */
	__u32 pid;
	__u32 tgid;
	char comm[COMM_LEN];
};

/* What is known of one call in one group, per CPU. */
struct cell {
	__u64 count;
	/* Of `count`: rejected before dispatch (seccomp, ptrace), so without a time. */
	__u64 denied;
	/* Begun, and ended with the thread. */
	__u64 unfinished;
	__u64 wall_ns;
	__u64 blocked_ns;
	__u64 runqueue_ns;
	__u64 max_ns;
	__u64 minor_faults;
	__u64 major_faults;
	/* LENS_SAMPLE: cheap calls that were timed, their time and its square, and cheap calls that were not. */
	__u64 sampled;
	__u64 sampled_ns;
	__u64 sampled_ns2;
	__u64 skipped;
	/* Timed calls in a row that were cheap. */
	__u32 cheap_streak;
	__u32 unused;
	/* These may wrap: readers add up differences. */
	__u32 errors[ERRNO_SLOTS];
	__u32 histogram[HISTOGRAM_BUCKETS];
};

/* Which cell has each call of a group. Low bits are the cell (0: none yet). */
struct cell_table {
	__u32 cell[CALL_SLOTS];
};

/* The most cells there are: crates/kernel/src/gate/load.rs. */
#define CELLS_MAX 4096
#define CELL_CHEAP 0x80000000
#define CELL_INDEX 0xffff

/* The address of a blocking site whose stack could not be read, or was the scheduler's only. */
#define SITE_UNKNOWN 1

struct site_key {
	__u64 address;
	__u32 call;
	__u32 group;
};

struct site_value {
	__u64 blocked_ns;
	__u64 sleeps;
};

/* A row that tasks of a session share, with the group that they count in as well (struct group). */
struct row_key {
	__u32 session;
	__u32 parent;
	/* PER_COMMAND: the command's name; PER_PROCESS: the process's global number; PER_ALL: empty. */
	char name[COMM_LEN];
};

/* A thread, named as its own PID namespace names it, whose new children belong to a session. */
struct nursery_key {
	__u32 namespace_inum;
	__u32 tid;
};

struct nursery {
	__u32 session;
	__u32 until_exec;
};

/* Linux 6.18 has at most as many on x86 (arch/x86/Kconfig, NR_CPUS_RANGE_END). */
#define CPUS 8192

/* Who runs on a processor, as far as the gate was told. A cache line each. */
struct cpu_state {
	/* Where its registers are saved when it enters the kernel, which tells tasks apart. */
	__u64 regs;
	/* Its task_struct. */
	__u64 task;
	/* Its slot; 0: a bystander. */
	__u32 slot;
	__u32 unused;
	/* From the bottom of a task's kernel stack to its saved registers; the same for all tasks, 0 until seen. */
	__u64 regs_offset;
	/* CLOCK_MONOTONIC less the scheduler's clock, as of the latest return to a CPU that was seen. */
	__s64 clock_offset;
} __attribute__((aligned(64)));

/* A process that is to be taken in. */
struct adoption {
	__u32 session;
	__u32 unused;
	/* As user space found it: the kernel side reads a running process's own only. */
	__u64 scope;
};

struct arg_kinds {
	/* The first arguments that are file descriptors, and the first that are paths; CALL_ARGS: none. */
	__u8 fd[ARG_NAMES];
	__u8 path[ARG_NAMES];
};

enum record_type {
	RECORD_GROUP_DONE = 1,
	RECORD_SLOW_CALL = 2,
	RECORD_GUARD_PROGRAM = 3,
	RECORD_GUARD_EVENT = 4,
};

struct group_done {
	__u32 type;
	__u32 session;
	__u32 group;
};

/* What is done where a call leaves its program's usual sequences; from DELAY on, all calls with an LFC. */
enum guard_response {
	GUARD_OBSERVE = 0,
	/* Held for 2^LFC times the factor. */
	GUARD_DELAY = 1,
	/* As that, but killed at an execve, before the new program runs. */
	GUARD_DENY = 2,
	/* Held until somebody releases it. */
	GUARD_STOP = 3,
	GUARD_KILL = 4,
};

/* Why less was done than the response says. */
enum guard_restraint {
	GUARD_UNRESTRAINED = 0,
	/* Its program, or its session (setsid), is never held. */
	GUARD_SPARED = 1,
	/* As many processes as may be are held already. */
	GUARD_TOO_MANY = 2,
};

/*
 * Calls that can be held before they take effect, by the hooks that they pass first. A hook acts in its own calls
 * only: most are also passed within others, where to undo them is not clean.
 */
enum guard_before {
	BEFORE_EXECVE = 1 << 0,
	BEFORE_OPEN = 1 << 1,
	/* mkdir, mknod, link, symlink */
	BEFORE_MAKE = 1 << 2,
	/* unlink, rmdir, rename */
	BEFORE_REMOVE = 1 << 3,
	BEFORE_CONNECT = 1 << 4,
	BEFORE_BIND = 1 << 5,
	BEFORE_SOCKET = 1 << 6,
	BEFORE_SEND = 1 << 7,
	BEFORE_MMAP = 1 << 8,
	BEFORE_MPROTECT = 1 << 9,
	BEFORE_PTRACE = 1 << 10,
	BEFORE_KILL = 1 << 11,
	BEFORE_SETUID = 1 << 12,
	BEFORE_SETGID = 1 << 13,
	BEFORE_SETGROUPS = 1 << 14,
	BEFORE_BPF = 1 << 15,
	/* By itself: the kernel makes no process while a signal waits. */
	BEFORE_FORK = 1 << 16,
	/* Over IPv4 and IPv6 only, as control groups' programs see nothing else. */
	BEFORE_IP_ONLY = 1 << 17,
	/* Of one call: it is not held, but refused. */
	BEFORE_REFUSED = 1 << 18,
	/* Of one call: it was undone in part, and so the rest must be. */
	BEFORE_UNDONE = 1 << 19,
	/* It would fail with EINTR, were it stopped: who makes it is stopped at the next one. */
	BEFORE_NEXT = 1 << 20,
};

/* A call that was an anomaly, or at which its thread was held. */
struct guard_event {
	__u32 type;
	__u32 session;
	/* As seen in the session's PID namespace. */
	__u32 pid;
	__u32 tgid;
	__u32 profile;
	__u32 call;
	__u64 time_ns;
	/* Until when it is held, 0: it is not. */
	__u64 held_until_ns;
	/* With this call. */
	__u64 window;
	__u16 mismatches;
	__u8 lfc;
	/* enum guard_response: what was done. */
	__u8 action;
	char comm[COMM_LEN];
	/* enum guard_restraint */
	__u32 restraint;
	/* enum guard_before: where that takes effect; 0: at the call's end. */
	__u32 before;
};

/* A program's first thread has got a profile. */
struct guard_program_record {
	__u32 type;
	__u32 session;
	__u32 pid;
	__u32 profile;
	struct guard_program program;
	struct fd_path path;
	struct scope_name scope;
};

struct arg_string {
	/* Argument it is; CALL_ARGS: none. */
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
	/* The longest sleep's stack. */
	__u64 kernel_stack[STACK_DEPTH];
	__u64 user_stack[STACK_DEPTH];
};

struct stack {
	__u32 frames;
	__u32 unused;
	__u64 address[STACK_DEPTH];
};

#endif
