/* SPDX-License-Identifier: GPL-2.0 */
/* How tasks come under the gate and leave it: fork, exec, exit, adoption; and the groups they count in. */
#ifndef TOLLGATE_TASKS_BPF_H
#define TOLLGATE_TASKS_BPF_H

#include "state.bpf.h"
#include "calls.bpf.h"
#include "guard.bpf.h"
#include "service.bpf.h"

static __always_inline void name_group(struct group *group, struct task_struct *task, u32 level)
{
	group->pid = visible_pid(task, level);
	group->tgid = visible_pid(BPF_CORE_READ(task, group_leader), level);
	bpf_probe_read_kernel(group->comm, sizeof(group->comm), &task->comm);
}

/* A new group of a session for this task; 0: none is left. */
static __always_inline u32 take_row(u32 session_index, struct session *session, struct task_struct *task, u32 parent)
{
	u32 index = take_number(&header.next_group, ROWS, free_groups);
	struct group *group = group_at(index);

	if (!index || !group)
		return 0;
	group->session = session_index;
	group->parent = parent;
	group->threads = 0;
	name_group(group, task, session->pid_level);
	group->state = GROUP_LIVE;
	return index;
}

/* What counts where no row is left. */
static __always_inline u32 row_or_base(u32 row, u32 session_index, struct session *session)
{
	if (row)
		return row;
	lose(session_index, LOSS_GROUPS_FULL);
	return session->base_group;
}

static __always_inline void group_add_thread(u32 index, s32 change)
{
	struct group *group = group_at(index);

	if (group)
		__sync_fetch_and_add(&group->threads, change);
}

/* The last thread of a process's or thread's own group is gone: its figures may be read and the group given back. */
static __always_inline void group_drop_thread(u32 index, struct session *session, u32 tgid)
{
	struct group *group = group_at(index);
	struct row_key key = {};
	struct group_done *done;

	if (!group || __sync_fetch_and_add(&group->threads, -1) != 1)
		return;
	if (index == session->base_group || session->per == PER_COMMAND)
		return;
	key.session = group->session;
	key.parent = group->parent;
	if (session->per == PER_PROCESS)
		__builtin_memcpy(key.name, &tgid, sizeof(tgid));
	bpf_map_delete_elem(&shared_rows, &key);
	done = reserve_record(group->session, sizeof(*done), LOSS_GROUP_NOTICES);
	if (!done)
		return;
	done->type = RECORD_GROUP_DONE;
	done->session = group->session;
	done->group = index;
	bpf_ringbuf_submit(done, 0);
}

static __always_inline u32 parent_of(u32 index)
{
	struct group *group = group_at(index);

	return group ? group->parent : 0;
}

/* Whether a row found by this key is still what the key says: rows of ended processes are given back. */
static __always_inline bool row_is_live(u32 index, struct row_key *key, struct session *session,
					struct task_struct *task)
{
	struct group *group = group_at(index);

	if (!group || group->session != key->session || group->parent != key->parent)
		return false;
	if (session->per == PER_COMMAND)
		return true;
	if (session->per == PER_PROCESS && group->tgid != visible_pid(task->group_leader, session->pid_level))
		return false;
	return group->threads > 0;
}

/* The row that this task shares with others of its process or command, or with all; 0: none is left. */
static __always_inline u32 shared_row(u32 session_index, struct session *session, struct task_struct *task, u32 parent)
{
	struct row_key key = { .session = session_index, .parent = parent };
	u32 tgid = task->tgid;
	u32 *known, index;

	if (session->per == PER_THREAD)
		return take_row(session_index, session, task, parent);
	if (session->per == PER_COMMAND)
		bpf_probe_read_kernel(key.name, sizeof(key.name), &task->comm);
	if (session->per == PER_PROCESS)
		__builtin_memcpy(key.name, &tgid, sizeof(tgid));
	known = bpf_map_lookup_elem(&shared_rows, &key);
	if (known && row_is_live(*known, &key, session, task))
		return *known;
	index = take_row(session_index, session, task, parent);
	if (index)
		bpf_map_update_elem(&shared_rows, &key, &index, BPF_ANY);
	return index;
}

/* A thread that was let go counts nowhere, and its group may be another session's by now. */
static __always_inline void leave_group(struct thread_state *thread)
{
	struct session *session = session_at(thread->session);

	if (session && thread->mask & ~SERVICE)
		group_drop_thread(thread->group, session, thread->tgid);
}

