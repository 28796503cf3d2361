/* SPDX-License-Identifier: GPL-2.0 */
/* How tasks become gated, and later bystanders again: at fork, exec and exit, and by attaching. */
#ifndef TOLLGATE_GATE_TASKS_BPF_H
#define TOLLGATE_GATE_TASKS_BPF_H

#include "gate/calls.bpf.h"
#include "gate/hooks.bpf.h"
#include "gate/rows.bpf.h"

HASH_MAP(pending_children, SESSIONS, struct pending_child_key, struct pending_child);

/* Processes that the task iterator is to attach, by their numbers in the reader's PID namespace. */
HASH_MAP(attach_requests, THREADS, u32, struct attach_request);

/*
 * Makes the thread a bystander again, before its slot is reused. This happens once: at its end, or
 * when the iterator that attached it finds that it has ended.
 */
static __always_inline void ungate_thread(struct thread_state *thread, u32 slot)
{
	u64 address = thread->task;

	if (!address || __sync_val_compare_and_swap(&thread->task, address, 0) != address)
		return;
	leave_row(thread);
	thread->mask = 0;
	remove_slot(thread->pid, address, slot);
	bpf_map_push_elem(&free_threads, &slot, BPF_ANY);
}

static __always_inline void task_exited(struct thread_state *thread, struct task_struct *task,
					u32 slot)
{
	call_task_exit(thread, task);
	rename_rows(thread, task);
	if (has(thread, SERVICE)) {
		leave_row(thread);
		/* From now until the kernel frees it, the thread belongs to no session. */
		thread->mask = SERVICE;
		thread->session = 0;
		thread->row = 0;
	} else {
		ungate_thread(thread, slot);
	}
	this_cpu()->slot = 0;
}

static __always_inline void task_freed(struct thread_state *thread, struct task_struct *task,
				       u32 slot)
{
	call_task_free(thread, task);
	ungate_thread(thread, slot);
}

/*
 * The part of the mask of `before` that a thread keeps in a new session: the lens of the previous
 * session, and pace, which stays with the session that follows the thread's tasks. Sampling
 * continues only if the new session has no lens of its own.
 */
static __always_inline u32 inherited_mask(struct session *session, struct thread_state *before)
{
	if (!before)
		return 0;
	return before->mask & (PACE | LENS | LENS_SITES | LENS_FILES | LENS_WHY |
			       (session->mask & LENS ? 0 : LENS_SAMPLE));
}

/* Applies a session to a thread. `before`: as in struct joining. */
static __always_inline void apply_session(struct thread_state *thread, u32 session_index,
					  struct session *session, struct thread_state *before,
					  bool is_forked, u64 identity)
{
	struct joining at = {
		.thread = thread,
		.session = session,
		.session_index = session_index,
		.before = before,
		.is_forked = is_forked,
		.identity = identity,
	};

	/* Services apply to the whole machine, so a thread keeps its service in every session. */
	at.mask = READ_ONCE(session->beginning) == SESSION_WAITS ? AWAITS_BEGIN :
								   session->mask & ~SERVICE;
	at.mask |= (thread->mask & SERVICE) | inherited_mask(session, before);
	call_join(&at);
	thread->mask = at.mask;
}

/* Makes an attached thread a member of a service, if it is not one yet. */
static __always_inline void attach_service(struct thread_state *thread, struct task_struct *task,
					   bool is_member)
{
	if (!(config.enabled & SERVICE) || !READ_ONCE(header.services_session))
		return;
	if (!is_member)
		service_attach(thread, task);
	thread->mask |= SERVICE;
}

/*
 * Makes `task` a gated thread of the session. `parent` is the gated thread that has forked it.
 * NULL: a bystander has forked it, or the task is attached.
 */
