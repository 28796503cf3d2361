/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The guard: profiles, the parameters of a session, and records for user space. */
#ifndef TOLLGATE_WIRE_GUARD_H
#define TOLLGATE_WIRE_GUARD_H

#include "wire/identity.h"
#include "wire/tables.h"

/*
 * Symbols. A program's calls are renumbered in the order in which it first makes them, so that a
 * window of nine fits in a word. 0 is no call, and GUARD_SYMBOL_OTHER is any call after the first
 * 126.
 */
#define GUARD_SYMBOL_BITS 7
#define GUARD_SYMBOLS (1 << GUARD_SYMBOL_BITS)
#define GUARD_SYMBOL_OTHER (GUARD_SYMBOLS - 1)
#define GUARD_LOOKAHEAD_MAX 9
#define GUARD_SEQUENCE_MAX 8
#define GUARD_WINDOW_MASK ((1ULL << (GUARD_SYMBOL_BITS * GUARD_LOOKAHEAD_MAX)) - 1)
/*
 * A window leaves the highest bit free. The bit is a flag of an entry of `interrupted`
 * (GUARD_RESTARTS) or of `known_cache` (GUARD_CACHED).
 */
#define GUARD_RESTARTS (1ULL << 63)
#define GUARD_CACHED (1ULL << 63)
/* The maximum number of nested signal handlers whose interrupted windows are stored. */
#define GUARD_HANDLERS 4
#define GUARD_FRAME 128

/* The maximum number of programs with a profile at the same time, over all sessions. */
#define GUARD_PROFILES 1024
/*
 * The number of empty profiles that are made in advance. User space makes more as soon as it
 * handles a program that has got one, and a shell script starts some dozens of programs in a tenth
 * of a second.
 */
#define GUARD_READY_PROFILES 64
/*
 * What a user other than root leaves to others. A user whose programs have fewer than
 * GUARD_USER_FEW profiles leaves the first number of ready profiles, which are for root's programs.
 * Another one leaves the second number, and has at most GUARD_USER_PROFILES.
 */
#define GUARD_READY_FOR_ROOT (GUARD_READY_PROFILES / 4)
#define GUARD_READY_FOR_OTHERS (GUARD_READY_PROFILES / 2)
#define GUARD_USER_FEW 16
#define GUARD_USER_PROFILES (GUARD_PROFILES / 4)
/* Users are counted by the lowest bits of their numbers. */
#define GUARD_USERS 1024
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
/*
 * If these windows do not suffice, user space adds a table of GUARD_OVERFLOW windows (32 KiB), at
 * most twice.
 */
#define GUARD_OVERFLOW_LOG2 12
#define GUARD_OVERFLOW (1 << GUARD_OVERFLOW_LOG2)
#define GUARD_OVERFLOW_MAX 2
/* The maximum number of entries that a search for a pair or a window reads in one table. */
#define GUARD_PROBES 64
/* The counters of a profile lag behind each of its threads by at most this many calls. */
#define GUARD_BATCH 1024

enum guard_state {
	GUARD_TRAINING = 0,
	GUARD_FROZEN = 1,
	GUARD_NORMAL = 2,
};

/*
 * A pair's entry, from the low bits on: the distances at which the pair was learned, the distances
 * at which it is normal, and the key (the earlier call and the current call).
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
	/* Slots in `guard_overflow_windows`; 0: none. */
	__u32 overflow[GUARD_OVERFLOW_MAX];
	/* User space has seen the program's file, and has exempted the file if it is exempt. */
	__u32 is_identified;
	/*
	 * Whose program has taken the profile from the ready ones: the index in
	 * `guard_user_profiles`, plus 1; 0: not counted.
	 */
	__u32 user;
	/* Incremented at each freezing, so that user space can record the time. */
	__u32 freezes_count;
	/* Incremented when training data is wiped, or normal data is set. */
	__u32 wipes;
	__u8 symbol_of[CALL_INDICES];
	/* Windows of nine that the fast path treats as known, by hash. */
	__u64 known_cache[GUARD_CACHE];
	__u64 windows[GUARD_WINDOWS];
	__u32 pairs[GUARD_PAIRS];
};

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
	/* enum guard_response: GUARD_OBSERVE or GUARD_KILL */
	__u32 over_max_held;
	__u32 normal_factor;
	__u32 normal_factor_den;
	/* enum guard_response */
	__u32 response;
	/* enum identity_kind */
	__u32 scope;
	__u64 delay_factor_ns;
	__u64 delay_cap_ns;
	/* With this many processes held, `over_max_held` applies to further ones. */
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
	/* There may be entries of the session in `guard_exempt_files`. */
	__u16 has_exempt_files;
	/* Only programs with an entry in `guard_selected_files` are guarded. */
	__u16 has_selected_files;
};

