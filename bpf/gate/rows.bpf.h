/* SPDX-License-Identifier: GPL-2.0 */
/* The rows of reports. A row is for everything, or for one process, thread or command. */
#ifndef TOLLGATE_GATE_ROWS_BPF_H
#define TOLLGATE_GATE_ROWS_BPF_H

#include "gate/command.bpf.h"
#include "gate/threads.bpf.h"

ARRAY_MAP(rows, ROWS, struct row, BPF_F_MMAPABLE);
FREE_LIST(free_rows, ALLOCATABLE_ROWS);
HASH_MAP(shared_rows, ROWS, struct row_key, u32);

static __always_inline struct row *row_at(u32 index)
{
	return bpf_map_lookup_elem(&rows, &index);
}

/* `name`: a name in kernel memory that is longer than comm, or NULL. */
static __always_inline void name_row(struct row *row, struct session *session,
				     struct task_struct *task, const void *name)
{
	struct task_struct *leader = BPF_CORE_READ(task, group_leader);

	row->pid = visible_pid(task, session->pid_level);
	row->tgid = visible_pid(leader, session->pid_level);
	/* The threads of a command or of the whole session have no common beginning. */
	row->started_ns = session->per == PER_THREAD  ? BPF_CORE_READ(task, start_time) :
			  session->per == PER_PROCESS ? BPF_CORE_READ(leader, start_time) :
							0;
	if (name)
		bpf_probe_read_kernel_str(row->comm, sizeof(row->comm), name);
	else
		bpf_probe_read_kernel(row->comm, COMM_LEN, &task->comm);
}

/* The depth of sessions within each other to which a thread is looked for. */
#define NESTED_SESSIONS 8

/* Allocates a row of a session for this task; 0: none is left. `name`: as in name_row(). */
static __always_inline u32 alloc_row(u32 session_index, struct session *session,
				     struct task_struct *task, u32 parent, const void *name)
{
	u32 index = alloc_index(&header.next_row, ALLOCATABLE_ROWS, free_rows);
	struct row *row = row_at(index);

	if (!index || !row)
		return 0;
	row->session = session_index;
	row->parent = parent;
	row->threads = 0;
	row->is_partial = 0;
	row->began_ns = bpf_ktime_get_ns();
	row->ended_ns = 0;
	__builtin_memset(row->key, 0, sizeof(row->key));
	name_row(row, session, task, name);
	row->state = ROW_LIVE;
	return index;
}

/*
 * The common row of a session for threads that also count in `parent`, which is 0 or a common row
 * of another session; 0: none is left. Without a parent, this is the base row. The others have the
 * indices of base rows of sessions that do not exist, the highest ones first, because sessions take
 * the lowest ones.
 */
__noinline int common_row_below(u32 session_index, u32 parent)
{
	struct session *session = session_at(session_index);
	struct row *row;
	u32 i;

	if (!session)
		return 0;
	row = row_at(session->base_row);
	if (row && row->parent == parent)
		return session->base_row;
	for (i = ROWS - 1; i > ALLOCATABLE_ROWS; i--) {
		row = row_at(i);
		if (row && row->state == ROW_LIVE && row->session == session_index &&
		    row->parent == parent && i != session->base_row)
			return i;
	}
	for (i = ROWS - 1; i > ALLOCATABLE_ROWS; i--) {
		row = row_at(i);
		if (!row || __sync_val_compare_and_swap(&row->state, ROW_FREE, ROW_LIVE))
			continue;
		row->parent = parent;
		row->began_ns = bpf_ktime_get_ns();
		row->session = session_index;
		return i;
	}
	return 0;
}

/*
 * The row for threads that count in the sessions of `row`, and have no row or cell of their own:
 * the base row of its session, or one that counts in the same outer sessions; 0: none is left.
 */
__noinline int common_row(u32 index)
{
	u32 sessions[NESTED_SESSIONS] = {};
	struct row *row = row_at(index), *base;
	struct session *session;
	int common = 0;
	u32 i;

	session = row ? session_at(row->session) : NULL;
	if (!session)
		return 0;
	base = row_at(session->base_row);
	if (base && base->parent == row->parent)
		return session->base_row;
#pragma unroll
	for (i = 0; i < NESTED_SESSIONS; i++) {
		row = index ? row_at(index) : NULL;
		sessions[i] = row ? row->session : 0;
		index = row ? row->parent : 0;
	}
#pragma unroll
	for (i = 0; i < NESTED_SESSIONS; i++) {
		if (sessions[NESTED_SESSIONS - 1 - i])
			common = common_row_below(sessions[NESTED_SESSIONS - 1 - i], common);
	}
	return common;
}

