/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Which programs may be selected (--exe), and which session guards them. Programs that no session
 * selects get no profile, so that they cannot use up the profiles of those that are selected.
 */
#ifndef TOLLGATE_GUARD_SELECTION_BPF_H
#define TOLLGATE_GUARD_SELECTION_BPF_H

#include "gate/state.bpf.h"
#include "gate/threads.bpf.h"
#include "lib/hash.bpf.h"
#include "wire/guard.h"

HASH_MAP(guard_selected_files, GUARD_SELECTED_FILES, struct guard_selected_file, u32);

/* Of several sessions, the one with the largest value guards the program. */
enum file_selection {
	FILE_UNSELECTED,
	/* It has the name of a selected file. Any user can give this name to a file. */
	FILE_OF_NAME,
	/* The session guards all programs. */
	FILE_ANY,
	FILE_SELECTED,
};

/*
 * The enum file_selection of a task's program. This is a global function, so that the verifier
 * checks it once; the task's address is a number as in profile_slot_of().
 */
__noinline u32 selection_of(u64 address, u32 session_index)
{
	struct file *file = BPF_CORE_READ((struct task_struct *)address, mm, exe_file);
	struct session *session = session_at(session_index);
	struct guard_selected_file key = { .session = session_index };
	char name[GUARD_SELECTED_NAME_LEN] = {};
	u64 *words = (u64 *)name;
	u32 *device, i;

	if (!session || !session->guard.has_selected_files)
		return FILE_ANY;
	key.value = BPF_CORE_READ(file, f_inode, i_ino);
	device = bpf_map_lookup_elem(&guard_selected_files, &key);
	/* stat() may say another device than the kernel has (btrfs). */
	if (device)
		return *device == BPF_CORE_READ(file, f_inode, i_sb, s_dev) ? FILE_SELECTED :
									       FILE_OF_NAME;
	bpf_probe_read_kernel_str(name, sizeof(name),
				  BPF_CORE_READ(file, f_path.dentry, d_name.name));
	key.value = 0;
	for (i = 0; i < sizeof(name) / sizeof(u64); i++)
		key.value = hash_mix(key.value, words[i]);
	key.by = GUARD_SELECTED_NAME;
	return bpf_map_lookup_elem(&guard_selected_files, &key) ? FILE_OF_NAME : FILE_UNSELECTED;
}

/* A search for the session that guards a task's program. */
struct guard_search {
	u64 address;
	u32 own;
	u32 chosen;
	enum file_selection best;
	/* The thread is held. The chosen guard holds it from then on, and must release it. */
	bool is_held;
};

static long compare_session(u32 index, struct guard_search *at)
{
	struct task_struct *task = (void *)at->address;
	struct session *session = session_at(index);
	enum file_selection selection;

	if (!index || index == at->own || !session || !session->used || !session->is_system_wide ||
	    !(session->mask & GUARD) ||
	    (at->is_held && session->guard.response == GUARD_OBSERVE) ||
	    level_of_namespace(task, session->owner_namespace) == MAX_PID_LEVEL)
		return 0;
	selection = selection_of(at->address, index);
	if (selection > at->best) {
		at->best = selection;
		at->chosen = index;
	}
	return 0;
}

/*
 * The session that guards a task's program: `own`, which may be 0 (none), or a machine-wide session
 * that selects the program more precisely. A session that guards a command or control groups keeps
 * all programs that it selects. A guard that only observes has no watchdog, and gets no process
 * that `is_held`.
 */
__noinline u32 guard_session_of(u64 address, u32 own, u32 is_held)
{
	struct guard_search at = {
		.address = address,
		.own = own,
		.chosen = own,
		.is_held = is_held,
	};
	struct session *session;

	if (!(config.enabled & GUARD))
		return own;
	if (own) {
		at.best = selection_of(address, own);
		session = session_at(own);
		if (!session || at.best == FILE_SELECTED ||
		    (at.best != FILE_UNSELECTED && !session->is_system_wide))
			return own;
	}
	bpf_loop(SESSIONS, compare_session, &at, 0);
	return at.chosen;
}

#endif
