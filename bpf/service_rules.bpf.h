/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Which rule decides: for each set of conditions one look-up by the hash of their values, however many rules there are.
 * crates/service/src/keys.rs makes the same hashes.
 */
#ifndef TOLLGATE_SERVICE_RULES_BPF_H
#define TOLLGATE_SERVICE_RULES_BPF_H

#include "state.bpf.h"
#include "path.bpf.h"
#include "scope.bpf.h"

struct service_member members[THREADS] SEC(".bss.members");
struct service services[SERVICES] SEC(".bss.services");
struct service_book books[2] SEC(".bss.books");
HASH_MAP(service_rules, 2 * SERVICE_RULES, struct service_key, struct service_rule);

/* crates/service/src/rule.rs, Event */
enum service_event {
	EVENT_FORK,
	EVENT_EXEC,
	EVENT_FOUND,
	EVENT_USER,
	EVENT_RECEIVE,
	EVENT_OPEN,
};

#define NAME_LEN 256
/* Names of a path whose hashes are known, from the root on. */
#define NAMES 64
/*
 * Names and mount points on the way from a file to the root: a path that is given in one piece has 2,048 names at most
 * (include/uapi/linux/limits.h, PATH_MAX).
 */
#define PATH_WALK 2048

static __always_inline struct service_member *member_of(struct thread_state *thread)
{
	return &members[thread->slot & (THREADS - 1)];
}

/* Whose hashes are at once in the scratch. */
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
	/* Where the latest NAMES of them are. The last one of the path comes first. */
	const void *name[NAMES];
	/* Of the first so many names together. */
	u64 prefix[PATHS * NAMES];
	/* One that is being started; its name is that of the unit with this hash, if there is one. */
	u64 unit;
	struct service_start start;
};
PERCPU_MAP(service_scratch, 1, struct service_scratch);

static __always_inline struct service_scratch *scratch(void)
{
	u32 first = 0;

	return bpf_map_lookup_elem(&service_scratch, &first);
}

static __always_inline u64 mix(u64 hash, u64 value)
{
	return (hash ^ (hash >> 32) ^ value) * 0x9e3779b97f4a7c15ULL;
}

/*
 * Of the first `length` bytes of the scratch text. A global function, so that the verifier looks at its loop
 * once. Below gate_switch it is the last of the eight calls that the verifier allows (MAX_CALL_FRAMES).
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
		hash = mix(hash, word[i]);
	return mix(hash, length);
}

/* Without its NUL, which has to be there. */
static __always_inline u64 hash_kernel_text(struct service_scratch *scratch, const void *text)
{
	long length = bpf_probe_read_kernel_str(scratch->text, NAME_LEN, text);

	return length > 1 ? hash_text(length - 1) : 0;
}

struct path_fold {
	u64 hash;
	/* Where its hashes begin. */
	u32 first;
};

static long fold_name(u32 i, struct path_fold *fold)
{
	struct service_scratch *room = scratch();
	u32 at;

	if (!room || i + 1 >= NAMES)
		return 1;
	at = room->names - 1 - i;
	fold->hash = mix(fold->hash, hash_kernel_text(room, room->name[at & (NAMES - 1)]));
	at = fold->first + i + 1;
	if (at >= PATHS * NAMES)
		return 1;
	room->prefix[at] = fold->hash;
	return 0;
}

/* Hashes of what the path in the scratch begins with, up to so many names; of all these. */
static __always_inline u64 fold_names(struct service_scratch *scratch, enum service_path path, u32 names)
{
	struct path_fold fold = { .hash = header.salt, .first = path * NAMES };

	bpf_loop(names, fold_name, &fold, 0);
	return fold.hash;
}

static long take_path_name(u32 i, struct path_walk *walk)
{
	struct service_scratch *room = scratch();

	if (!room)
		return 1;
	switch (path_step(walk)) {
	case PATH_CROSSED:
		return 0;
	case PATH_NAME:
		room->name[room->names & (NAMES - 1)] = READ_FIELD(struct dentry, walk->below, d_name.name);
		room->names++;
		return 0;
	case PATH_NOWHERE:
		room->names = 0;
		break;
	case PATH_ROOT:
		break;
	}
	walk->is_whole = 1;
	return 1;
}

/* Leaves the names of a file's path in the scratch; false: they are too many. */
static __always_inline bool walk_path(struct service_scratch *scratch, struct task_struct *task, struct file *file)
{
	struct path_walk walk = {};

	path_begin(&walk, task, READ_FIELD(struct file, file, f_path.dentry),
		   mount_of(READ_FIELD(struct file, file, f_path.mnt)));
	scratch->names = 0;
	bpf_loop(PATH_WALK, take_path_name, &walk, 0);
	return walk.is_whole;
}

/* Of the path of a process's program; 0: it has none, or one of too many names. */
static __noinline u64 hash_of_program(struct task_struct *task)
{
	struct service_scratch *room = scratch();
	struct file *file = BPF_CORE_READ(task, mm, exe_file);

	if (!room || !file || !walk_path(room, task, file) || room->names >= NAMES)
		return 0;
	return fold_names(room, PATH_OF_THREAD, room->names);
}

/* Of the name of the unit, a service or scope, that has the process; 0: none. */
static __noinline u64 hash_of_unit(struct task_struct *task)
{
	struct service_scratch *room = scratch();
	struct scope_name *name = scope_name();

	if (!room || !name || !placement_of(task, ANY_UNIT))
		return 0;
	room->unit = hash_kernel_text(room, name->text);
	bpf_probe_read_kernel_str(room->start.name, sizeof(room->start.name), name->text);
	return room->unit;
}

