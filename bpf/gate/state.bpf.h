/* SPDX-License-Identifier: GPL-2.0 */
/* The gate's maps, and how a task's state, its row and its counters are found. */
#ifndef TOLLGATE_GATE_STATE_BPF_H
#define TOLLGATE_GATE_STATE_BPF_H

#include "lib/kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "wire/wire.h"
#include "lib/compat.bpf.h"

const volatile struct gate_config config = {};

/*
 * Whether an extension is compiled in and applies to the thread. In two steps, because the verifier
 * removes a branch on a constant, but not the load and the test of a constant that the compiler has
 * joined with the mask.
 */
static __always_inline bool has(struct thread_state *thread, u32 what)
{
	u32 mask;

	if (!(config.enabled & what))
		return false;
	mask = thread->mask;
	barrier_var(mask);
	return mask & what;
}

#define ARRAY_MAP(name, entries, type_of_value, flags)                                                             \
	struct {                                                                                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                                  \
		__uint(max_entries, entries);                                                                      \
		__uint(map_flags, flags);                                                                          \
		__type(key, u32);                                                                                  \
		__type(value, type_of_value);                                                                      \
	} name SEC(".maps")

#define HASH_MAP(name, entries, type_of_key, type_of_value)                                                        \
	struct {                                                                                                   \
		__uint(type, BPF_MAP_TYPE_HASH);                                                                   \
		__uint(max_entries, entries);                                                                      \
		__uint(map_flags, BPF_F_NO_PREALLOC);                                                              \
		__type(key, type_of_key);                                                                          \
		__type(value, type_of_value);                                                                      \
	} name SEC(".maps")

#define FREE_LIST(name, entries)                                                                                   \
	struct {                                                                                                   \
		__uint(type, BPF_MAP_TYPE_QUEUE);                                                                  \
		__uint(max_entries, entries);                                                                      \
		__type(value, u32);                                                                                \
	} name SEC(".maps")

#define PERCPU_MAP(name, entries, type_of_value)                                                                   \
	struct {                                                                                                   \
		__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);                                                           \
		__uint(max_entries, entries);                                                                      \
		__type(key, u32);                                                                                  \
		__type(value, type_of_value);                                                                      \
	} name SEC(".maps")

ARRAY_MAP(sessions, SESSIONS, struct session, BPF_F_MMAPABLE);
ARRAY_MAP(rows, ROWS, struct group, BPF_F_MMAPABLE);
/* Sized before loading: crates/kernel/src/gate/load.rs. */
PERCPU_MAP(cells, 1, struct cell);
PERCPU_MAP(losses, SESSIONS *LOSSES, u64);
FREE_LIST(free_threads, THREADS);
FREE_LIST(free_rows, ALLOCATABLE_ROWS);
FREE_LIST(free_cells, CELLS_MAX);
/* Cells that are reserved for base rows: from config.unreserved_cells on. */
FREE_LIST(free_reserved_cells, CELLS_MAX);

/*
 * by_pid: the slot of the thread whose number has these low bits. Once two gated threads have had
 * the same ones, BY_PID_SHARED is set and the others are in by_task. It is an array, because it is
 * read at every context switch of the machine, and a helper's call and return cost more than the
 * look-up on processors that need return thunks (8 ns each with Safe RET:
 * docs/decisions/0001-gate.md).
 *
 * It and everything else that is looked up at a call's entry and exit are global variables, because
 * a masked index needs neither a comparison nor a detour through the stack. Each is in a section of
 * its own, and so in a map of its own.
 */
struct gate_header header SEC(".bss.tollgate");
struct cpu_state cpus[CPUS] SEC(".bss.cpus");
struct plugin_verdict verdicts[CPUS] SEC(".bss.verdicts");
struct thread_state threads[THREADS] SEC(".bss.threads");
struct cell_table cell_index[ROWS] SEC(".bss.cell_index");
u32 by_pid[PID_TAGS] SEC(".bss.by_pid");
#define BY_PID_SHARED 0x80000000
HASH_MAP(by_task, THREADS, u64, u32);

HASH_MAP(pending_children, SESSIONS, struct pending_child_key, struct pending_child);
HASH_MAP(shared_rows, ROWS, struct row_key, u32);
/* Processes that the task iterator is to attach, by their numbers in the reader's PID namespace. */
HASH_MAP(attach_requests, THREADS, u32, struct attach_request);
/* Calls of all rows times the functions that they block in; made when first seen. */
HASH_MAP(sites, 16384, struct site_key, struct site_value);