/*
 * Returns `row`. If it is 0, counts a loss, and returns the common row for threads that count in
 * the same sessions as those of `beside`, or `beside` itself.
 */
static __always_inline u32 row_or_common(u32 row, u32 session_index, u32 beside)
{
	u32 common;

	if (row)
		return row;
	count_loss(session_index, LOSS_ROWS_FULL);
	common = common_row(beside);
	return common ? common : beside;
}

/* A thread counts in a row, and so in each parent row. */
__noinline int row_add_thread(u32 index)
{
	struct row *row;
	u32 i;

	for (i = 0; i < NESTED_SESSIONS && index; i++) {
		row = row_at(index);
		if (!row)
			break;
		__sync_fetch_and_add(&row->threads, 1);
		index = row->parent;
	}
	return 0;
}

/*
 * The last thread of a row has gone. If it is the row of a process or thread, user space is
 * notified, so that it can read the statistics and free the row.
 */
static __always_inline void row_ended(u32 index, struct row *row)
{
	struct session *session = session_at(row->session);
	struct row_key key = {};
	struct row_done *done;

	row->ended_ns = bpf_ktime_get_ns();
	if (!session || index >= ALLOCATABLE_ROWS || session->per == PER_COMMAND)
		return;
	key.session = row->session;
	key.parent = row->parent;
	__builtin_memcpy(key.name, row->key, sizeof(key.name));
	bpf_map_delete_elem(&shared_rows, &key);
	done = reserve_record(row->session, sizeof(*done), LOSS_ROW_NOTICES);
	if (!done)
		return;
	done->type = RECORD_ROW_DONE;
	done->session = row->session;
	done->row = index;
	bpf_ringbuf_submit(done, 0);
}

/* Removes a thread from a row and its parent rows. */
__noinline int row_remove_thread(u32 index)
{
	struct row *row;
	u32 i, parent;

	for (i = 0; i < NESTED_SESSIONS && index; i++) {
		row = row_at(index);
		if (!row)
			break;
		parent = row->parent;
		if (__sync_fetch_and_add(&row->threads, -1) == 1)
			row_ended(index, row);
		index = parent;
	}
	return 0;
}

/* A thread goes on in another row. No row that it stays in is without threads meanwhile. */
static __always_inline void move_to_row(struct thread_state *thread, u32 index)
{
	row_add_thread(index);
	row_remove_thread(thread->row);
	thread->row = index;
}

static __always_inline u32 parent_row(u32 index)
{
	struct row *row = row_at(index);

	return row ? row->parent : 0;
}

/*
 * Whether a row still belongs to the key. The row of an ended process may have been freed and
 * reused.
 */
static __always_inline bool row_is_live(u32 index, struct row_key *key, struct session *session,
					struct task_struct *task)
{
	struct row *row = row_at(index);

	if (!row || row->session != key->session || row->parent != key->parent)
		return false;
	if (session->per == PER_COMMAND)
		return row->state == ROW_LIVE;
	if (session->per == PER_PROCESS &&
	    row->tgid != visible_pid(task->group_leader, session->pid_level))
		return false;
	return row->threads > 0;
}

/*
 * The row that this task shares with its process, its command or all tasks; 0: none is left.
 * `path`: the path of execve, or 0. This is not inlined, so that its stack is not added to that of
 * deeper calls of its callers (the verifier allows 512 bytes in all).
 */
static __noinline u32 shared_row(u32 session_index, struct session *session,
				      struct task_struct *task, u32 parent, u64 path)
{
	struct name_scratch *scratch = this_scratch();
	const void *name = NULL;
	struct row *row;
	struct row_key key = { .session = session_index, .parent = parent };
	u32 tgid = task->tgid;
	u32 *known, index;

	if (session->per == PER_THREAD)
		return alloc_row(session_index, session, task, parent, NULL);
	if (session->per == PER_COMMAND) {
		bpf_probe_read_kernel(key.name, sizeof(key.name), &task->comm);
		if (is_own_executable(key.name))
			name = executable_name(task);
		else if (is_full(key.name) && scratch)
			name = long_command(task, key.name, path);
		if (name && scratch)
			((u64 *)key.name)[1] = hash_kernel_text(scratch, name);
	}
	if (session->per == PER_PROCESS)
		__builtin_memcpy(key.name, &tgid, sizeof(tgid));
	known = bpf_map_lookup_elem(&shared_rows, &key);
	if (known && row_is_live(*known, &key, session, task))
		return *known;
	index = alloc_row(session_index, session, task, parent, name);
	row = row_at(index);
	if (!index || !row)
		return 0;
	__builtin_memcpy(row->key, key.name, sizeof(row->key));
	bpf_map_update_elem(&shared_rows, &key, &index, BPF_ANY);
	return index;
}

