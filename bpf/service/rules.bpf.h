/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Which rule decides. The rules are matched by tuple space search: one look-up for each tuple, by
 * the hash of its conditions' values, however many rules it has.
 * crates/service/src/hashed_ruleset.rs makes the same hashes.
 */
#ifndef TOLLGATE_SERVICE_RULES_BPF_H
#define TOLLGATE_SERVICE_RULES_BPF_H

#include "gate/identity.bpf.h"
#include "lib/hash.bpf.h"
#include "lib/path.bpf.h"
#include "service/state.bpf.h"

HASH_MAP(service_rules, 2 * SERVICE_RULES, struct service_key, struct service_rule);

#define NAME_LEN 256
/* Names of a path whose hashes are kept, from the root on. */
#define NAMES 64
/*
 * Names and mount points between a file and the root. A path that is given in one piece has 2,048
 * names at most (include/uapi/linux/limits.h, PATH_MAX).
 */
#define PATH_WALK 2048

/* Paths whose hashes are in the scratch at the same time. */
enum service_path {
	PATH_OF_THREAD,
	PATH_OF_FILE,
	PATHS,
};

/* Too large for the stack. */
struct service_scratch {
	/* With room for a word of zeroes. */
	char text[NAME_LEN + 8];
	u32 names;
	/* Where the latest NAMES of them are. The last name of the path comes first. */
	const void *name[NAMES];
	/* For each path, the hash of its first name, of its first two names, and so on. */
	u64 prefix[PATHS * NAMES];
	/*
	 * A service that is being started; `unit` is the hash of the unit that it is named after,
	 * or 0.
	 */
	u64 unit;
	struct dynamic_service start;
};
PERCPU_MAP(service_scratch, 1, struct service_scratch);

static __always_inline struct service_scratch *scratch(void)
{
	u32 first = 0;

	return bpf_map_lookup_elem(&service_scratch, &first);
}

/*
 * Hash of the first `length` bytes of the scratch text. A global function, so that the verifier
 * checks its loop once. Below gate_sched_switch it is the last of the eight nested calls that the
 * verifier allows (MAX_CALL_FRAMES).
 */
__noinline u64 hash_text(u64 length)
{
	struct service_scratch *room = scratch();
	u64 hash = header.salt, *word;

	if (!room)
		return 0;
	word = (u64 *)room->text;
	/* 6.1's verifier must see the bound on all 64 bits. */
	barrier_var(length);
	if (length > NAME_LEN)
		length = NAME_LEN;
	__builtin_memset(&room->text[length], 0, sizeof(u64));
	for (u32 i = 0; i < NAME_LEN / sizeof(u64) && i * sizeof(u64) < length; i++)
		hash = hash_mix(hash, word[i]);
	return hash_mix(hash, length);
}

/* Hash of a text without its NUL, which has to be there. */
static __always_inline u64 hash_kernel_text(struct service_scratch *scratch, const void *text)
{
	long length = bpf_probe_read_kernel_str(scratch->text, NAME_LEN, text);

	return length > 1 ? hash_text(length - 1) : 0;
}

struct name_hasher {
	u64 hash;
	/* Where the path's hashes begin. */
	u32 first;
};

static long hash_name(u32 i, struct name_hasher *fold)
{
	struct service_scratch *room = scratch();
	u32 at;

	if (!room || i + 1 >= NAMES)
		return 1;
	at = room->names - 1 - i;
	fold->hash = hash_mix(fold->hash, hash_kernel_text(room, room->name[at & (NAMES - 1)]));
	at = fold->first + i + 1;
	if (at >= PATHS * NAMES)
		return 1;
	room->prefix[at] = fold->hash;
	return 0;
}

/* Hashes each beginning of the path in the scratch, up to `names` names. Returns the last hash. */
static __always_inline u64 hash_names(struct service_scratch *scratch, enum service_path path, u32 names)
{
	struct name_hasher fold = { .hash = header.salt, .first = path * NAMES };

	bpf_loop(names, hash_name, &fold, 0);
	return fold.hash;
}