/* One ring buffer for each session, added by its owner: each has one reader. */
struct ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RING_BYTES);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, SESSIONS);
	__type(key, u32);
	__array(values, struct ring);
} records SEC(".maps");

/*
 * A zero that the verifier does not know. Before v6.7 (ab5cfac139ab, "bpf: verify callbacks as if
 * they are called unknown number of times") it assumes that what is zero when bpf_loop() begins is
 * zero in each iteration.
 */
static __always_inline u32 unknown_zero(void)
{
	return bpf_get_smp_processor_id() >> 31;
}

/* include/linux/sched.h: kernel threads make no calls; exiting ones make no more. */
#define PF_KTHREAD 0x00200000
#define PF_EXITING 0x00000004

static __always_inline void count_loss(u32 session, enum loss reason)
{
	u32 index = session * LOSSES + reason;
	u64 *count = bpf_map_lookup_elem(&losses, &index);

	if (count)
		*count += 1;
}

/* Reserves a record in a session's ring buffer; NULL (and a loss): it is full, or there is none. */
static __always_inline void *reserve_record(u32 session, u64 bytes, enum loss reason)
{
	void *ring = bpf_map_lookup_elem(&records, &session);
	void *record = ring ? bpf_ringbuf_reserve(ring, bytes, 0) : NULL;

	if (!record)
		count_loss(session, reason);
	return record;
}

/* Another generation is active: this one was replaced, or is not active yet. */
static __always_inline bool is_retired(void)
{
	return READ_ONCE(header.generation) != config.generation;
}

static __always_inline struct cpu_state *this_cpu(void)
{
	return &cpus[bpf_get_smp_processor_id() & (CPUS - 1)];
}

static __always_inline struct thread_state *thread_at(u32 slot)
{
	return &threads[slot & (THREADS - 1)];
}

static __always_inline u32 *pid_bucket(u32 pid)
{
	return &by_pid[pid & (PID_TAGS - 1)];
}

/* Slot of the task at this address, if it had this number when it got the slot; 0: a bystander. */
static __always_inline u32 slot_by_pid(u32 pid, u64 address)
{
	u32 tag = *pid_bucket(pid), *slot;

	if (likely(!tag))
		return 0;
	if (thread_at(tag & ~BY_PID_SHARED)->task == address)
		return tag & ~BY_PID_SHARED;
	if (!(tag & BY_PID_SHARED))
		return 0;
	slot = bpf_map_lookup_elem(&by_task, &address);
	return slot ? *slot : 0;
}

static __always_inline u32 slot_of(struct task_struct *task)
{
	return slot_by_pid(task->pid, (u64)task);
}

/* Records the task that runs on this processor now. */
static __always_inline void set_current(struct cpu_state *cpu, struct task_struct *task, u32 slot)
{
	cpu->task = (u64)task;
	cpu->slot = slot;
	cpu->regs = (u64)task->stack + cpu->regs_offset;
}

/*
 * The task that makes or ends a call is not the recorded one: the switch to it was not reported, or
 * is older than the gate.
 */
static __noinline void resync_current(struct cpu_state *cpu, u64 regs)
{
	struct task_struct *task = bpf_get_current_task_btf();
	volatile u64 *place = &cpu->regs;

	/*
	 * Through memory: to the verifier `regs` is a pointer, and older kernels forbid arithmetic
	 * on it.
	 */
	*place = regs;
	cpu->regs_offset = *place - (u64)task->stack;
	set_current(cpu, task, slot_of(task));
}

/*
 * State of the thread that makes or ends a call here. A task's registers are always saved at the
 * same place, the top of its kernel stack. One comparison therefore tells whether it is the task
 * that sched_switch recorded, and no helper call is needed. sched_switch alone does not suffice:
 * one vendor's 6.18 kernel does not report about 1 in 100 switches (docs/decisions/0001-gate.md).
 */
static __always_inline struct thread_state *current_thread(struct pt_regs *regs)
{
	struct cpu_state *cpu = this_cpu();

	if (unlikely(cpu->regs != (u64)regs))
		resync_current(cpu, (u64)regs);
	if (likely(!cpu->slot))
		return NULL;
	return thread_at(cpu->slot);
}