/* The thread is a bystander again, before its slot is anybody else's. Once: by its end, or by who took it in. */
static __always_inline void forget_thread(struct thread_state *thread, u32 slot)
{
	u64 address = thread->task;

	if (!address || __sync_val_compare_and_swap(&thread->task, address, 0) != address)
		return;
	leave_group(thread);
	thread->mask = 0;
	leave_slot(thread->pid, address, slot);
	bpf_map_push_elem(&free_threads, &slot, BPF_ANY);
}

static __always_inline void task_exited(struct thread_state *thread, struct task_struct *task, u32 slot)
{
	if (has(thread, GUARD))
		guard_flush(thread);
	if (has(thread, SERVICE)) {
		service_exit(thread, task);
		leave_group(thread);
		/* Of no session any more, but for the rest of its end. */
		thread->mask = SERVICE;
		thread->session = 0;
		thread->group = 0;
	} else {
		forget_thread(thread, slot);
	}
	this_cpu()->slot = 0;
}

/* The kernel lets it go: nothing is counted of it any more. */
static __always_inline void task_freed(struct thread_state *thread, struct task_struct *task, u32 slot)
{
	if (has(thread, SERVICE)) {
		/* What nobody has waited for yet is not blocked. */
		member_of(thread)->since_ns = bpf_ktime_get_ns();
		service_charge(thread, task, member_of(thread)->since_ns, false);
	}
	forget_thread(thread, slot);
}

/* What a session that takes a thread does not ask for, but the one does that had it, or has its parent: that counts on. */
static __always_inline u32 counted_before(struct session *session, struct thread_state *before)
{
	if (!before)
		return 0;
	return before->mask & (session->mask & LENS ? LENS | LENS_SITES : LENS | LENS_SITES | LENS_SAMPLE);
}

/* Whether a session that takes a thread leaves it the plugins that it has. As `give_plugins` in crates/kernel/src/session.rs. */
static __always_inline bool keeps_plugins(struct session *session, struct thread_state *before)
{
	struct session *holder;

	if (!before || !before->plugin_session)
		return false;
	if (!session->own_plugins)
		return true;
	holder = session_at(before->plugin_session);
	return holder && holder->own_plugins && holder->number > session->number;
}

/*
 * What applies to a thread that a session takes. Who was guarded stays so: one that runs already by the same guard, which
 * may hold it, a new one by the new session's guard or by its parent's.
 */
static __always_inline void guard_take(struct thread_state *thread, struct task_struct *task, u32 session_index,
				       struct session *session, struct thread_state *before, u64 scope)
{
	bool was_guarded = false, stays = false;
	/* Services are everybody's: who has one keeps it in whatever session. */
	u32 mask = (session->mask & ~SERVICE) | (thread->mask & SERVICE) | counted_before(session, before);

	/* Each session's list goes on to everybody's. */
	thread->plugin_session = keeps_plugins(session, before) ? before->plugin_session : session_index;
	if (!(config.enabled & GUARD)) {
		thread->mask = mask;
		return;
	}
	if (before) {
		was_guarded = has(before, GUARD);
		stays = was_guarded && (before == thread || before->guard_session == session_index);
	}
	if ((mask & GUARD) && !stays) {
		thread->guard_session = session_index;
		/* Before its first execve it is still Tollgate's own copy. */
		if (!thread->until_exec)
			guard_begin(thread, scope);
	} else if (was_guarded) {
		mask |= GUARD;
		/* 6.1's verifier no longer knows by now that there is one. */
		barrier_var(before);
		if (before && before != thread)
			guard_inherit(thread, before);
	}
	thread->mask = mask;
}

/* Takes one in that runs already, if it has no service yet. */
static __always_inline void service_take(struct thread_state *thread, struct task_struct *task, bool is_member)
{
	if (!(config.enabled & SERVICE) || !READ_ONCE(header.services))
		return;
	if (!is_member)
		service_adopt(thread, task);
	thread->mask |= SERVICE;
}