/* The executor `uid` of a program: the real, effective and saved user ID at its execve. */
#define GUARD_EXECUTOR(uid) ((uid) + 1)
/* The IDs were different, or are not known. */
#define GUARD_EXECUTOR_NONE 0
#define GUARD_EXECUTOR_ROOT 1

/* A program that is exempt if this user has executed it. */
struct guard_exempt_file {
	__u64 inode;
	__u32 device;
	__u32 session;
	/* GUARD_EXECUTOR() of a number of the initial user namespace */
	__u32 executor;
	__u32 unused;
};
/* The maximum number of such entries of all sessions, which are few paths for each. */
#define GUARD_EXEMPT_FILES 1024

/*
 * A file that may be one of the selected programs (--exe): by its inode, or by the hash of its
 * name. User space decides. The value of an inode's entry is its device.
 */
enum guard_selected_by {
	GUARD_SELECTED_INODE = 0,
	GUARD_SELECTED_NAME = 1,
};

struct guard_selected_file {
	__u64 value;
	/* enum guard_selected_by */
	__u32 by;
	__u32 session;
};
/* The maximum number of such entries of all sessions, which are few paths for each. */
#define GUARD_SELECTED_FILES 1024
/* A name is hashed up to this length, with the NUL that ends it. */
#define GUARD_SELECTED_NAME_LEN 64

/* The file of a program, and its scope. */
struct guard_program {
	__u64 inode;
	__s64 ctime_ns;
	__u64 size;
	/* Hash of the identity (bpf/gate/identity.bpf.h); 0: the program is not scoped. */
	__u64 scope;
	/*
	 * Its content may differ from that of the file's previous execution, although the other
	 * fields do not. The address of its memory, while user space identifies it; after that, the
	 * slot of its profile, by which no execution is found. 0: not so.
	 */
	__u64 execution;
	__u32 device;
	__u32 session;
};

/*
 * The response to an anomalous call. From GUARD_DELAY on, it also applies to every other call while
 * the LFC is not 0.
 */
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

/*
 * SIGTSTP, SIGTTIN and SIGTTOU may be blocked, or ignored because the process group is orphaned, so
 * they are not certain to stop a process before they have done so.
 */
#define FOREIGN_STOP_CERTAIN 0x80
/*
 * The process has stopped itself because the guard had stopped a child of it, so the guard ends
 * this stop. A later stop by another process is added to it.
 */
#define FOREIGN_STOP_WITH_CHILD 0x40
/*
 * For how long a process may take to stop itself after a stop of its child has ended. It has only
 * to return from waitpid() and to send a signal.
 */
#define GUARD_REACTION_NS 1000000000ULL

/* Why less was done than the response says. */
enum guard_restraint {
	GUARD_UNRESTRAINED = 0,
	/* Its program and user, or its session (setsid), are exempt. */
	GUARD_EXEMPT = 1,
	/* The maximum number of processes is held already. */
	GUARD_MAX_HELD = 2,
	/* The process was requested to end, and is not held for GUARD_GRACE_NS. */
	GUARD_TERMINATING = 3,
	/* A thread cannot be held at the end of exit and exit_group. */
	GUARD_NEVER_RETURNS = 4,
	/* The stop was sent, but it is the thread's tracer that decides whether it takes effect. */
	GUARD_TRACED = 5,
	/* Root has executed it, and it is not known yet whether its file is exempt. */
	GUARD_UNIDENTIFIED = 6,
};

/*
 * For how long a process that was requested to end is not held. It suffices for a handler that
 * saves data, and is shorter than the time after which timeout(1), systemd and container engines
 * usually send SIGKILL (10 s or more).
 */
#define GUARD_GRACE_NS 5000000000ULL
/*
 * The end of this time is stored in units of 2^26 ns (67 ms), so that it fits into 32 bits for nine
 * years after a boot.
 */
#define GUARD_GRACE_SHIFT 26

/* The value (si_value) of the signals by which Tollgate stops and continues processes ("TOLL"). */
#define GUARD_SIGNAL 0x544f4c4c

/*
 * Classes of calls that can be held before they take effect. The calls of a class are held by the
 * same hooks. A hook acts only in calls of its own classes: most hooks are also passed within other
 * calls, which cannot be undone cleanly there.
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
	/* This needs no hook: the kernel creates no process while a signal is pending. */
	PRECALL_FORK = 1 << 16,
	/* Over IPv4 and IPv6 only: programs of control groups see no other sockets. */
	PRECALL_IP_ONLY = 1 << 17,
	/* For one call: it is refused, not held. */
	PRECALL_DENY = 1 << 18,
	/* For one call: a part of it was undone, so the rest must be undone as well. */
	PRECALL_UNDONE = 1 << 19,
	/* A stop would make it fail with EINTR, so the thread is stopped at its next call. */
	PRECALL_DEFER = 1 << 20,
};