/* Makes a slot findable by its task; false: there is no memory for it. */
static __always_inline bool insert_slot(struct task_struct *task, u32 slot)
{
	u32 *tag = pid_bucket(task->pid);
	u64 address = (u64)task;

	if (__sync_val_compare_and_swap(tag, 0, slot) == 0)
		return true;
	if (__sync_val_compare_and_swap(tag, BY_PID_SHARED, BY_PID_SHARED | slot) == BY_PID_SHARED)
		return true;
	if (bpf_map_update_elem(&by_task, &address, &slot, BPF_ANY))
		return false;
	__sync_fetch_and_or(tag, BY_PID_SHARED);
	return true;
}

static __always_inline void remove_slot(u32 pid, u64 address, u32 slot)
{
	u32 *tag = pid_bucket(pid);

	if (__sync_val_compare_and_swap(tag, slot, 0) == slot)
		return;
	if (__sync_val_compare_and_swap(tag, BY_PID_SHARED | slot, BY_PID_SHARED) == (BY_PID_SHARED | slot))
		return;
	bpf_map_delete_elem(&by_task, &address);
}

/* Allocates a number below `limit` that was never used or was freed; 0: none is left. */
#define alloc_index(next, limit, free_list)                                                                        \
	({                                                                                                         \
		u32 __taken = 0;                                                                                   \
		if (READ_ONCE(*(next)) < (limit))                                                             \
			__taken = __sync_fetch_and_add(next, 1);                                                   \
		if ((!__taken || __taken >= (limit)) && bpf_map_pop_elem(&free_list, &__taken))                    \
			__taken = 0;                                                                               \
		__taken;                                                                                           \
	})

static __always_inline struct group *row_at(u32 index)
{
	return bpf_map_lookup_elem(&rows, &index);
}

static __always_inline struct session *session_at(u32 index)
{
	return bpf_map_lookup_elem(&sessions, &index);
}

/* A process number, as the PID namespace at depth `level` sees it. */
static __always_inline u32 visible_pid(struct task_struct *task, u32 level)
{
	struct pid *pid = BPF_CORE_READ(task, thread_pid);
	struct upid upid = {};

	if (!pid || level > BPF_CORE_READ(pid, level))
		return 0;
	/*
	 * One entry for each level. CO-RE relocates the array's start; its stride is the kernel's.
	 */
	bpf_probe_read_kernel(&upid, sizeof(upid),
			      (void *)&pid->numbers + level * bpf_core_type_size(struct upid));
	return upid.nr;
}

static __always_inline u32 *cell_slot(u32 group, u32 call)
{
	/* Compared and used in one register: 6.1's verifier does not know that two are equal. */
	barrier_var(call);
	if (call >= CALL_INDICES)
		return NULL;
	barrier_var(call);
	return &cell_index[group & (ROWS - 1)].cell[call];
}

/*
 * The cell of a call in a row, with its entry in cell_index. The cell is allocated if necessary; 0:
 * none is left below `limit`.
 */
static __always_inline u32 cell_index_for(u32 group, u32 call, u32 limit, u32 **entry)
{
	u32 *cell = cell_slot(group, call);
	u32 number, winner;

	if (!cell)
		return 0;
	*entry = cell;
	number = *cell & CELL_INDEX;
	if (likely(number))
		return number;
	number = alloc_index(&header.next_cell, limit, free_cells);
	if (!number && (limit <= config.unreserved_cells || bpf_map_pop_elem(&free_reserved_cells, &number)))
		return 0;
	winner = __sync_val_compare_and_swap(cell, 0, number);
	if (winner) {
		if (number < config.unreserved_cells)
			bpf_map_push_elem(&free_cells, &number, BPF_ANY);
		else
			bpf_map_push_elem(&free_reserved_cells, &number, BPF_ANY);
		number = winner & CELL_INDEX;
	}
	return number;
}

/* The cell in the session's base row, for a row that cannot have its own. */
static __noinline u32 base_row_cell(u32 session_index, u32 group, u32 call)
{
	struct session *session = session_at(session_index);
	u32 *entry, number = 0;

	if (session)
		number = cell_index_for(session->base_row, call, config.cells, &entry);
	if (!number)
		count_loss(session_index, LOSS_CALLS);
	else if (session && group != session->base_row)
		count_loss(session_index, LOSS_CELLS_FULL);
	return number;
}

/* Counters of a call of this thread; NULL (and a loss): no cell is left at all. */
static __always_inline struct cell *cell_for(struct thread_state *thread, u32 call, u32 **entry)
{
	u32 number = cell_index_for(thread->row, call, config.unreserved_cells, entry);

	if (unlikely(!number))
		number = base_row_cell(thread->session, thread->row, call);
	if (unlikely(!number))
		return NULL;
	return bpf_map_lookup_elem(&cells, &number);
}

#endif