static __always_inline void gate_thread(struct task_struct *task, u32 session_index,
					struct session *session, u32 row, u32 until_exec,
					bool is_forked, struct thread_state *parent, u64 identity)
{
	struct thread_state *thread;
	u32 slot;

	if (task->flags & PF_KTHREAD)
		return;
	slot = alloc_index(&header.next_thread, THREADS, free_threads);
	if (!slot) {
		if (is_forked || !READ_ONCE(session->attaches_again))
			count_loss(session_index, LOSS_THREADS_FULL);
		return;
	}
	thread = thread_at(slot);
	__builtin_memset(thread, 0, sizeof(*thread));
	call_new_thread(slot);
	thread->task = (u64)task;
	thread->slot = slot;
	thread->pid = task->pid;
	thread->tgid = task->tgid;
	thread->visible_pid = visible_pid(task, session->pid_level);
	thread->row = row;
	thread->session = session_index;
	thread->until_exec = until_exec;
	apply_session(thread, session_index, session, parent, is_forked, identity);
	call_begin_to_count(thread, task);
	if (is_forked)
		call_fork(thread, parent);
	else
		attach_service(thread, task, false);
	row_add_thread(row);
	if (!insert_slot(task, slot)) {
		count_loss(session_index, LOSS_THREADS_FULL);
		ungate_thread(thread, slot);
	}
}

/*
 * The entry for the next child of `parent`, if `parent` is the owner of a session and has pending
 * children. An owner is found by its number in its own PID namespace.
 */
static __always_inline struct pending_child *pending_child_of(struct task_struct *parent)
{
	struct pending_child_key key = {};
	struct pid *pid;
	struct upid upid = {};

	if (likely(!READ_ONCE(header.pending_children_count)))
		return NULL;
	pid = BPF_CORE_READ(parent, thread_pid);
	if (!pid)
		return NULL;
	bpf_probe_read_kernel(&upid, sizeof(upid),
			      (void *)&pid->numbers +
				      BPF_CORE_READ(pid, level) * bpf_core_type_size(struct upid));
	key.tid = upid.nr;
	key.namespace_inum = BPF_CORE_READ(upid.ns, ns.inum);
	return bpf_map_lookup_elem(&pending_children, &key);
}

static __always_inline void task_forked(struct task_struct *parent, struct task_struct *child)
{
	struct pending_child *pending_child = pending_child_of(parent);
	struct thread_state *thread;
	struct session *session;
	u32 slot, index, row, mask, level;

	slot = slot_of(parent);
	thread = slot ? thread_at(slot) : NULL;
	if (pending_child) {
		session = session_at(pending_child->session);
		if (!session)
			return;
		session->pid_level = BPF_CORE_READ(parent, thread_pid, level);
		/*
		 * If the owner is gated itself, what its child does counts in the owner's row as
		 * well.
		 */
		row = thread && thread->mask ? thread->row : 0;
		index = first_row(pending_child->session, session, child, row);
		gate_thread(child, pending_child->session, session, index,
			    pending_child->until_exec, true, thread, IDENTITY_CURRENT);
		return;
	}
	/*
	 * A process that is not gated was left out (the daemon itself), or is about to be attached
	 * with all its threads. Either way, a system-wide session does not gate its new threads.
	 */
	mask = thread ? thread->mask : 0;
	if (!mask && child->tgid == parent->tgid)
		return;
	if (!mask || (mask == SERVICE && child->tgid != parent->tgid)) {
		index = READ_ONCE(header.system_wide_session);
		session = index ? session_at(index) : NULL;
		/* In a container, a session has only the processes that the container has. */
		level = session ? level_of_namespace(child, session->owner_namespace)
				: MAX_PID_LEVEL;
		if (session && level != MAX_PID_LEVEL) {
			session->pid_level = level;
			row = first_row(index, session, child, 0);
			gate_thread(child, index, session, row, 0, true, thread, IDENTITY_CURRENT);
			return;
		}
		/* A member of a service has children in it, whichever session is system-wide. */
		if (likely(!mask))
			return;
	}
	index = thread->session;
	session = session_at(index);
	if (!session)
		return;
	row = row_in_sessions(thread->row, child,
			      1 << PER_THREAD |
				      (child->tgid != parent->tgid ? 1 << PER_PROCESS : 0),
			      0);
	gate_thread(child, index, session, row, thread->until_exec, true, thread, IDENTITY_CURRENT);
}

