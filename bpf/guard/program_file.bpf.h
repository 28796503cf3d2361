/* SPDX-License-Identifier: GPL-2.0 */
/* The file of a task's program: what distinguishes it from others, and from its other versions. */
#ifndef TOLLGATE_GUARD_PROGRAM_FILE_BPF_H
#define TOLLGATE_GUARD_PROGRAM_FILE_BPF_H

#include "lib/compat.bpf.h"
#include "wire/guard.h"

/* include/uapi/linux/magic.h */
#define TMPFS_MAGIC 0x01021994
#define RAMFS_MAGIC 0x858458f6
#define HUGETLBFS_MAGIC 0x958458f6
#define FUSE_SUPER_MAGIC 0x65735546

/* Write permission of the group and of others. */
#define WRITABLE 0022

/*
 * Whether a user other than root can change the file while its ctime and its size stay. A file
 * system in memory changes the ctime at the first write to a shared mapping, unless the page was
 * read before. What a file system of FUSE says comes from a user's process. In a user namespace,
 * any user can mount overlayfs above one of them.
 */
static __always_inline bool changes_unseen(struct inode *inode)
{
	struct super_block *super = BPF_CORE_READ(inode, i_sb);

	switch (BPF_CORE_READ(super, s_magic)) {
	case TMPFS_MAGIC:
	case RAMFS_MAGIC:
	case HUGETLBFS_MAGIC:
		if (BPF_CORE_READ(inode, i_uid.val) || BPF_CORE_READ(inode, i_mode) & WRITABLE)
			return true;
		break;
	case FUSE_SUPER_MAGIC:
		return true;
	}
	/* The initial user namespace has level 0. */
	return BPF_CORE_READ(super, s_user_ns, level) > 0;
}

/* Returns whether the task has an executable. */
static __always_inline bool program_file_of(struct task_struct *task, struct guard_program *program)
{
	struct inode *inode = BPF_CORE_READ(task, mm, exe_file, f_inode);

	if (!inode)
		return false;
	program->inode = BPF_CORE_READ(inode, i_ino);
	program->device = BPF_CORE_READ(inode, i_sb, s_dev);
	program->size = BPF_CORE_READ(inode, i_size);
	program->ctime_ns = inode_ctime_ns(inode);
	if (changes_unseen(inode))
		program->execution = (u64)BPF_CORE_READ(task, mm);
	return program->inode;
}

#endif
