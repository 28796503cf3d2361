/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Which processes are exempt: observed, but never held. Any user can execute an exempt file and add
 * code to it (LD_PRELOAD, ptrace), so the exemption depends on the executor as well.
 */
#ifndef TOLLGATE_GUARD_EXEMPTION_BPF_H
#define TOLLGATE_GUARD_EXEMPTION_BPF_H

#include "gate/identity.bpf.h"
#include "guard/profiles.bpf.h"
#include "guard/state.bpf.h"
#include "wire/guard.h"

HASH_MAP(guard_exempt_files, GUARD_EXEMPT_FILES, struct guard_exempt_file, u32);

/* GUARD_EXECUTOR_NONE if the user may be one of several. */
static __always_inline u32 executor_of(struct task_struct *task)
{
	u32 user = BPF_CORE_READ(task, cred, uid.val);

	if (user != BPF_CORE_READ(task, cred, euid.val) ||
	    user != BPF_CORE_READ(task, cred, suid.val))
		return GUARD_EXECUTOR_NONE;
	return GUARD_EXECUTOR(user);
}

/* Whether the task is the first one of its PID namespace, which gets the children of others. */
static __always_inline bool is_init(struct task_struct *task)
{
	return visible_pid(task, BPF_CORE_READ(task, thread_pid, level)) == 1;
}

/*
 * The executor of a program that runs already. The kernel does not keep it. The process of root
 * that executed the program may have created this one and given up its rights: sshd does so for
 * each user. Then the parent runs the same program as root.
 */
static __always_inline u32 executor_of_running(struct task_struct *task)
{
	struct task_struct *parent = BPF_CORE_READ(task, group_leader, real_parent);
	struct inode *program = BPF_CORE_READ(task, mm, exe_file, f_inode);

	if (program && program == BPF_CORE_READ(parent, mm, exe_file, f_inode) &&
	    executor_of(parent) == GUARD_EXECUTOR_ROOT && !is_init(parent))
		return GUARD_EXECUTOR_ROOT;
	return executor_of(task);
}

/* The task's session (setsid), as a number of the initial PID namespace. */
static __always_inline u32 sid_of(struct task_struct *task)
{
	return BPF_CORE_READ(task, signal, pids[PIDTYPE_SID], numbers[0].nr);
}

/*
 * GUARD_EXEMPT if a thread is exempt, GUARD_UNIDENTIFIED if that is not known yet, else
 * GUARD_UNRESTRAINED. This is a global function, so that the verifier checks it once.
 */
__noinline u32 exemption_of(u32 slot)
{
	struct thread_state *thread = thread_at(slot);
	struct task_struct *task = (void *)thread->task;
	struct session *session = session_at(thread->guard.session);
	struct guard_exempt_file file = {
		.session = thread->guard.session,
		.executor = guard_executors[slot & (THREADS - 1)],
	};
	struct guard_profile *profile;
	struct inode *program;

	if (!session)
		return GUARD_UNRESTRAINED;
	if (sid_of(task) == session->guard.exempt_sid)
		return GUARD_EXEMPT;
	if (!session->guard.has_exempt_files || file.executor == GUARD_EXECUTOR_NONE)
		return GUARD_UNRESTRAINED;
	program = BPF_CORE_READ(task, mm, exe_file, f_inode);
	if (!program)
		return GUARD_UNRESTRAINED;
	file.inode = BPF_CORE_READ(program, i_ino);
	file.device = BPF_CORE_READ(program, i_sb, s_dev);
	if (bpf_map_lookup_elem(&guard_exempt_files, &file))
		return GUARD_EXEMPT;
	/*
	 * A new file at an exempt path, as after an update. If others than root were not held
	 * meanwhile, they could make one call for each new file that they execute.
	 */
	profile = profile_at(thread->guard.profile_slot);
	return file.executor == GUARD_EXECUTOR_ROOT && profile && !profile->is_identified ?
		       GUARD_UNIDENTIFIED :
		       GUARD_UNRESTRAINED;
}

#endif