/*
 * A thread that executes a program takes over the number of the process's first thread (fs/exec.c,
 * de_thread). So the slot of the first thread could not be found when the kernel frees that thread.
 * The slot is freed here. What the first thread used after its exit (some microseconds) is lost.
 */
static __always_inline void ungate_old_leader(struct thread_state *thread, u32 slot, u32 pid)
{
	u32 other = *pid_bucket(pid) & ~BY_PID_SHARED;
	struct thread_state *leader = thread_at(other);

	if (!(config.enabled & SERVICE) || !other || other == slot)
		return;
	if (leader->pid == pid && leader->tgid == thread->tgid && member_of(leader)->is_exiting)
		ungate_thread(leader, other);
}

static __always_inline void task_executed(struct task_struct *task, u32 old_pid,
					  struct linux_binprm *bprm)
{
	struct thread_state *thread;
	struct session *session;
	u32 slot, index;

	slot = slot_of(task);
	/* A thread that is not the leader takes over the leader's number (fs/exec.c, de_thread). */
	if (!slot && task->pid != old_pid)
		slot = slot_by_pid(old_pid, (u64)task);
	thread = slot ? thread_at(slot) : NULL;
	if (!thread)
		return;
	if (thread->pid != task->pid) {
		ungate_old_leader(thread, slot, task->pid);
		remove_slot(thread->pid, thread->task, slot);
		thread->pid = task->pid;
		if (!insert_slot(task, slot))
			count_loss(thread->session, LOSS_THREADS_FULL);
		/*
		 * A switch between the change of the number and this event has not found the slot.
		 */
		set_current(this_cpu(), task, slot);
	}
	session = session_at(thread->session);
	if (!thread->mask || !session)
		return;
	thread->visible_pid = visible_pid(task, session->pid_level);
	call_exec(thread);
	index = row_in_sessions(thread->row, task, 1 << PER_COMMAND,
				(u64)BPF_CORE_READ(bprm, filename));
	if (index != thread->row) {
		call_change_command(thread);
		move_to_row(thread, index);
	}
	name_rows(thread, task);
}

/*
 * A gate with plugins only does not record which call a thread is in. When other extensions join
 * such a gate, the call's number is read from the thread's registers. It is -1 if the thread is not
 * in a call.
 */
static __always_inline void resolve_call(struct thread_state *thread, struct task_struct *task)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(task);
	u32 word = call_word(thread);
	s32 id;

	if (state_in_call_word(word) != IN_UNKNOWN_CALL || !(config.enabled & NEEDS_CALL_INDEX))
		return;
	id = regs->orig_ax;
	replace_call(thread, word, call_index(task, id), id < 0 ? NOT_IN_CALL : IN_CALL);
}

/*
 * The row of a session for a thread that counts in another session as well, in row `outer`. If no
 * row is left, the thread goes on in the common rows of both sessions.
 */
static __always_inline u32 row_beside(u32 index, struct session *session, struct task_struct *task,
				      u32 outer)
{
	u32 row = shared_row(index, session, task, outer, 0);

	if (row)
		return row;
	count_loss(index, LOSS_ROWS_FULL);
	row = common_row(outer);
	return row ? common_row_below(index, row) : 0;
}

/*
 * The guard of another session has ended, and has left a thread of this session without a guard.
 */
static __always_inline void guard_again(struct thread_state *thread, u32 index,
					struct session *session, u64 identity)
{
	struct joining at = {
		.thread = thread,
		.session = session,
		.session_index = index,
		.identity = identity,
		.mask = session->mask,
	};

	if (!(config.enabled & session->mask & GUARD) || has(thread, GUARD) ||
	    READ_ONCE(session->beginning) == SESSION_WAITS)
		return;
	guard_join(&at);
	__sync_fetch_and_or(&thread->mask, at.mask & GUARD);
}

