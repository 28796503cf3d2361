/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Services. Work is charged to the service that the thread is bound to. The usage is the difference
 * of the kernel's own counters of the task, read when the binding changes and when the task ends.
 */
#ifndef TOLLGATE_WIRE_SERVICE_H
#define TOLLGATE_WIRE_SERVICE_H

#include "wire/tables.h"

#define SERVICES 8192
#define SERVICE_ROOT 0
#define SERVICE_SHARED 1
/* In place of a service: the other end is not known. */
#define SERVICE_NONE 0xffff

/* A service by its number. */
struct service {
	/* The service itself or, once it is removed, the one that received its members. */
	__u16 successor;
	/* The service as rules name it: itself, or the parent below which a rule has started it. */
	__u16 rule_service;
	/*
	 * The service in whose control group its threads run. SERVICE_ROOT: each runs in its
	 * original one.
	 */
	__u16 cgroup_of;
	/* enum service_migrate_flags */
	__u16 migrate_flags;
	/*
	 * The service is contended until this time: others had to wait for its threads. While it
	 * is, a long-running thread (`migrate_credit`) is migrated as soon as it works for the
	 * service.
	 */
	__u64 contended_until_ns;
};

/*
 * When to migrate a thread to its service's control group, besides when another thread preempts it.
 */
enum service_migrate_flags {
	/* As soon as it is bound to the service, unless it is bound by a request. */
	MIGRATE_AT_ONCE = 1 << 0,
	/* Also if no other thread waits for its processor. */
	MIGRATE_UNCONTENDED = 1 << 1,
};

/*
 * A request to user space: migrate a thread to the control group of a service, or to the thread's
 * saved origin (SERVICE_ROOT).
 */