/* Makes `task` a gated thread of the session; `parent` is the gated thread that made it, if one did. */
static __always_inline void gate_task(struct task_struct *task, u32 session_index, struct session *session, u32 group,
				      u32 until_exec, struct thread_state *parent, u64 scope)
{
	struct thread_state *thread;
	u32 slot;

	if (task->flags & PF_KTHREAD)
		return;
	slot = take_number(&header.next_thread, THREADS, free_threads);
	if (!slot) {
		lose(session_index, LOSS_THREADS_FULL);
		return;
	}
	thread = thread_at(slot);
	__builtin_memset(thread, 0, sizeof(*thread));
	thread->task = (u64)task;
	thread->slot = slot;
	thread->pid = task->pid;
	thread->tgid = task->tgid;
	thread->visible_pid = visible_pid(task, session->pid_level);
	thread->group = group;
	thread->session = session_index;
	thread->until_exec = until_exec;
	guard_take(thread, task, session_index, session, parent, scope);
	if (scope != SCOPE_HERE) {
		service_take(thread, task, false);
	} else if ((config.enabled & SERVICE) && READ_ONCE(header.services)) {
		service_born(slot, parent && has(parent, SERVICE) ? parent->slot : 0);
		thread->mask |= SERVICE;
	}
	group_add_thread(group, 1);
	if (!enter_slot(task, slot)) {
		lose(session_index, LOSS_THREADS_FULL);
		forget_thread(thread, slot);
	}
}

/* The group of a session's first thread; `parent` is the group it counts in as well, or 0. */
static __always_inline u32 first_group(u32 session_index, struct session *session, struct task_struct *task,
				       u32 parent)
{
	struct group *base = group_at(session->base_group);

	if (base && parent)
		base->parent = parent;
	if (session->per == PER_ALL)
		return session->base_group;
	return row_or_base(shared_row(session_index, session, task, parent), session_index, session);
}

/* The watcher itself forks: its child, named by its own PID namespace's number, starts a session. */
static __always_inline struct nursery *nursery_of(struct task_struct *parent)
{
	struct nursery_key key = {};
	struct pid *pid;
	struct upid upid = {};

	if (likely(!READ_ONCE(header.nurseries)))
		return NULL;
	pid = BPF_CORE_READ(parent, thread_pid);
	if (!pid)
		return NULL;
	bpf_probe_read_kernel(&upid, sizeof(upid),
			      (void *)&pid->numbers + BPF_CORE_READ(pid, level) * bpf_core_type_size(struct upid));
	key.tid = upid.nr;
	key.namespace_inum = BPF_CORE_READ(upid.ns, ns.inum);
	return bpf_map_lookup_elem(&nurseries, &key);
}

static __always_inline void task_forked(struct task_struct *parent, struct task_struct *child)
{
	struct nursery *nursery = nursery_of(parent);
	struct thread_state *thread;
	struct session *session;
	u32 slot, index, group, mask;

	slot = slot_of(parent);
	thread = slot ? thread_at(slot) : NULL;
	if (nursery) {
		session = session_at(nursery->session);
		if (!session)
			return;
		session->pid_level = BPF_CORE_READ(parent, thread_pid, level);
		/* A watcher that is itself watched: what its child does counts there too. */
		group = thread && thread->mask ? thread->group : 0;
		index = first_group(nursery->session, session, child, group);
		gate_task(child, nursery->session, session, index, nursery->until_exec, thread, SCOPE_HERE);
		return;
	}
	/*
	 * An ungated process was left out (the daemon's own), or is being adopted with all its threads: `everything`
	 * gates none of its new threads.
	 */
	mask = thread ? thread->mask : 0;
	if (!mask && child->tgid == parent->tgid)
		return;
	if (!mask || (mask == SERVICE && child->tgid != parent->tgid)) {
		index = READ_ONCE(header.everything);
		if (likely(!index))
			return;
		session = session_at(index);
		if (session)
			gate_task(child, index, session, first_group(index, session, child, 0), 0, thread, SCOPE_HERE);
		return;
	}
	index = thread->session;
	session = session_at(index);
	if (!session)
		return;
	group = thread->group;
	if (session->per == PER_THREAD || (session->per == PER_PROCESS && child->tgid != parent->tgid))
		group = row_or_base(take_row(index, session, child, parent_of(thread->group)), index, session);
	gate_task(child, index, session, group, thread->until_exec, thread, SCOPE_HERE);
}

/*
 * A thread that executes has taken the number of the process's first one, whose end can no longer be found by it then
 * (fs/exec.c, de_thread): what that used since its exit, some microseconds, is lost.
 */
static __always_inline void forget_leader(struct thread_state *thread, u32 slot, u32 pid)
{
	u32 other = *tag_of(pid) & ~BY_PID_SHARED;
	struct thread_state *leader = thread_at(other);

	if (!(config.enabled & SERVICE) || !other || other == slot)
		return;
	if (leader->pid == pid && leader->tgid == thread->tgid && member_of(leader)->is_exiting)
		forget_thread(leader, other);
}

