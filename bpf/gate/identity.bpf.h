/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The identity of a task: its executable, and the script that it interprets or the unit or
 * container that it runs in, which distinguish programs that share one executable. crates/identity
 * finds the same for processes that already run.
 */
#ifndef TOLLGATE_GATE_IDENTITY_BPF_H
#define TOLLGATE_GATE_IDENTITY_BPF_H

#include "gate/state.bpf.h"
#include "lib/hash.bpf.h"
#include "lib/path.bpf.h"
#include "wire/identity.h"

/*
 * Too large for the stack. Declared by sizes, because the skeleton's generator does not support
 * arrays of arrays.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct identity_name));
} identity_scratch SEC(".maps");

/* Maximum numbers of arguments up to the script, and of control groups up to the root. */
#define IDENTITY_ARGUMENTS 64
#define IDENTITY_LEVELS 32
/*
 * In an argument of up to this length (with the '-'), the last letter is taken for an option of its
 * own, as the `e` in `perl -lane`. A longer argument such as `-Dname` ends with a value instead.
 */
#define IDENTITY_OPTION_LEN 5
/* The name of a container's control group has 64 digits, with words around them. */
#define CONTAINER_DIGITS 64
/* ".service" as a word. */
#define DOT_SERVICE 0x656369767265732eULL
/* ".scope" in the last six bytes of a word. */
#define DOT_SCOPE 0x65706f63732eULL
/* A kind besides those of enum identity_kind: a service or a scope of systemd. */
#define IDENTITY_ANY_UNIT 256
/* Passed instead of an identity, if that of the current process is to be used. */
#define IDENTITY_CURRENT IDENTITY_ANY

static __always_inline struct identity_name *identity_name(void)
{
	u32 first = 0;

	return bpf_map_lookup_elem(&identity_scratch, &first);
}

/* Hash of a name; never one of the special values. */
static __always_inline u64 identity_hash(struct identity_name *name)
{
	u64 hash = 0, *word = (u64 *)name->text;
	u32 i;

	for (i = 0; i < sizeof(name->text) / sizeof(u64); i++)
		hash = hash_mix(hash, word[i]);
	word = (u64 *)name->folder.part;
	for (i = 0; i < sizeof(name->folder.part) / sizeof(u64); i++)
		hash = hash_mix(hash, word[i]);
	return hash > IDENTITY_ANY ? hash : IDENTITY_ANY + 1;
}

/* A task's interpreter, by its file's name without a version at the end: python3.11 is python. */
static __always_inline const volatile struct interpreter *interpreter_of(struct task_struct *task)
{
	char name[INTERPRETER_NAME_LEN] = {};
	bool is_version = true;
	s32 i;

	bpf_probe_read_kernel_str(name, sizeof(name),
				  BPF_CORE_READ(task, mm, exe_file, f_path.dentry, d_name.name));
	for (i = sizeof(name) - 1; i > 0; i--) {
		if (name[i] && name[i] != '.' && (name[i] < '0' || name[i] > '9'))
			is_version = false;
		if (is_version)
			name[i] = 0;
	}
	for (i = 0; i < INTERPRETERS && name[0]; i++) {
		const volatile struct interpreter *known = &config.interpreters[i];
		const volatile u64 *words = (const volatile u64 *)known->name;

		if (words[0] == ((u64 *)name)[0] && words[1] == ((u64 *)name)[1])
			return known;
	}
	return NULL;
}

struct argument_search {
	u64 at;
	u64 end;
	u64 code;
	u64 value;
	/*
	 * The next text belongs to the previous word: it is the rest of a long word, or an option's
	 * value.
	 */
	u32 is_rest;
	u32 is_value;
	u32 is_found;
};

static long scan_argument(u32 i, struct argument_search *search)
{
	struct identity_name *name = identity_name();
	bool belongs_before = search->is_rest || search->is_value;
	u64 start, letter;
	long length;

	if (!name || search->at >= search->end)
		return 1;
	__builtin_memset(name->text, 0, sizeof(name->text));
	length = bpf_probe_read_user_str(name->text, sizeof(name->text), (void *)search->at);
	if (length <= 0)
		return 1;
	/* The NUL of a word that was cut is not in the process's memory. */
	search->is_value = 0;
	search->is_rest = length == sizeof(name->text);
	search->at += search->is_rest ? length - 1 : length;
	if (belongs_before)
		return 0;
	start = *(u64 *)name->text;
	if ((start & 0xff) != '-') {
		search->is_found = length > 1;
		return 1;
	}
	/* The script is standard input. */
	if (length == 2)
		return 1;
	if ((start >> 8 & 0xff) == '-' || length > IDENTITY_OPTION_LEN + 1)
		return 0;
	letter = start >> (((length - 2) & 7) * 8) & 0xff;
	if (letter < 'A' || letter > 'z')
		return 0;
	letter = 1ULL << (letter - 'A');
	search->is_value = !!(search->value & letter);
	return !!(search->code & letter);
}