static long collect_path_name(u32 i, struct path_walk *walk)
{
	struct service_scratch *room = scratch();

	if (!room)
		return 1;
	switch (path_next(walk)) {
	case PATH_MOUNT:
		return 0;
	case PATH_NAME:
		room->name[room->names & (NAMES - 1)] = READ_FIELD(struct dentry, walk->below, d_name.name);
		room->names++;
		return 0;
	case PATH_DETACHED:
		room->names = 0;
		break;
	case PATH_ROOT:
		break;
	}
	walk->is_whole = 1;
	return 1;
}

/* Leaves the names of a file's path in the scratch; false: there are too many. */
static __always_inline bool collect_names(struct service_scratch *scratch, struct task_struct *task, struct file *file)
{
	struct path_walk walk = {};

	path_begin(&walk, task, READ_FIELD(struct file, file, f_path.dentry),
		   mount_of(READ_FIELD(struct file, file, f_path.mnt)));
	scratch->names = 0;
	bpf_loop(PATH_WALK, collect_path_name, &walk, 0);
	return walk.is_whole;
}

/* Hash of the path of a process's program; 0: it has none, or one of too many names. */
static __noinline u64 hash_of_program(struct task_struct *task)
{
	struct service_scratch *room = scratch();
	struct file *file = BPF_CORE_READ(task, mm, exe_file);

	if (!room || !file || !collect_names(room, task, file) || room->names >= NAMES)
		return 0;
	return hash_names(room, PATH_OF_THREAD, room->names);
}

/* Hash of the name of the process's unit, which is a service or scope of systemd; 0: none. */
static __noinline u64 hash_of_unit(struct task_struct *task)
{
	struct service_scratch *room = scratch();
	struct scope_name *name = scope_name();

	if (!room || !name || !unit_or_container_of(task, SCOPE_ANY_UNIT))
		return 0;
	room->unit = hash_kernel_text(room, name->text);
	bpf_probe_read_kernel_str(room->start.name, sizeof(room->start.name), name->text);
	return room->unit;
}

static long collect_cgroup_name(u32 i, struct cgroup **at)
{
	struct service_scratch *room = scratch();
	struct cgroup *cgroup = *at;
	struct cgroup_subsys_state *parent = BPF_CORE_READ(cgroup, self.parent);
	u32 names;

	/* The root has no name in a path. */
	if (!parent)
		*at = NULL;
	if (!room || !parent)
		return 1;
	names = room->names;
	if (names >= NAMES)
		return 1;
	room->name[names] = BPF_CORE_READ(cgroup, kn, name);
	room->names = names + 1;
	*at = BPF_CORE_READ(parent, cgroup);
	return 0;
}

/*
 * Leaves the hashes of the path of the task's control group in the scratch: that of v2, or that of
 * v1 if the task is in none of v2.
 */
static __noinline void hash_cgroup(struct task_struct *task)
{
	struct service_scratch *room = scratch();
	struct cgroup *at = BPF_CORE_READ(task, cgroups, dfl_cgrp);

	if (!room)
		return;
	room->names = 0;
	if (at)
		bpf_loop(NAMES, collect_cgroup_name, &at, 0);
	if (!room->names) {
		at = pids_cgroup(task);
		if (at)
			bpf_loop(NAMES, collect_cgroup_name, &at, 0);
	}
	/* The root was not reached: the beginning of the path is not known. */
	if (at)
		room->names = 0;
	hash_names(room, PATH_OF_THREAD, room->names);
}

/* What is known of a thread at an event, and the rule that decides so far. */
struct rule_query {
	u32 event;
	u32 book;
	u64 exe;
	u64 unit;
	u32 user;
	u16 service;
	u16 peer;
	u32 binding;
	/*
	 * Numbers of hashed names in the scratch: of the control group's path, of the file's path.
	 */
	u32 names;
	u32 file_names;
	u32 unused;
	struct service_connection connection;
	struct service_rule rule;
};

static __always_inline u64 masked(u64 half, u32 bits)
{
	u64 value = __builtin_bswap64(half);

	if (!bits)
		return 0;
	return bits >= 64 ? value : value & ~0ULL << (64 - bits);
}

static __always_inline u64 hash_client(u64 hash, struct service_connection *connection, u32 family, u32 bits)
{
	/* In IPv4-mapped IPv6, 96 bits come before the address. */
	if (family == 4)
		bits += 96;
	hash = hash_mix(hash, masked(connection->client[0], bits));
	return hash_mix(hash, masked(connection->client[1], bits > 64 ? bits - 64 : 0));
}

