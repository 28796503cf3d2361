/* SPDX-License-Identifier: GPL-2.0 */
/* Profiles: a BPF map for each program, which user space also maps into its memory. */
#ifndef TOLLGATE_GUARD_PROFILES_BPF_H
#define TOLLGATE_GUARD_PROFILES_BPF_H

#include "gate/identity.bpf.h"
#include "gate/threads.bpf.h"
#include "guard/program_file.bpf.h"
#include "guard/selection.bpf.h"
#include "lib/path.bpf.h"
#include "wire/guard.h"

/*
 * Each profile is a map, which user space makes when it is needed. Key and value are declared by
 * size and not by type: up to 6.1, a map with types does not fit an inner map without them
 * (bpf_map_meta_equal).
 */
struct profile_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct guard_profile));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, GUARD_PROFILES);
	__type(key, u32);
	__array(values, struct profile_map);
} guard_profiles SEC(".maps");

struct overflow_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct guard_overflow));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, GUARD_PROFILES);
	__type(key, u32);
	__array(values, struct overflow_map);
} guard_overflow_windows SEC(".maps");

/* Slots of empty profiles that user space has made. */
FREE_LIST(guard_ready_profiles, GUARD_PROFILES);

/* Copies of a program share a slot, and so do different names of one scope. */
HASH_MAP(guard_programs, 4 * GUARD_PROFILES, struct guard_program, u32);

/* How many profiles the programs of each user have. */
ARRAY_MAP(guard_user_profiles, GUARD_USERS, u64, BPF_F_MMAPABLE);

static __always_inline struct guard_profile *profile_at(u32 slot)
{
	void *map = bpf_map_lookup_elem(&guard_profiles, &slot);
	u32 first = 0;

	return map ? bpf_map_lookup_elem(map, &first) : NULL;
}

static __always_inline struct guard_overflow *overflow_at(u32 slot)
{
	void *map = slot ? bpf_map_lookup_elem(&guard_overflow_windows, &slot) : NULL;
	u32 first = 0;

	return map ? bpf_map_lookup_elem(map, &first) : NULL;
}

/*
 * What distinguishes the current process's program in this session from others with the same
 * content; 0: nothing.
 */
static __always_inline u64 scope_of(u32 session_index)
{
	struct session *session = session_at(session_index);
	u32 kind = session ? session->guard.scope : IDENTITY_CONTENT;

	return kind ? current_identity(kind) : 0;
}

/*
 * Whether a program may take one of the ready profiles. A selected file always may. Otherwise, a
 * user who starts many new programs must not use up the profiles of others. Returns the loss to
 * count if it may not; LOSSES: it may.
 */
static __always_inline u32 profile_refusal(u32 user, bool is_selected)
{
	s32 ready = READ_ONCE(header.ready_profiles);
	u32 index = user & (GUARD_USERS - 1);
	u64 *profiles;

	if (!user || is_selected)
		return LOSSES;
	profiles = bpf_map_lookup_elem(&guard_user_profiles, &index);
	if (!profiles || *profiles >= GUARD_USER_PROFILES)
		return LOSS_USER_PROFILES;
	return ready > (*profiles < GUARD_USER_FEW ? GUARD_READY_FOR_ROOT :
						     GUARD_READY_FOR_OTHERS) ?
		       LOSSES :
		       LOSS_PROFILES;
}

/* Counts a profile for the user whose program has taken it. */
static __always_inline void count_profile(struct guard_profile *profile, u32 user)
{
	u32 index = user & (GUARD_USERS - 1);
	u64 *profiles = bpf_map_lookup_elem(&guard_user_profiles, &index);

	if (!user || !profiles)
		return;
	__sync_fetch_and_add(profiles, 1);
	profile->user = index + 1;
}

/*
 * The slot of the profile of a task's program. If the program has none yet, it gets an empty
 * profile. This is a global function, so that the verifier checks it once and not at each of its
 * calls. Therefore the task's address is a number here.
 */
__noinline u32 profile_slot_of(u64 address, u32 session, u64 scope)
{
	struct task_struct *task = (void *)address;
	struct guard_program_record *record;
	struct guard_profile *profile;
	struct guard_program program = { .session = session };
	u32 *known, slot, user, refusal, selection;

	if (!program_file_of(task, &program))
		return GUARD_PROFILE_NONE;
	if (config.enabled & GUARD_SCOPED)
		program.scope = scope == IDENTITY_CURRENT ? scope_of(session) : scope;
	known = bpf_map_lookup_elem(&guard_programs, &program);
	if ((config.enabled & GUARD_SCOPED) && !known && program.scope) {
		scope = program.scope;
		program.scope = IDENTITY_ANY;
		known = bpf_map_lookup_elem(&guard_programs, &program);
		program.scope = scope;
	}
	if (known)
		return *known;
	selection = selection_of(address, session);
	if (selection == FILE_UNSELECTED)
		return GUARD_PROFILE_UNSELECTED;
	user = BPF_CORE_READ(task, cred, uid.val);
	refusal = profile_refusal(user, selection == FILE_SELECTED);
	if (refusal == LOSSES && bpf_map_pop_elem(&guard_ready_profiles, &slot))
		refusal = LOSS_PROFILES;
	if (refusal != LOSSES) {
		count_loss(session, refusal);
		return GUARD_PROFILE_NONE;
	}
	__sync_fetch_and_add(&header.ready_profiles, -1);
	if (bpf_map_update_elem(&guard_programs, &program, &slot, BPF_NOEXIST)) {
		/* Another processor was faster, or the map is full. */
		bpf_map_push_elem(&guard_ready_profiles, &slot, BPF_ANY);
		__sync_fetch_and_add(&header.ready_profiles, 1);
		known = bpf_map_lookup_elem(&guard_programs, &program);
		if (!known)
			count_loss(session, LOSS_PROFILES);
		return known ? *known : GUARD_PROFILE_NONE;
	}
	profile = profile_at(slot);
	if (profile)
		count_profile(profile, user);
	record = reserve_record(session, sizeof(*record), LOSS_GUARD_EVENTS);
	if (record) {
		record->type = RECORD_GUARD_PROGRAM;
		record->session = session;
		record->pid = visible_pid(task, 0);
		record->profile_slot = slot;
		record->program = program;
		record->user = user;
		record->unused = 0;
		/*
		 * The path is read here, because a short-lived program may have ended before user
		 * space can read it.
		 */
		path_of_file(&record->path, task, BPF_CORE_READ(task, mm, exe_file));
		if (config.enabled & GUARD_SCOPED)
			bpf_probe_read_kernel(&record->scope, sizeof(record->scope),
					      identity_name());
		bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	} else if (profile) {
		/* User space will not identify it. */
		profile->is_identified = 1;
	}
	return slot;
}

#endif