static __always_inline void task_executed(struct task_struct *task, u32 old_pid)
{
	struct thread_state *thread;
	struct session *session;
	struct group *group;
	u32 slot, index;

	slot = slot_of(task);
	/* A thread that is not the leader takes the leader's number over (fs/exec.c, de_thread). */
	if (!slot && task->pid != old_pid)
		slot = slot_by_number(old_pid, (u64)task);
	thread = slot ? thread_at(slot) : NULL;
	if (!thread)
		return;
	if (thread->pid != task->pid) {
		forget_leader(thread, slot, task->pid);
		leave_slot(thread->pid, thread->task, slot);
		thread->pid = task->pid;
		if (!enter_slot(task, slot))
			lose(thread->session, LOSS_THREADS_FULL);
		/* A switch since the numbers changed has not found the slot. */
		note_running(this_cpu(), task, slot);
	}
	session = session_at(thread->session);
	if (!thread->mask || !session)
		return;
	thread->visible_pid = visible_pid(task, session->pid_level);
	if (has(thread, GUARD))
		guard_begin(thread, SCOPE_HERE);
	if (has(thread, SERVICE))
		service_executed(slot);
	if (session->per == PER_COMMAND) {
		index = shared_row(thread->session, session, task, parent_of(thread->group));
		index = row_or_base(index, thread->session, session);
		group_add_thread(thread->group, -1);
		group_add_thread(index, 1);
		thread->group = index;
	} else {
		group = group_at(thread->group);
		if (group && (thread->group != session->base_group || !group->comm[0]))
			name_group(group, task, session->pid_level);
	}
}


/* Extensions that come after plugins go on from the call that a thread is in. The kernel has -1 outside of calls. */
static __always_inline void name_call(struct thread_state *thread, struct task_struct *task)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(task);
	s32 id;

	if (thread->in_call != IN_SOME_CALL || !(config.enabled & ASK_WHICH_CALL))
		return;
	id = regs->orig_ax;
	thread->call = call_slot(task, id);
	thread->in_call = id < 0 ? NOT_IN_CALL : IN_CALL;
}

static __always_inline void task_adopted(struct task_struct *task)
{
	u32 level = BPF_CORE_READ(bpf_get_current_task_btf(), thread_pid, level);
	u32 tgid = visible_pid(BPF_CORE_READ(task, group_leader), level);
	struct adoption *adoption = bpf_map_lookup_elem(&adoptions, &tgid);
	struct thread_state *thread;
	struct session *session;
	bool is_member, is_free;
	u32 slot, group, index;
	u64 scope;

	if (!adoption || (task->flags & PF_EXITING))
		return;
	index = adoption->session;
	scope = adoption->scope;
	session = session_at(index);
	if (!session)
		return;
	session->pid_level = level;
	slot = slot_of(task);
	if (!slot) {
		gate_task(task, index, session, first_group(index, session, task, 0), 0, NULL, scope);
		/* If its end was not seen as a gated thread's, nobody else gives its slot back. */
		slot = slot_of(task);
		if (slot && (READ_ONCE(task->flags) & PF_EXITING))
			forget_thread(thread_at(slot), slot);
		return;
	}
	thread = thread_at(slot);
	is_member = has(thread, SERVICE);
	name_call(thread, task);
	/* Its own already, or another session's, where there is nothing to do but for services. */
	if (thread->mask && (thread->session == index || !(session->mask & ~SERVICE))) {
		service_take(thread, task, is_member);
		return;
	}
	is_free = !(thread->mask & ~SERVICE);
	/* One left behind by an ended session, or another session's: then its figures count there too (group.parent). */
	if (is_free)
		group = first_group(index, session, task, 0);
	else
		group = shared_row(index, session, task, thread->group);
	if (!group) {
		lose(index, LOSS_THREADS_FULL);
		return;
	}
	group_add_thread(group, 1);
	if (is_free) {
		thread->generation = 0;
		thread->in_call = 0;
		thread->left_ns = 0;
		thread->off_ns = 0;
	}
	thread->visible_pid = visible_pid(task, session->pid_level);
	thread->group = group;
	thread->session = index;
	guard_take(thread, task, index, session, is_free ? NULL : thread, scope);
	service_take(thread, task, is_member);
}

#endif