/*
 * Whether a thread already counts in a session, perhaps within another one. It must not be taken
 * over again, at a move between two groups of the session or when it is found again.
 */
static __always_inline bool counts_in(struct thread_state *thread, u32 index)
{
	u32 number = thread->row, i;
	struct row *row;

	if (!(thread->mask & ~SERVICE))
		return false;
	for (i = 0; i < NESTED_SESSIONS && number; i++) {
		row = row_at(number);
		if (!row)
			return false;
		if (row->session == index)
			return true;
		number = row->parent;
	}
	return false;
}

/*
 * Removes a thread from its row. A detached thread counts nowhere, and its row may belong to
 * another session by now.
 */
static __always_inline void leave_row(struct thread_state *thread)
{
	struct session *session = session_at(thread->session);

	if (session && thread->mask & ~SERVICE)
		row_remove_thread(thread->row);
}

/*
 * The row in the session of row `index`, in which the task or its parent counts so far. `outer`:
 * its row in the outer session, or 0. `news`: the kinds of rows (1 << enum per) that the task needs
 * anew. `path`: as in shared_row(). Without a row that is left, the task goes on in `index`.
 */
static __noinline u32 row_in_session(u32 index, u32 outer, struct task_struct *task, u32 news,
				     u64 path)
{
	struct row *row = row_at(index);
	struct session *session = row ? session_at(row->session) : NULL;
	u32 number = row ? row->session : 0, found;

	if (!session)
		return index;
	if (!(news & (1U << (session->per & 31))) && row->parent == outer)
		return index;
	found = shared_row(number, session, task, outer, path);
	if (found)
		return found;
	count_loss(number, LOSS_ROWS_FULL);
	found = common_row_below(number, outer);
	return found ? found : index;
}

/*
 * The row of a task that is new or executes a program, in row `index` so far: the row of the
 * innermost session in which it counts, below its rows in the others. The rest is as above.
 */
static __always_inline u32 row_in_sessions(u32 index, struct task_struct *task, u32 news, u64 path)
{
	u32 chain[NESTED_SESSIONS] = {}, i;

#pragma unroll
	for (i = 0; i < NESTED_SESSIONS; i++) {
		chain[i] = index;
		index = index ? parent_row(index) : 0;
	}
#pragma unroll
	for (i = 0; i < NESTED_SESSIONS; i++) {
		if (chain[NESTED_SESSIONS - 1 - i])
			index = row_in_session(chain[NESTED_SESSIONS - 1 - i], index, task, news,
					       path);
	}
	return index;
}

/*
 * A thread ends: its rows get the name that the thread has given itself, or that the leader of its
 * process has.
 */
static __always_inline void rename_rows(struct thread_state *thread, struct task_struct *task)
{
	u32 index = thread->row, i;
	struct session *session;
	struct row *row;

	for (i = 0; i < NESTED_SESSIONS && index; i++) {
		row = row_at(index);
		session = row ? session_at(row->session) : NULL;
		if (!session)
			return;
		if (index < ALLOCATABLE_ROWS &&
		    (session->per == PER_THREAD ||
		     (session->per == PER_PROCESS && task->pid == task->tgid)))
			bpf_probe_read_kernel(row->comm, COMM_LEN, &task->comm);
		index = row->parent;
	}
}

/* A thread has executed a program: the rows that it stays in get its name. */
static __always_inline void name_rows(struct thread_state *thread, struct task_struct *task)
{
	u32 index = thread->row, i;
	struct session *session;
	struct row *row;

	for (i = 0; i < NESTED_SESSIONS && index; i++) {
		row = row_at(index);
		session = row ? session_at(row->session) : NULL;
		if (!session)
			return;
		if (session->per != PER_COMMAND &&
		    (index < ALLOCATABLE_ROWS || (session->per == PER_ALL && !row->comm[0])))
			name_row(row, session, task, NULL);
		index = row->parent;
	}
}

/*
 * The row of a thread that no thread of the session has forked. `parent`: the row in which the
 * thread also counts, or 0.
 */
static __always_inline u32 first_row(u32 session_index, struct session *session,
				     struct task_struct *task, u32 parent)
{
	struct row *base = row_at(session->base_row);

	if (base && parent)
		base->parent = parent;
	if (session->per == PER_ALL)
		return session->base_row;
	return row_or_common(shared_row(session_index, session, task, parent, 0), session_index,
			     session->base_row);
}

#endif
