/* SPDX-License-Identifier: GPL-2.0 */
/* The path of an open file. bpf_d_path() is refused to tracepoints, so the names are walked. */
#ifndef TOLLGATE_PATH_BPF_H
#define TOLLGATE_PATH_BPF_H

#include "state.bpf.h"

/* Steps up the tree: names, and mount points to cross. */
#define PATH_STEPS (PATH_PARTS + 8)

static __always_inline struct file *file_of_fd(struct task_struct *task, u32 fd)
{
	struct fdtable *table = task->files->fdt;

	return fd < table->max_fds ? (void *)READ_WORD(table->fd + fd) : NULL;
}

static __always_inline struct mount *mount_of(struct vfsmount *vfsmount)
{
	return (void *)vfsmount - bpf_core_field_offset(struct mount, mnt);
}

static __always_inline void path_of_place(struct fd_path *path, struct task_struct *task, struct dentry *dentry,
					  struct mount *mount)
{
	struct dentry *parent, *root;
	struct mount *root_mount;
	u32 part = 0;

	/* As the task itself would name it: its root may be a folder of ours (chroot). */
	root = BPF_CORE_READ(task, fs, root.dentry);
	root_mount = mount_of(BPF_CORE_READ(task, fs, root.mnt));
	for (u32 i = 0; i < PATH_STEPS && part < PATH_PARTS; i++) {
		if (dentry == root && mount == root_mount) {
			path->complete = 1;
			break;
		}
		if (dentry == BPF_CORE_READ(mount, mnt.mnt_root)) {
			struct mount *outer = BPF_CORE_READ(mount, mnt_parent);

			if (outer == mount) {
				path->complete = 1;
				break;
			}
			dentry = BPF_CORE_READ(mount, mnt_mountpoint);
			mount = outer;
			continue;
		}
		bpf_probe_read_kernel_str(path->part[part], PATH_PART_LEN, BPF_CORE_READ(dentry, d_name.name));
		part++;
		parent = BPF_CORE_READ(dentry, d_parent);
		if (parent == dentry) {
			path->complete = 1;
			break;
		}
		dentry = parent;
	}
	path->parts = part;
}

static __always_inline bool path_of_file(struct fd_path *path, struct task_struct *task, struct file *file)
{
	path->complete = 0;
	path->unused = 0;
	if (!file)
		return false;
	path->mode = BPF_CORE_READ(file, f_inode, i_mode);
	path->inode = BPF_CORE_READ(file, f_inode, i_ino);
	path_of_place(path, task, BPF_CORE_READ(file, f_path.dentry), mount_of(BPF_CORE_READ(file, f_path.mnt)));
	return true;
}

static __always_inline bool path_of_fd(struct fd_path *path, struct task_struct *task, u32 fd)
{
	return path_of_file(path, task, file_of_fd(task, fd));
}

#endif
