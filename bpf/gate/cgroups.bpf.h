/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Sessions of control groups: a task that enters one of them becomes a task of the session, before
 * it makes its next call. A task enters by a move, or is created there by clone3 with
 * CLONE_INTO_CGROUP.
 */
#ifndef TOLLGATE_GATE_CGROUPS_BPF_H
#define TOLLGATE_GATE_CGROUPS_BPF_H

#include "gate/tasks.bpf.h"

/*
 * The sessions of each followed control group, as bits. User space adds the groups that exist. A
 * group that is created in a followed one is added here, so no search for ancestors is needed.
 */
HASH_MAP(followed_cgroups, FOLLOWED_CGROUPS, struct cgroup_key, u64);

/* The sessions that wait for a control group of this name. */
HASH_MAP(awaited_cgroups, AWAITED_CGROUPS, struct awaited_cgroup, u64);

PERCPU_MAP(awaited_scratch, 1, struct awaited_cgroup);

_Static_assert(SESSIONS == 64, "each session has a bit");

static __always_inline struct cgroup_key cgroup_key(struct cgroup *cgroup)
{
	struct cgroup_key key = {
		.id = BPF_CORE_READ(cgroup, kn, id),
		.hierarchy = BPF_CORE_READ(cgroup, root, hierarchy_id),
	};

	return key;
}

/* Not inlined: see shared_row(). */
static __noinline u64 sessions_following(struct cgroup *cgroup)
{
	struct cgroup_key key = cgroup_key(cgroup);
	u64 *sessions = bpf_map_lookup_elem(&followed_cgroups, &key);

	return sessions ? *sessions : 0;
}

/* Has user space attach a process, with all its threads, at once. */
static __always_inline void request_attachment(u32 index, struct session *session,
					       struct task_struct *task)
{
	struct cgroup_entered *record =
		reserve_record(index, sizeof(*record), LOSS_CGROUP_NOTICES);

	if (!record)
		return;
	record->type = RECORD_CGROUP_ENTERED;
	record->session = index;
	record->tgid = visible_pid(BPF_CORE_READ(task, group_leader), session->pid_level);
	record->unused = 0;
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
}

struct entering {
	struct task_struct *task;
	u64 sessions;
	/* Other threads of its process enter as well. */
	bool has_others;
	/* It runs, or may run on another processor, which does not see that it is gated now. */
	bool is_current, is_elsewhere;
};

static long enter_session(u32 index, struct entering *at)
{
	struct task_struct *task = at->task;
	struct session *session;
	u32 slot;

	if (!(at->sessions >> (index & (SESSIONS - 1)) & 1))
		return 0;
	session = session_at(index);
	if (!session || !session->used || session->owner_tgid == task->tgid)
		return 0;
	slot = slot_of(task);
	if (slot && counts_in(thread_at(slot), index))
		return 0;
	/*
	 * The kernel side can only find the identity of the current process. It is that of a new
	 * child, too.
	 */
	if (!(config.enabled & GUARD_SCOPED) || !at->is_elsewhere)
		attach_task(task, index, session, IDENTITY_CURRENT);
	if (at->has_others || at->is_elsewhere)
		request_attachment(index, session, task);
	return 0;
}

static __always_inline void enter_sessions(struct entering *at)
{
	u32 slot;

	if (at->task->flags & (PF_KTHREAD | PF_EXITING))
		return;
	bpf_loop(SESSIONS, enter_session, at, 0);
	slot = slot_of(at->task);
	if (at->is_current && slot)
		set_current(this_cpu(), at->task, slot);
}

/* A task was moved to this control group; if `is_process`, with all threads of its process. */
static __always_inline void cgroup_entered(struct cgroup *cgroup, struct task_struct *task,
					   bool is_process)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct entering at = {
		.task = task,
		.sessions = sessions_following(cgroup),
		.has_others = is_process && BPF_CORE_READ(task, signal, nr_threads) > 1,
		.is_current = current->pid == task->pid,
	};

	at.is_elsewhere = !at.is_current;
	if (at.sessions)
		enter_sessions(&at);
}

/*
 * A new child is in its parent's control groups, and the parent is in the session of these, unless
 * the child was created in another group of cgroup v2. The parent runs here.
 */
static __always_inline void cgroup_new_task(struct task_struct *child)
{
	struct task_struct *parent = bpf_get_current_task_btf();
	struct entering at = { .task = child };

	if (likely(child->cgroups == parent->cgroups))
		return;
	at.sessions = sessions_following(BPF_CORE_READ(child, cgroups, dfl_cgrp));
	if (at.sessions)
		enter_sessions(&at);
}

/* The sessions that wait for a control group with the name in `awaited`. */
static __always_inline u64 sessions_awaiting(struct awaited_cgroup *awaited, u32 hierarchy)
{
	u64 *sessions;

	awaited->hierarchy = hierarchy;
	sessions = bpf_map_lookup_elem(&awaited_cgroups, awaited);
	return sessions ? *sessions : 0;
}

static __always_inline void cgroup_made(struct cgroup *cgroup, const char *path)
{
	struct cgroup_key key = cgroup_key(cgroup);
	struct cgroup *parent = BPF_CORE_READ(cgroup, self.parent, cgroup);
	u64 sessions = parent ? sessions_following(parent) : 0;
	struct awaited_cgroup *awaited;
	u32 first = 0;

	awaited = bpf_map_lookup_elem(&awaited_scratch, &first);
	if (!awaited)
		return;
	__builtin_memset(awaited, 0, sizeof(*awaited));
	bpf_probe_read_kernel_str(awaited->path, sizeof(awaited->path), path);
	sessions |= sessions_awaiting(awaited, key.hierarchy);
	sessions |= sessions_awaiting(awaited, ANY_HIERARCHY);
	__builtin_memset(awaited, 0, sizeof(*awaited));
	bpf_probe_read_kernel_str(awaited->path, sizeof(awaited->path),
				  BPF_CORE_READ(cgroup, kn, name));
	sessions |= sessions_awaiting(awaited, ANY_PARENT);
	if (sessions)
		bpf_map_update_elem(&followed_cgroups, &key, &sessions, BPF_ANY);
}

static __always_inline void cgroup_removed(struct cgroup *cgroup)
{
	struct cgroup_key key = cgroup_key(cgroup);

	bpf_map_delete_elem(&followed_cgroups, &key);
}

#endif
