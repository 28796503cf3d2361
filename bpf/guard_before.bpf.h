/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Holds before a call takes effect. Between the call's entry, where the guard has sent a SIGSTOP, and its effect the
 * kernel asks the security modules and, for some calls on sockets, the programs of control groups. There the call is
 * undone: the kernel stops the process and makes the call again when it goes on. Loaded only where
 * crates/kernel/src/before.rs says so; it also says which calls are whose.
 */
#ifndef TOLLGATE_GUARD_BEFORE_BPF_H
#define TOLLGATE_GUARD_BEFORE_BPF_H

#include "guard.bpf.h"

/* include/uapi/asm-generic/errno-base.h */
#define EPERM 1

/*
 * What a hook returns that serves these calls. Not by this_cpu(), as the gate does at a call's entry: the thread may
 * have slept since, and not every switch is reported.
 */
static __always_inline int undo(u32 calls)
{
	u32 slot = slot_of(bpf_get_current_task_btf()), before;
	struct thread_state *thread;

	if (likely(!slot))
		return 0;
	thread = thread_at(slot);
	before = thread->before;
	if (likely(!(before & calls)) || !has(thread, GUARD) || retired())
		return 0;
	if (before & BEFORE_REFUSED) {
		thread->before = 0;
		return -EPERM;
	}
	/* It was let go since. */
	if (!thread->held && !(before & BEFORE_UNDONE))
		return 0;
	/* Once a call, as other work may be done at its end; but a signal to several is undone for each. */
	thread->before = calls == BEFORE_KILL ? BEFORE_KILL | BEFORE_UNDONE : 0;
	thread->again = 1;
	return -ERESTARTNOINTR;
}

#define LSM_HOOK(hook, calls)                                                                                      \
	SEC("?lsm/" #hook) int gate_##hook(void *ctx)                                                              \
	{                                                                                                          \
		return undo(calls);                                                                                \
	}

LSM_HOOK(bprm_creds_for_exec, BEFORE_EXECVE | BEFORE_REFUSED)
/* The first of a new file, which file_open would find made already. */
LSM_HOOK(inode_create, BEFORE_OPEN | BEFORE_MAKE)
LSM_HOOK(file_open, BEFORE_OPEN)
LSM_HOOK(inode_mkdir, BEFORE_MAKE)
LSM_HOOK(inode_mknod, BEFORE_MAKE)
LSM_HOOK(inode_link, BEFORE_MAKE)
LSM_HOOK(inode_symlink, BEFORE_MAKE)
LSM_HOOK(inode_unlink, BEFORE_REMOVE)
LSM_HOOK(inode_rmdir, BEFORE_REMOVE)
LSM_HOOK(inode_rename, BEFORE_REMOVE)
LSM_HOOK(socket_connect, BEFORE_CONNECT)
LSM_HOOK(socket_bind, BEFORE_BIND)
LSM_HOOK(socket_create, BEFORE_SOCKET)
LSM_HOOK(socket_sendmsg, BEFORE_SEND)
LSM_HOOK(mmap_file, BEFORE_MMAP)
LSM_HOOK(file_mprotect, BEFORE_MPROTECT)
LSM_HOOK(ptrace_access_check, BEFORE_PTRACE)
LSM_HOOK(ptrace_traceme, BEFORE_PTRACE)
LSM_HOOK(task_kill, BEFORE_KILL)
LSM_HOOK(task_fix_setuid, BEFORE_SETUID)
LSM_HOOK(task_fix_setgid, BEFORE_SETGID)
LSM_HOOK(task_fix_setgroups, BEFORE_SETGROUPS)
LSM_HOOK(bpf, BEFORE_BPF)

#define CGROUP_HOOK(hook, calls)                                                                                   \
	SEC("?cgroup/" #hook) int gate_##hook(void *ctx)                                                           \
	{                                                                                                          \
		int error = undo(calls);                                                                           \
                                                                                                                   \
		if (error)                                                                                         \
			bpf_set_retval(error);                                                                     \
		return !error;                                                                                     \
	}

CGROUP_HOOK(connect4, BEFORE_CONNECT)
CGROUP_HOOK(connect6, BEFORE_CONNECT)
CGROUP_HOOK(bind4, BEFORE_BIND)
CGROUP_HOOK(bind6, BEFORE_BIND)
CGROUP_HOOK(sendmsg4, BEFORE_SEND)
CGROUP_HOOK(sendmsg6, BEFORE_SEND)
CGROUP_HOOK(sock_create, BEFORE_SOCKET)

#endif
