/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Pre-call holds. When the call began, the guard sent a SIGSTOP. Before the call takes effect, the
 * kernel calls the security modules and, for some calls on sockets, the programs of control groups.
 * There the call is undone: the kernel stops the process, and restarts the call when the process
 * continues. crates/kernel/src/precall.rs decides what is loaded, and which hooks serve which
 * calls.
 */
#ifndef TOLLGATE_GUARD_PRECALL_BPF_H
#define TOLLGATE_GUARD_PRECALL_BPF_H

#include "guard/signals.bpf.h"
#include "guard/state.bpf.h"

/* include/uapi/asm-generic/errno-base.h */
#define EPERM 1

/*
 * The result of a hook that serves these calls. Unlike at a call's entry, the thread is not found
 * by this_cpu(): it may have slept since, and not every switch is reported.
 */
static __always_inline int undo_call(u32 calls)
{
	u32 slot = slot_of(bpf_get_current_task_btf()), before;
	struct thread_state *thread;

	if (likely(!slot))
		return 0;
	thread = thread_at(slot);
	before = thread->guard.precall;
	if (likely(!(before & calls)) || !has(thread, GUARD) || is_retired())
		return 0;
	if (before & PRECALL_DENY) {
		thread->guard.precall = 0;
		return -EPERM;
	}
	/* The thread was released meanwhile. */
	if (!thread->guard.held && !(before & PRECALL_UNDONE))
		return 0;
	/*
	 * A call is undone only once, because the same hook may be passed again in other work at
	 * the call's end (io_uring), which must not be undone. But a kill() of several processes
	 * passes its hook once for each of them, and is undone each time.
	 */
	thread->guard.precall = calls == PRECALL_KILL ? PRECALL_KILL | PRECALL_UNDONE : 0;
	thread->guard.restart |= GUARD_RESTART_EXPECTED;
	return -ERESTARTNOINTR;
}

#define LSM_HOOK(hook, calls)                                                                      \
	SEC("?lsm/" #hook) int gate_##hook(void *ctx)                                              \
	{                                                                                          \
		return undo_call(calls);                                                           \
	}

LSM_HOOK(bprm_creds_for_exec, PRECALL_EXECVE | PRECALL_DENY)
/* This hook is for a new file, because file_open comes only after the file was created. */
LSM_HOOK(inode_create, PRECALL_OPEN | PRECALL_MAKE)
LSM_HOOK(file_open, PRECALL_OPEN)
LSM_HOOK(inode_mkdir, PRECALL_MAKE)
LSM_HOOK(inode_mknod, PRECALL_MAKE)
LSM_HOOK(inode_link, PRECALL_MAKE)
LSM_HOOK(inode_symlink, PRECALL_MAKE)
LSM_HOOK(inode_unlink, PRECALL_REMOVE)
LSM_HOOK(inode_rmdir, PRECALL_REMOVE)
LSM_HOOK(inode_rename, PRECALL_REMOVE)
LSM_HOOK(socket_connect, PRECALL_CONNECT)
LSM_HOOK(socket_bind, PRECALL_BIND)
LSM_HOOK(socket_create, PRECALL_SOCKET)
LSM_HOOK(socket_sendmsg, PRECALL_SEND)
LSM_HOOK(mmap_file, PRECALL_MMAP)
LSM_HOOK(file_mprotect, PRECALL_MPROTECT)
LSM_HOOK(ptrace_access_check, PRECALL_PTRACE)
LSM_HOOK(ptrace_traceme, PRECALL_PTRACE)
LSM_HOOK(task_kill, PRECALL_KILL)
LSM_HOOK(task_fix_setuid, PRECALL_SETUID)
LSM_HOOK(task_fix_setgid, PRECALL_SETGID)
LSM_HOOK(task_fix_setgroups, PRECALL_SETGROUPS)
LSM_HOOK(bpf, PRECALL_BPF)

#define CGROUP_HOOK(hook, calls)                                                                   \
	SEC("?cgroup/" #hook) int gate_##hook(void *ctx)                                           \
	{                                                                                          \
		int error = undo_call(calls);                                                      \
                                                                                                   \
		if (error)                                                                         \
			bpf_set_retval(error);                                                     \
		return !error;                                                                     \
	}

CGROUP_HOOK(connect4, PRECALL_CONNECT)
CGROUP_HOOK(connect6, PRECALL_CONNECT)
CGROUP_HOOK(bind4, PRECALL_BIND)
CGROUP_HOOK(bind6, PRECALL_BIND)
CGROUP_HOOK(sendmsg4, PRECALL_SEND)
CGROUP_HOOK(sendmsg6, PRECALL_SEND)
CGROUP_HOOK(sock_create, PRECALL_SOCKET)

#endif
