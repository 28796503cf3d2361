/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The identity of a task as hashes of names: of its executable's path, its unit and its control
 * group's path. The path of an opened file is hashed in the same way.
 */
#ifndef TOLLGATE_GATE_NAMES_BPF_H
#define TOLLGATE_GATE_NAMES_BPF_H

#include "gate/identity.bpf.h"
#include "lib/hash.bpf.h"
#include "lib/path.bpf.h"

#define NAME_LEN 256
/*
 * The number of a path's entries in the scratch. Entry n has the hash of the path's first n names.
 */
#define NAMES 64
/*
 * The maximum number of names and mount points between a file and the root. A path that a call
 * passes in one piece has at most 2,048 names (include/uapi/linux/limits.h, PATH_MAX).
 */
#define PATH_WALK 2048

/* Paths whose hashes are in the scratch at the same time. */
enum hashed_path {
	PATH_OF_THREAD,
	PATH_OF_FILE,
	PATHS,
};

/* Too large for the stack. */
struct name_scratch {
	/* With room for a word of zeroes. */
	char text[NAME_LEN + 8];
	u32 names;
	/*
	 * Addresses of the names that were collected last, at most NAMES. A path's last name is
	 * collected first.
	 */
	const void *name[NAMES];
	/* NAMES entries for each path. */
	u64 prefix[PATHS * NAMES];
};
PERCPU_MAP(name_scratch, 1, struct name_scratch);

static __always_inline struct name_scratch *this_scratch(void)
{
	u32 first = 0;

	return bpf_map_lookup_elem(&name_scratch, &first);
}

/*
 * Hash of the first `length` bytes of the scratch text. This is a global function, so that the
 * verifier checks its loop once. Below gate_sched_switch it is the last of the eight nested calls
 * that the verifier allows (MAX_CALL_FRAMES).
 */
__noinline u64 hash_text(u64 length)
{
	struct name_scratch *scratch = this_scratch();
	u64 hash = header.salt, *word;

	if (!scratch)
		return 0;
	word = (u64 *)scratch->text;
	/* 6.1's verifier must see the bound on all 64 bits. */
	barrier_var(length);
	if (length > NAME_LEN)
		length = NAME_LEN;
	__builtin_memset(&scratch->text[length], 0, sizeof(u64));
	for (u32 i = 0; i < NAME_LEN / sizeof(u64) && i * sizeof(u64) < length; i++)
		hash = hash_mix(hash, word[i]);
	return hash_mix(hash, length);
}

/* Hash of a NUL-terminated text, without the NUL. */
static __always_inline u64 hash_kernel_text(struct name_scratch *scratch, const void *text)
{
	long length = bpf_probe_read_kernel_str(scratch->text, NAME_LEN, text);

	return length > 1 ? hash_text(length - 1) : 0;
}

struct name_hasher {
	u64 hash;
	/* Where the path's hashes begin. */
	u32 first;
};

static long hash_name(u32 i, struct name_hasher *hasher)
{
	struct name_scratch *scratch = this_scratch();
	const void *text;
	u32 at;

	if (!scratch || i + 1 >= NAMES)
		return 1;
	at = scratch->names - 1 - i;
	text = scratch->name[at & (NAMES - 1)];
	hasher->hash = hash_mix(hasher->hash, hash_kernel_text(scratch, text));
	at = hasher->first + i + 1;
	if (at >= PATHS * NAMES)
		return 1;
	scratch->prefix[at] = hasher->hash;
	return 0;
}

/* Hashes each prefix of the path in the scratch, up to `names` names. Returns the last hash. */
static __always_inline u64 hash_names(struct name_scratch *scratch, enum hashed_path path,
				      u32 names)
{
	struct name_hasher hasher = { .hash = header.salt, .first = path * NAMES };

	bpf_loop(names, hash_name, &hasher, 0);
	return hasher.hash;
}

static long collect_path_name(u32 i, struct path_walk *walk)
{
	struct name_scratch *scratch = this_scratch();

	if (!scratch)
		return 1;
	switch (path_next(walk)) {
	case PATH_MOUNT:
		return 0;
	case PATH_NAME:
		scratch->name[scratch->names & (NAMES - 1)] =
			READ_FIELD(struct dentry, walk->below, d_name.name);
		scratch->names++;
		return 0;
	case PATH_DETACHED:
		scratch->names = 0;
		break;
	case PATH_ROOT:
		break;
	}
	walk->is_whole = 1;
	return 1;
}

/* Leaves the names of a file's path in the scratch. Returns false if there are too many. */
static __always_inline bool collect_names(struct name_scratch *scratch, struct task_struct *task,
					  struct file *file)
{
	struct path_walk walk = {};

	path_begin(&walk, task, READ_FIELD(struct file, file, f_path.dentry),
		   mount_of(READ_FIELD(struct file, file, f_path.mnt)));
	scratch->names = 0;
	bpf_loop(PATH_WALK, collect_path_name, &walk, 0);
	return walk.is_whole;
}

/* Hash of the path of a process's program; 0: it has none, or its path has too many names. */
static __noinline u64 hash_of_program(struct task_struct *task)
{
	struct name_scratch *scratch = this_scratch();
	struct file *file = BPF_CORE_READ(task, mm, exe_file);

	if (!scratch || !file || !collect_names(scratch, task, file) || scratch->names >= NAMES)
		return 0;
	return hash_names(scratch, PATH_OF_THREAD, scratch->names);
}

/*
 * Hash of the name of the process's unit, which is a service or scope of systemd; 0: none. The name
 * itself is left in `identity_scratch`.
 */
static __always_inline u64 hash_of_unit(struct task_struct *task)
{
	struct name_scratch *scratch = this_scratch();
	struct identity_name *name = identity_name();

	if (!scratch || !name || !unit_or_container_of(task, IDENTITY_ANY_UNIT))
		return 0;
	return hash_kernel_text(scratch, name->text);
}

static long collect_cgroup_name(u32 i, struct cgroup **at)
{
	struct name_scratch *scratch = this_scratch();
	struct cgroup *cgroup = *at;
	struct cgroup_subsys_state *parent = BPF_CORE_READ(cgroup, self.parent);
	u32 names;

	/* The root has no name in a path. */
	if (!parent)
		*at = NULL;
	if (!scratch || !parent)
		return 1;
	names = scratch->names;
	if (names >= NAMES)
		return 1;
	scratch->name[names] = BPF_CORE_READ(cgroup, kn, name);
	scratch->names = names + 1;
	*at = BPF_CORE_READ(parent, cgroup);
	return 0;
}

/*
 * Leaves the hashes of the path of the task's control group in the scratch. This is its control
 * group of v2 or, if the task is in the root of v2, its control group of v1.
 */
static __noinline void hash_cgroup(struct task_struct *task)
{
	struct name_scratch *scratch = this_scratch();
	struct cgroup *at = BPF_CORE_READ(task, cgroups, dfl_cgrp);

	if (!scratch)
		return;
	scratch->names = 0;
	if (at)
		bpf_loop(NAMES, collect_cgroup_name, &at, 0);
	if (!scratch->names) {
		at = pids_cgroup(task);
		if (at)
			bpf_loop(NAMES, collect_cgroup_name, &at, 0);
	}
	/* The root was not reached, so the beginning of the path is not known. */
	if (at)
		scratch->names = 0;
	hash_names(scratch, PATH_OF_THREAD, scratch->names);
}

#endif
