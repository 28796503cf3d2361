/* SPDX-License-Identifier: GPL-2.0 */
/* The path of an open file. Tracepoints may not call bpf_d_path(), so the names are walked. */
#ifndef TOLLGATE_LIB_PATH_BPF_H
#define TOLLGATE_LIB_PATH_BPF_H

#include "lib/compat.bpf.h"
#include "wire/path.h"

/* The maximum number of steps up the tree, from name to name and across mount points. */
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

/* The walk from a file up to the task's root, which may be a folder that chroot made the root. */
struct path_walk {
	struct dentry *dentry;
	struct mount *mount;
	struct dentry *root;
	struct mount *root_mount;
	/* Where the last step began. */
	struct dentry *below;
	/* For append_path_part(): receives the names. */
	struct fd_path *path;
	u32 is_whole;
};

enum path_component {
	/* From a mounted file system to its mount point. */
	PATH_MOUNT,
	/* From a file or folder to its parent. */
	PATH_NAME,
	/* None: the root is reached. */
	PATH_ROOT,
	/* None: no path leads here. The file is in memory only, or was moved out of its mount. */
	PATH_DETACHED,
};

static __always_inline void path_begin(struct path_walk *walk, struct task_struct *task,
				       struct dentry *dentry, struct mount *mount)
{
	walk->dentry = dentry;
	walk->mount = mount;
	walk->root = BPF_CORE_READ(task, fs, root.dentry);
	walk->root_mount = mount_of(BPF_CORE_READ(task, fs, root.mnt));
}

static __always_inline enum path_component path_next(struct path_walk *walk)
{
	struct dentry *dentry = walk->dentry, *parent;
	struct mount *mount = walk->mount, *outer;

	walk->below = dentry;
	if (dentry == walk->root && mount == walk->root_mount)
		return PATH_ROOT;
	if (dentry == READ_FIELD(struct mount, mount, mnt.mnt_root)) {
		outer = READ_FIELD(struct mount, mount, mnt_parent);
		if (outer == mount)
			return PATH_ROOT;
		walk->dentry = READ_FIELD(struct mount, mount, mnt_mountpoint);
		walk->mount = outer;
		return PATH_MOUNT;
	}
	parent = READ_FIELD(struct dentry, dentry, d_parent);
	if (parent == dentry)
		return PATH_DETACHED;
	walk->dentry = parent;
	return PATH_NAME;
}

static long append_path_part(u32 i, struct path_walk *walk)
{
	struct fd_path *path = walk->path;
	enum path_component step = path_next(walk);
	u32 part = path->parts;

	if (step == PATH_MOUNT)
		return 0;
	if (step == PATH_ROOT) {
		path->complete = 1;
		return 1;
	}
	if (part >= PATH_PARTS)
		return 1;
	bpf_probe_read_kernel_str(path->part[part], PATH_PART_LEN,
				  READ_FIELD(struct dentry, walk->below, d_name.name));
	path->parts = part + 1;
	path->complete = step == PATH_DETACHED;
	/*
	 * After PATH_PARTS names, the walk ends even if the next step would reach the root.
	 * crates/kernel/src/identity_name.rs does the same.
	 */
	return step == PATH_DETACHED || part + 1 == PATH_PARTS;
}

/*
 * Uses bpf_loop(), because the verifier follows a plain loop iteration by iteration. Plain loops
 * took most of the time to load a gate with a guard (docs/decisions/0001-gate.md).
 */
static __always_inline void path_of_dentry(struct fd_path *path, struct task_struct *task,
					   struct dentry *dentry, struct mount *mount)
{
	struct path_walk walk = { .path = path };

	path_begin(&walk, task, dentry, mount);
	path->parts = 0;
	bpf_loop(PATH_STEPS, append_path_part, &walk, 0);
}

static __always_inline bool path_of_file(struct fd_path *path, struct task_struct *task,
					 struct file *file)
{
	path->complete = 0;
	path->unused = 0;
	if (!file)
		return false;
	path->mode = BPF_CORE_READ(file, f_inode, i_mode);
	path->inode = BPF_CORE_READ(file, f_inode, i_ino);
	path_of_dentry(path, task, BPF_CORE_READ(file, f_path.dentry),
		       mount_of(BPF_CORE_READ(file, f_path.mnt)));
	return true;
}

static __always_inline bool path_of_fd(struct fd_path *path, struct task_struct *task, u32 fd)
{
	return path_of_file(path, task, file_of_fd(task, fd));
}

#endif