/* The bits of enum guard_precall. The other bits of a call's flags are those of enum call_flag. */
#define PRECALL_BITS 0x1fffff

/* In a guard event's mismatches: a plugin has denounced the call. */
#define GUARD_DENOUNCED 0x8000

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
	/* Until when the thread is to be held because of this call; 0: it is not held for it. */
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
	/* The user of the thread, in the machine's numbers. */
	__u32 uid;
	/* The parent of the process; 0: it is in another PID namespace. */
	__u32 parent;
	char parent_comm[COMM_LEN];
	/* The file that the process executes: its device, and its inode number. */
	__u32 device;
	__u64 inode;
};

/* A thread's state: what the guard needs at each call. */
struct guard_hot {
	/* The thread's latest calls by the symbols of its program, the newest in the low bits. */
	__u64 window;
	/*
	 * How many calls are left until the next update of the profile's counters, and how many
	 * were left right after the last update: at most GUARD_BATCH.
	 */
	__u16 batch_left;
	__u16 batch_size;
	/* enum guard_precall: what is to happen to the current call. */
	__u32 precall;
	/* A call takes the slow path if one of the next four fields is not 0: needs_slow_path(). */
	/* LFC: how many of the latest 128 calls were anomalies. */
	__u8 lfc;
	/* The number of signal handlers that the thread is in. */
	__u8 handlers;
	/* GUARD_RESTART_EXPECTED, and what plugins have denounced: GUARD_CALL_DENOUNCED. */
	__u8 restart;
	__u8 held;
	__u16 profile_slot;
	/* The session that guards it. It may differ from the session in which the thread counts. */
	__u16 session;
};

/* The kernel restarts the interrupted call: the next call is the same one. */
#define GUARD_RESTART_EXPECTED 1
/*
 * A plugin has denounced the latest call that was tested. The higher bits say the same of the calls
 * that handlers have interrupted; the lowest of them is for the latest one.
 */
#define GUARD_CALL_DENOUNCED 2

/* A thread's state: what the guard needs at anomalies, holds and signals (guard_threads). */
struct guard_cold {
	/* One bit for each of the latest calls, the newest in the lowest bit of the first word. */
	__u64 frame[2];
	/* The windows that handlers interrupted, the latest first, with GUARD_RESTARTS. */
	__u64 interrupted[GUARD_HANDLERS];
	/* With `held`: until when the thread is held. */
	__u64 held_until_ns;
	/*
	 * The process was requested to end, by SIGTERM for instance, and is not held until then, in
	 * units of 2^GUARD_GRACE_SHIFT ns; 0: it was not requested, or the time is over.
	 */
	__u32 grace_until;
	/* The largest LFC since its execve. */
	__u8 max_lfc;
	/*
	 * The thread was held at some time or, for a process's first thread, any thread of the
	 * process was.
	 */
	__u8 ever_held;
	/*
	 * The signal by which another process than the guard's has stopped the process, until it
	 * is continued; 0: none. With FOREIGN_STOP_CERTAIN, the signal has stopped the
	 * process or is certain to do so. It may be combined with FOREIGN_STOP_WITH_CHILD. The
	 * highest value of all threads of the process counts.
	 */
	__u8 foreign_stop;
	/*
	 * Since its execve, the process was freed by a request of the kernel. An attacker can cause
	 * such requests himself, so there is only one. Children inherit this.
	 */
	__u8 had_kernel_grace;
};

/* A program has got a profile. `pid` is the first thread that runs it. */
struct guard_program_record {
	__u32 type;
	__u32 session;
	__u32 pid;
	__u32 profile_slot;
	struct guard_program program;
	/* The real user ID of the process, in the initial user namespace. */
	__u32 user;
	__u32 unused;
	struct fd_path path;
	struct identity_name scope;
};

/* The latest verdict that the guard gave on one processor, for the plugins that run there. */
struct plugin_verdict {
	__u32 mismatches;
	__u32 lfc;
	__u32 action;
	__u32 is_denounced;
};

/* GUARD_EVENTS: the start of a program or an anomaly. */
#define GUARD_LOSSES(X)                                                                            \
	X(PROFILES, SESSION, "programs without a profile (none was ready)")                        \
	X(USER_PROFILES, SESSION, "programs without a profile (too many of their user)")           \
	X(UNGUARDED_CALLS, SESSION, "calls of programs without a profile")                         \
	X(GUARD_EVENTS, SESSION, "guard events not reported (buffer full)")

#endif
