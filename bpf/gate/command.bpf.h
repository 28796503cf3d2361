/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A command is identified by the name of its program's file. The kernel keeps only 15 bytes of it
 * in comm. If comm is full, the rest is read from the path of execve, or from the executable.
 */
#ifndef TOLLGATE_GATE_COMMAND_BPF_H
#define TOLLGATE_GATE_COMMAND_BPF_H

#include "gate/names.bpf.h"

/* include/uapi/linux/limits.h, PATH_MAX; a power of two. */
#define EXEC_PATH_LEN 4096

/* "exe" and its NUL. */
#define EXE 0x657865

struct exec_path {
	char text[EXEC_PATH_LEN];
};
PERCPU_MAP(exec_path_scratch, 1, struct exec_path);

/* Where the last name of a path in kernel memory begins. This is a global function for its loop. */
__noinline u64 last_name_of(u64 path)
{
	u32 first = 0, begin, at, i;
	struct exec_path *scratch = bpf_map_lookup_elem(&exec_path_scratch, &first);
	long length;

	if (!scratch)
		return path;
	length = bpf_probe_read_kernel_str(scratch->text, EXEC_PATH_LEN, (void *)path);
	if (length <= 0)
		return path;
	begin = at = length > COMMAND_LEN ? length - COMMAND_LEN : 0;
	for (i = 0; i < COMMAND_LEN && begin + i < length; i++) {
		if (scratch->text[(begin + i) & (EXEC_PATH_LEN - 1)] == '/')
			at = begin + i + 1;
	}
	return path + at;
}

/* Whether comm has no room for more, so that the name may be longer. */
static __always_inline bool is_full(const char *comm)
{
	return comm[COMM_LEN - 2];
}

/* The name of the file that a task executes, in kernel memory. */
static __always_inline const void *executable_name(struct task_struct *task)
{
	return BPF_CORE_READ(task, mm, exe_file, f_path.dentry, d_name.name);
}

/*
 * Whether comm is the "exe" of a program that has executed /proc/self/exe. Its name is that of the
 * file.
 */
static __always_inline bool is_own_executable(const char *comm)
{
	return *(u32 *)comm == EXE;
}

/*
 * The name of a command whose comm is full, in kernel memory. `path`: the path of execve, or 0 if
 * the command runs already. NULL: only comm is known.
 */
static __always_inline const void *long_command(struct task_struct *task, const char *comm,
						u64 path)
{
	char beginning[COMM_LEN] = {};
	const void *name;

	if (path)
		return (void *)last_name_of(path);
	name = executable_name(task);
	bpf_probe_read_kernel_str(beginning, COMM_LEN, name);
	/* A script's executable is its interpreter, and a program can change its comm. */
	return ((u64 *)beginning)[0] == ((u64 *)comm)[0] &&
			       ((u64 *)beginning)[1] == ((u64 *)comm)[1] ?
		       name :
		       NULL;
}

#endif