static long take_cgroup_name(u32 i, struct cgroup **at)
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

/* Leaves the hashes of its control group's path in the scratch: of v2, or of v1's where it is in none of v2. */
static __noinline void hash_cgroup(struct task_struct *task)
{
	struct service_scratch *room = scratch();
	struct cgroup *at = BPF_CORE_READ(task, cgroups, dfl_cgrp);

	if (!room)
		return;
	room->names = 0;
	if (at)
		bpf_loop(NAMES, take_cgroup_name, &at, 0);
	if (!room->names) {
		at = counted_cgroup(task);
		if (at)
			bpf_loop(NAMES, take_cgroup_name, &at, 0);
	}
	/* Not up to the root: what it begins with is not known. */
	if (at)
		room->names = 0;
	fold_names(room, PATH_OF_THREAD, room->names);
}

/* What is known of a thread at an event, and the rule found so far. */
struct service_question {
	u32 event;
	u32 book;
	u64 exe;
	u64 unit;
	u32 user;
	u16 service;
	u16 peer;
	u32 borrowed;
	/* Names of its control group's path, and of the opened file's, whose hashes are in the scratch. */
	u32 names;
	u32 file_names;
	u32 unused;
	struct service_connection connection;
	struct service_rule best;
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
	/* IPv4 in IPv6 has 96 bits before it. */
	if (family == 4)
		bits += 96;
	hash = mix(hash, masked(connection->client[0], bits));
	return mix(hash, masked(connection->client[1], bits > 64 ? bits - 64 : 0));
}

static long ask_set(u32 i, struct service_question *question)
{
	struct service_connection *connection = &question->connection;
	struct service_key key = { .book = question->book };
	struct service_scratch *room = scratch();
	const struct service_set *set;
	struct service_rule *rule;
	u32 fields, depth, at;
	u64 hash;

	at = question->event * SERVICE_SETS + i;
	if (at >= SERVICE_SETS_ALL || !room)
		return 1;
	key.set = books[question->book & 1].ask[at];
	if (key.set >= SERVICE_SETS_ALL)
		return 1;
	set = &books[question->book & 1].set[key.set];
	fields = set->fields;
	if ((fields & FIELD_EXE && !question->exe) || (fields & FIELD_UNIT && !question->unit) ||
	    (fields & FIELD_LISTEN_PATH && !connection->listen_path) ||
	    (fields & FIELD_LISTEN_ADDRESS && !connection->listen_address) ||
	    (fields & FIELD_LISTEN_PORT && !connection->listen_port) ||
	    (fields & FIELD_CLIENT && connection->client_family != set->client_family) ||
	    (fields & FIELD_PEER && question->peer == SERVICE_NONE))
		return 0;
	/* Has `fields` tested again: the verifier would follow each combination of the results above. */
	barrier_var(fields);
	hash = header.salt;
	if (fields & FIELD_EXE)
		hash = mix(hash, question->exe);
	if (fields & FIELD_USER)
		hash = mix(hash, question->user);
	if (fields & FIELD_UNIT)
		hash = mix(hash, question->unit);
	if (fields & FIELD_SERVICE)
		hash = mix(hash, question->service);
	if (fields & FIELD_LISTEN_PATH)
		hash = mix(hash, connection->listen_path);
	if (fields & FIELD_LISTEN_ADDRESS)
		hash = mix(hash, connection->listen_address);
	if (fields & FIELD_LISTEN_PORT)
		hash = mix(hash, connection->listen_port);
	if (fields & FIELD_CLIENT)
		hash = hash_client(hash, connection, set->client_family, set->client_bits);
	if (fields & FIELD_PEER)
		hash = mix(hash, question->peer);
	if (fields & FIELD_CGROUP) {
		depth = set->cgroup_depth;
		if (depth > question->names || depth >= NAMES)
			return 0;
		hash = mix(hash, room->prefix[PATH_OF_THREAD * NAMES + depth]);
	}
	if (fields & FIELD_FILE) {
		depth = set->file_depth;
		if (depth > question->file_names || depth >= NAMES)
			return 0;
		hash = mix(hash, room->prefix[PATH_OF_FILE * NAMES + depth]);
	}
	key.hash = hash;
	rule = bpf_map_lookup_elem(&service_rules, &key);
	if (!rule || !(rule->events >> question->event & 1))
		return 0;
	if (question->borrowed && question->event < EVENT_RECEIVE && !rule->names_events)
		return 0;
	if (question->best.then == THEN_NOTHING || rule->place < question->best.place)
		question->best = *rule;
	return 0;
}

/* The rule that decides, in `best`. */
static __noinline void ask_rules(struct service_question *question, struct task_struct *task)
{
	struct service_scratch *room;
	const struct service_book *book;
	u32 sets;

	question->book = READ_ONCE(header.book);
	book = &books[question->book & 1];
	question->best.then = THEN_NOTHING + unknown_zero();
	question->best.place = unknown_zero();
	if (question->event >= SERVICE_EVENTS)
		return;
	sets = book->asked[question->event];
	if (!sets)
		return;
	question->names = 0;
	if (book->fields & FIELD_CGROUP) {
		hash_cgroup(task);
		room = scratch();
		question->names = room ? room->names : 0;
	}
	bpf_loop(sets, ask_set, question, 0);
}

#endif