struct service_migration {
	/* The thread's number in the PID namespace of the services' session. */
	__u32 tid;
	__u32 slot;
	/* When the thread began (CLOCK_BOOTTIME): thread numbers are reused. */
	__u64 began_ns;
	__u16 cgroup_of;
	/*
	 * The thread is not bound by a request, so all limits of the service apply to it, not only
	 * those of processors.
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

/* The limits of a service, and what the service and those below it use of them. */
struct service_limit {
	/* The service above. */
	__u16 parent;
	/*
	 * A thread that is over a limit works for this service from then on. With SERVICE_NONE, its
	 * call fails with `error` instead.
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
	/* The time at which sending everything so far would end at exactly `rate_max`. */
	__u64 sent_until_ns;
	__u64 refused;
	__u64 rebound;
	/* Packets. */
	__u64 slowed;
	__u64 dropped;
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

/* What a service has used on one processor, or what a thread has used since its latest charge. */
struct service_account {
	struct task_counters task;
	/* How long its threads existed. They are blocked when they neither run nor wait. */
	__u64 present_ns;
	__u64 calls;
	/* Over sockets. */
	__u64 received_bytes;
	__u64 sent_bytes;
	/* How often usage was charged to it. */
	__u64 charges;
	/*
	 * Replies to requests of other services, by threads that worked for this one when they
	 * replied.
	 */
	__u64 shared_replies;
};

/* How a thread came to work for its service. */
enum service_binding {
	BINDING_OWN = 0,
	/* By a message, a file or a signal, until it works for another service. */
	BINDING_REQUEST = 1,
	/*
	 * By hand, together with all that it starts. All limits of the service apply, as with
	 * BINDING_OWN. Rules on what a process is do not apply.
	 */
	BINDING_EXPLICIT = 2,
};

/* The events at which rules are matched. */
enum service_event {
	EVENT_FORK,
	EVENT_EXEC,
	EVENT_ATTACH,
	EVENT_USER,
	EVENT_RECEIVE,
	EVENT_OPEN,
	SERVICE_EVENTS,
};

/* Why a thread has its binding. */
enum service_why {
	/* Its parent has it. */
	WHY_FORKED = 0,
	/* By a rule, on this event. */
	WHY_FORK = 1 + EVENT_FORK,
	WHY_EXEC = 1 + EVENT_EXEC,
	WHY_ATTACHED = 1 + EVENT_ATTACH,
	WHY_USER = 1 + EVENT_USER,
	WHY_RECEIVED = 1 + EVENT_RECEIVE,
	WHY_OPENED = 1 + EVENT_OPEN,
	/* It got the reply to a request that it sent for this service. */
	WHY_RESUMED = 7,
	/* It was assigned by hand. */
	WHY_ASSIGNED = 8,
	/* It used io_uring, whose work cannot be followed. */
	WHY_IO_URING = 9,
	/* Its own service is at a limit. */
	WHY_LIMITED = 10,
	/* Its parent forked it because of a signal from another process. */
	WHY_SIGNALLED = 11,
	/*
	 * It replied to a client other than the one from which it last received: it serves several
	 * at once.
	 */
	WHY_SHARED_REPLY = 12,
};

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

/* Rules with conditions of one shape: one look-up finds the rule that matches. */
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
	/* All conditions that any tuple has (enum service_field). */
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

/* The maximum number of rules in each of the two rulesets. */
#define SERVICE_RULES 65536

enum service_action {
	ACTION_NONE = 0,
	ACTION_BELONGS = 1,
	ACTION_INHERITS = 2,
	ACTION_ADOPTS_PEER = 3,
	/* A service for each value of `split`, with the rule's service as its parent. */
	ACTION_CREATES = 4,
};

enum service_split {
	SPLIT_USER = 0,
	SPLIT_UNIT = 1,
	SPLIT_EXE = 2,
	SPLIT_CLIENT = 3,
};

/* Identifies a service that a rule has started, by the value for which it was started. */
struct dynamic_service_key {
	__u16 parent;
	/* enum service_split */
	__u8 split;
	__u8 unused[5];
	/*
	 * The user, the hash of the unit's name or of the program's path, or the client's address,
	 * IPv4 as IPv4-mapped IPv6.
	 */
	__u64 value[2];
};

/* The first number of a dynamic service. Services with lower numbers have names. */
#define SERVICES_DYNAMIC 6144

/* Room for the unit of a container engine: 64 digits, and words around them. */
#define SERVICE_NAME_LEN 92

struct dynamic_service {
	__u32 number;
	/*
	 * The unit of its first member, or the file name of its program. The gate reads it, because
	 * the member may end before user space can read it.
	 */
	char name[SERVICE_NAME_LEN];
};

struct service_rule {
	/* The position in the ruleset. Of the rules that match, the first one decides. */
	__u32 precedence;
	__u16 service;
	/* enum service_action */
	__u8 action;
	/* A bit for each event at which the rule is matched. */
	__u8 events;
	/*
	 * The rule names its events. Such a rule also applies at events of a process (fork, exec,
	 * attach, user) if the thread is bound by a request or explicitly.
	 */
	__u8 has_explicit_events;
	/* enum service_split, with ACTION_CREATES */
	__u8 split;
	__u8 unused[2];
};

/* A message to a thread, which takes it at its next call or when it is switched out. */
enum service_message {
	/* The thread is bound to this service. The value is the time, in milliseconds. */
	MESSAGE_ASSIGN = 1,
	/* A rule of a new ruleset matches the thread. The value is the rule, as precedence + 1. */
	MESSAGE_RECLASSIFIED = 2,
	/*
	 * The service of a sender that was not known when its message was received. The value is
	 * the number of the receive.
	 */
	MESSAGE_PEER = 3,
};

#define MESSAGE_SERVICE_SHIFT 16
#define MESSAGE_VALUE_SHIFT 32

/* The connection over which a message was received, as far as it is known. */
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
	/* The service changed while the thread ran. Since then, each switch in is recorded. */
	__u8 tracks_switch_in;
	__u8 is_exiting;
	__u8 has_io_uring;
	/* It is being forked or attached: it has used nothing since `charged_at`. */
	__u8 is_new;
	/*
	 * Incremented when a rule on what the process is, or an assignment by hand, gives the
	 * thread another binding. What the thread sent before does not count any more.
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
	/* When the thread was bound, and the time of the latest charge. */
	__u64 bound_ns;
	__u64 charged_ns;
	struct task_counters charged_at;
	/* Since the latest charge. */
	__u64 calls;
	__u64 received_bytes;
	__u64 sent_bytes;
	/*
	 * With `tracks_switch_in`: when it was last switched in or bound, and its CPU time and its
	 * number of switches by that time.
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
	/* The number of further bindings for which the thread is treated as long-running. */
	__u32 migrate_credit;
	/* When it went to sleep after a reply, in its service's control group; 0: it is awake. */
	__u64 slept_ns;
	/*
	 * The beginning (CLOCK_BOOTTIME) of the thread for which a migration with `is_return` is
	 * pending. It is 0 if none is pending, and user space resets it.
	 */
	__u64 return_thread_ns;
	/* In a process's first thread, a request by a signal: service/signals.bpf.h. */
	__u64 fork_request;
};

/* Addresses of the sender and of the receiver, IPv4 as IPv4-mapped IPv6. */
struct service_flow_key {
	__u64 from[2];
	__u64 to[2];
	__u16 from_port;
	__u16 to_port;
	__u32 net;
};

enum service_role {
	ROLE_UNKNOWN = 0,
	ROLE_ACCEPTED = 1,
	ROLE_OPENED = 2,
	ROLE_NEITHER = 3,
};

/* 107 bytes of a name, and a NUL. In sockaddr_un, a name may have 108 bytes. */
#define UNIX_NAME_LEN 108

/* One end of a connection, as the iterator over sockets writes it. */
struct service_socket_record {
	/* By this, user space finds the processes that have the socket open. */
	__u64 inode;
	/* For a Unix socket, the inode of the other end. */
	__u64 peer_inode;
	/* The flow key of what its owner sends, over TCP or UDP. */
	struct service_flow_key flow;
	__u16 is_unix;
	/* enum service_role */
	__u16 role;
	/*
	 * The thread that sent last, by its number in the reader's PID namespace (0: none, or it
	 * has ended), and its service.
	 */
	__u32 sender;
	__u32 service;
	__u32 binding;
	/* The rule that decided for the receiver, as precedence + 1, and its ruleset. */
	__u32 rule_number;
	__u32 ruleset;
	/* The name of a Unix socket, with '@' for a NUL at its beginning; empty: it has none. */
	char name[UNIX_NAME_LEN];
	__u32 unused;
};

/* A thread, as the iterator over members writes it. */
struct service_member_record {
	__u32 pid;
	__u32 tgid;
	__u32 slot;
	/* The member's `epoch`. */
	__u16 epoch;
	/*
	 * The service to which `since` will be charged. `service` may be another one: a message
	 * binds the thread to it at its next call.
	 */
	__u16 used_for;
	__u16 service;
	__u8 why;
	__u8 binding;
	__u32 rule;
	__u32 ruleset;
	__u32 user;
	/* When the thread was bound; 0: when the ruleset became active. */
	__u64 bound_ns;
	/* When the thread began (CLOCK_BOOTTIME). */
	__u64 began_ns;
	struct service_account since;
	char comm[COMM_LEN];
};

/*
 * CONNECTIONS: the service that uses a connection was not recorded, because the table is full or
 * because there is no memory.
 */
#define SERVICE_LOSSES(X)                                                                          \
	X(CHARGES, SESSION, "charges to services lost (no memory)")                                \
	X(CONNECTIONS, SESSION, "messages not followed (connection table full)")                   \
	X(DYNAMIC_SERVICES, SESSION,                                                               \
	  "work charged to a parent because no service could be started (table full)")             \
	X(MIGRATIONS, SESSION,                                                                     \
	  "threads not moved to their service's control group (buffer full)")                      \
	X(FILES, SESSION, "opened files not matched with rules (path too deep)")

#endif