/* Makes a task that already runs a task of the session. */
static __always_inline void attach_task(struct task_struct *task, u32 index,
					struct session *session, u64 identity)
{
	struct thread_state *thread;
	bool is_member, is_free;
	u32 slot, row, word;

	slot = slot_of(task);
	if (!slot) {
		gate_thread(task, index, session, first_row(index, session, task, 0), 0, false,
			    NULL, identity);
		/* If the task ended before it was gated, nothing else frees its slot. */
		slot = slot_of(task);
		if (slot && (READ_ONCE(task->flags) & PF_EXITING))
			ungate_thread(thread_at(slot), slot);
		return;
	}
	thread = thread_at(slot);
	is_member = has(thread, SERVICE);
	resolve_call(thread, task);
	/*
	 * The thread already counts in this session, or this session only adds services to a thread
	 * of another session.
	 */
	if (thread->mask && (thread->session == index || counts_in(thread, index) ||
			     !(session->mask & ~SERVICE))) {
		guard_again(thread, index, session, identity);
		attach_service(thread, task, is_member);
		return;
	}
	/* What it counts must not count here before the session begins. It is attached then. */
	if (thread->mask & ~SERVICE && READ_ONCE(session->beginning) == SESSION_WAITS)
		return;
	/*
	 * The thread counts in another session: its statistics will also count there (row.parent).
	 * Or (is_free) it counts nowhere, because that session has ended, or has not begun. A
	 * session that has not begun attaches the thread again when it begins.
	 */
	is_free = !(thread->mask & EXTENSIONS & ~SERVICE);
	if (is_free)
		row = first_row(index, session, task, 0);
	else
		row = row_beside(index, session, task, thread->row);
	if (!row) {
		count_loss(index, LOSS_THREADS_FULL);
		return;
	}
	if (is_free) {
		leave_row(thread);
		row_add_thread(row);
		word = call_word(thread);
		thread->generation = 0;
		replace_call(thread, word, word, NOT_IN_CALL);
		lens_reset_call(thread);
	} else {
		call_leave_row(thread, task);
	}
	call_begin_to_count(thread, task);
	thread->visible_pid = visible_pid(task, session->pid_level);
	if (is_free)
		thread->row = row;
	else
		move_to_row(thread, row);
	thread->session = index;
	apply_session(thread, index, session, is_free ? NULL : thread, false, identity);
	attach_service(thread, task, is_member);
}

/* The accounts of threads begin with their session, and not when they were attached. */
static __always_inline void begin_account(struct task_struct *task)
{
	u32 slot = slot_of(task);
	struct session *session = slot ? session_at(thread_at(slot)->session) : NULL;

	if (session && session->beginning == SESSION_BEGINS)
		call_begin_to_count(thread_at(slot), task);
}

/* Whether the current process, which is at this depth of PID namespaces, owns the session. */
static __always_inline bool is_owner(struct session *session, u32 level)
{
	struct task_struct *leader = bpf_get_current_task_btf()->group_leader;
	struct upid upid = {};

	return number_at(leader, level, &upid) && upid.nr == session->owner_pid &&
	       BPF_CORE_READ(upid.ns, ns.inum) == session->owner_namespace;
}

static __always_inline void task_attached(struct task_struct *task)
{
	u32 level = BPF_CORE_READ(bpf_get_current_task_btf(), thread_pid, level);
	u32 tgid = visible_pid(BPF_CORE_READ(task, group_leader), level);
	struct attach_request *attach_request = bpf_map_lookup_elem(&attach_requests, &tgid);
	struct session *session;

	begin_account(task);
	if (!attach_request || (task->flags & PF_EXITING))
		return;
	session = session_at(attach_request->session);
	/* Others may have left requests: a process that was killed, or one in another container. */
	if (!session || !is_owner(session, level))
		return;
	session->pid_level = level;
	if (attach_request->is_owner)
		session->owner_tgid = task->tgid;
	else
		attach_task(task, attach_request->session, session, attach_request->identity);
}

#endif