static long match_tuple(u32 i, struct rule_query *question)
{
	struct service_connection *connection = &question->connection;
	struct service_key key = { .ruleset = question->book };
	struct service_scratch *room = scratch();
	const struct service_tuple *tuple;
	struct service_rule *rule;
	u32 fields, depth, at;
	u64 hash;

	at = question->event * SERVICE_TUPLES + i;
	if (at >= SERVICE_TUPLES_ALL || !room)
		return 1;
	key.tuple = rulesets[question->book & 1].tuples_of_event[at];
	if (key.tuple >= SERVICE_TUPLES_ALL)
		return 1;
	tuple = &rulesets[question->book & 1].tuple[key.tuple];
	fields = tuple->fields;
	if ((fields & FIELD_EXE && !question->exe) || (fields & FIELD_UNIT && !question->unit) ||
	    (fields & FIELD_LISTEN_PATH && !connection->listen_path) ||
	    (fields & FIELD_LISTEN_ADDRESS && !connection->listen_address) ||
	    (fields & FIELD_LISTEN_PORT && !connection->listen_port) ||
	    (fields & FIELD_CLIENT && connection->client_family != tuple->client_family) ||
	    (fields & FIELD_PEER && question->peer == SERVICE_NONE))
		return 0;
	/* Makes the compiler test `fields` again: the verifier would follow all combinations. */
	barrier_var(fields);
	hash = header.salt;
	if (fields & FIELD_EXE)
		hash = hash_mix(hash, question->exe);
	if (fields & FIELD_USER)
		hash = hash_mix(hash, question->user);
	if (fields & FIELD_UNIT)
		hash = hash_mix(hash, question->unit);
	if (fields & FIELD_SERVICE)
		hash = hash_mix(hash, question->service);
	if (fields & FIELD_LISTEN_PATH)
		hash = hash_mix(hash, connection->listen_path);
	if (fields & FIELD_LISTEN_ADDRESS)
		hash = hash_mix(hash, connection->listen_address);
	if (fields & FIELD_LISTEN_PORT)
		hash = hash_mix(hash, connection->listen_port);
	if (fields & FIELD_CLIENT)
		hash = hash_client(hash, connection, tuple->client_family, tuple->client_bits);
	if (fields & FIELD_PEER)
		hash = hash_mix(hash, question->peer);
	if (fields & FIELD_CGROUP) {
		depth = tuple->cgroup_depth;
		if (depth > question->names || depth >= NAMES)
			return 0;
		hash = hash_mix(hash, room->prefix[PATH_OF_THREAD * NAMES + depth]);
	}
	if (fields & FIELD_FILE) {
		depth = tuple->file_depth;
		if (depth > question->file_names || depth >= NAMES)
			return 0;
		hash = hash_mix(hash, room->prefix[PATH_OF_FILE * NAMES + depth]);
	}
	key.hash = hash;
	rule = bpf_map_lookup_elem(&service_rules, &key);
	if (!rule || !(rule->events >> question->event & 1))
		return 0;
	if (question->binding && question->event < EVENT_RECEIVE && !rule->names_events)
		return 0;
	if (question->rule.then == ACTION_NONE || rule->precedence < question->rule.precedence)
		question->rule = *rule;
	return 0;
}

/* Leaves the rule that decides in `question->rule`. */
static __noinline void match_rules(struct rule_query *question, struct task_struct *task)
{
	struct service_scratch *room;
	const struct service_ruleset *ruleset;
	u32 sets;

	question->book = READ_ONCE(header.ruleset);
	ruleset = &rulesets[question->book & 1];
	question->rule.then = ACTION_NONE + unknown_zero();
	question->rule.precedence = unknown_zero();
	if (question->event >= SERVICE_EVENTS)
		return;
	sets = ruleset->tuple_count[question->event];
	if (!sets)
		return;
	question->names = 0;
	if (ruleset->fields & FIELD_CGROUP) {
		hash_cgroup(task);
		room = scratch();
		question->names = room ? room->names : 0;
	}
	bpf_loop(sets, match_tuple, question, 0);
}

#endif