/* The first argument that is not an option, if the program is an interpreter. */
static __always_inline bool script_of(struct task_struct *task, struct identity_name *name)
{
	const volatile struct interpreter *interpreter = interpreter_of(task);
	struct argument_search search = { .is_value = 1 };

	if (!interpreter)
		return false;
	search.is_rest = unknown_zero();
	search.code = interpreter->code;
	search.value = interpreter->value;
	search.at = BPF_CORE_READ(task, mm, arg_start);
	search.end = BPF_CORE_READ(task, mm, arg_end);
	bpf_loop(IDENTITY_ARGUMENTS, scan_argument, &search, 0);
	if (!search.is_found)
		return false;
	if (name->text[0] != '/')
		path_of_dentry(&name->folder, task, BPF_CORE_READ(task, fs, pwd.dentry),
			       mount_of(BPF_CORE_READ(task, fs, pwd.mnt)));
	return true;
}

struct cgroup_climb {
	struct cgroup *at;
	u32 kind;
	u32 is_found;
};

static long match_cgroup(u32 i, struct cgroup_climb *climb)
{
	struct identity_name *name = identity_name();
	struct cgroup *cgroup = climb->at;
	const char *text = BPF_CORE_READ(cgroup, kn, name);
	struct cgroup_subsys_state *parent;
	u64 end = 0;
	long length;

	if (!name)
		return 1;
	__builtin_memset(name->text, 0, sizeof(name->text));
	length = bpf_probe_read_kernel_str(name->text, sizeof(name->text), text);
	if (length > (long)sizeof(end))
		bpf_probe_read_kernel(&end, sizeof(end), text + length - 1 - sizeof(end));
	if (climb->kind == IDENTITY_ANY_UNIT)
		climb->is_found = end == DOT_SERVICE || end >> 16 == DOT_SCOPE;
	else
		climb->is_found = climb->kind == IDENTITY_UNIT ? end == DOT_SERVICE :
							      length > CONTAINER_DIGITS;
	parent = BPF_CORE_READ(cgroup, self.parent);
	if (climb->is_found || !parent)
		return 1;
	climb->at = BPF_CORE_READ(parent, cgroup);
	return 0;
}

/*
 * Finds the innermost control group, from this one up, that belongs to a service or a container,
 * and leaves its name in `identity_scratch`. Returns whether there is one.
 */
static __always_inline bool find_ancestor(struct cgroup *cgroup, u32 kind)
{
	struct cgroup_climb climb = { .at = cgroup, .kind = kind };

	if (cgroup)
		bpf_loop(IDENTITY_LEVELS, match_cgroup, &climb, 0);
	return climb.is_found;
}

/*
 * The task's control group of v1 whose path names its unit or container. This is the group in the
 * hierarchy of the pids controller, because that controller is always in use. NULL: there is none.
 */
static __always_inline struct cgroup *pids_cgroup(struct task_struct *task)
{
	struct css_set *set = BPF_CORE_READ(task, cgroups);
	struct cgroup_subsys_state **subsys, *state = NULL;

	if (!bpf_core_enum_value_exists(enum cgroup_subsys_id, pids_cgrp_id))
		return NULL;
	subsys = (void *)set + bpf_core_field_offset(struct css_set, subsys);
	subsys += bpf_core_enum_value(enum cgroup_subsys_id, pids_cgrp_id);
	bpf_probe_read_kernel(&state, sizeof(state), subsys);
	return BPF_CORE_READ(state, cgroup);
}

static __always_inline bool unit_or_container_of(struct task_struct *task, u32 kind)
{
	return find_ancestor(BPF_CORE_READ(task, cgroups, dfl_cgrp), kind) ||
	       find_ancestor(pids_cgroup(task), kind);
}

/*
 * Returns the hash of the current process's script, unit or container, and leaves the name in
 * `identity_scratch`; 0: it has none. This is a global function, so that the verifier checks it
 * once.
 */
__noinline u64 current_identity(u32 kind)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct identity_name *name = identity_name();
	bool is_found;

	/*
	 * Before 6.8, the verifier also checks functions that are not called. Without scopes, it
	 * stops here.
	 */
	if (!(config.enabled & GUARD_SCOPED) || !name)
		return 0;
	__builtin_memset(&name->folder, 0, sizeof(name->folder));
	is_found = kind == IDENTITY_SCRIPT ? script_of(task, name) :
					     unit_or_container_of(task, kind);
	return is_found ? identity_hash(name) : 0;
}

#endif
