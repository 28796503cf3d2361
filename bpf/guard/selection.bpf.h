/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Which programs may be selected (--exe). The others get no profile, so that they cannot use up the
 * profiles of those that are selected.
 */
#ifndef TOLLGATE_GUARD_SELECTION_BPF_H
#define TOLLGATE_GUARD_SELECTION_BPF_H

#include "gate/state.bpf.h"
#include "lib/hash.bpf.h"
#include "wire/guard.h"

HASH_MAP(guard_selected_files, GUARD_SELECTED_FILES, struct guard_selected_file, u32);

enum file_selection {
	/* The session does not select programs. */
	FILE_ANY,
	FILE_UNSELECTED,
	/* It has the name of a selected file. Any user can give this name to a file. */
	FILE_OF_NAME,
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

#endif
