/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Finds and allocates cells: the counters and the histogram of a call in a row, on each processor.
 * bpf/lens/hooks.bpf.h counts in them.
 */
#ifndef TOLLGATE_LENS_CELLS_BPF_H
#define TOLLGATE_LENS_CELLS_BPF_H

#include "gate/rows.bpf.h"
#include "wire/lens.h"

/* Sized before loading: crates/kernel/src/gate/load.rs. */
PERCPU_MAP(lens_cells, 1, struct cell);

FREE_LIST(lens_free_cells, CELLS_MAX);

/* Free cells for common rows only. The cells from unreserved_cells on are reserved for them. */
FREE_LIST(lens_free_reserved_cells, CELLS_MAX);

struct cell_table cell_index[ROWS] SEC(".bss.cell_index");

static __always_inline u32 *cell_entry(u32 row, u32 call)
{
	/*
	 * The value is compared and used in one register, because 6.1's verifier does not know that
	 * two registers have the same value.
	 */
	barrier_var(call);
	if (call >= CELL_INDICES)
		return NULL;
	barrier_var(call);
	return &cell_index[row & (ROWS - 1)].cell[call];
}

/*
 * Returns the cell of a call in a row, and sets `entry` to its entry in cell_index. Allocates the
 * cell if necessary. Returns 0 if none is left below `limit`.
 */
static __always_inline u32 cell_index_for(u32 row, u32 call, u32 limit, u32 **entry)
{
	u32 *cell = cell_entry(row, call);
	u32 number, winner;

	if (!cell)
		return 0;
	*entry = cell;
	number = *cell & CELL_INDEX;
	if (likely(number))
		return number;
	number = alloc_index(&header.next_cell, limit, lens_free_cells);
	if (!number &&
	    (limit <= config.unreserved_cells ||
	     bpf_map_pop_elem(&lens_free_reserved_cells, &number)))
		return 0;
	winner = __sync_val_compare_and_swap(cell, 0, number);
	if (winner) {
		if (number < config.unreserved_cells)
			bpf_map_push_elem(&lens_free_cells, &number, BPF_ANY);
		else
			bpf_map_push_elem(&lens_free_reserved_cells, &number, BPF_ANY);
		number = winner & CELL_INDEX;
	}
	return number;
}

/* The cell in the common row of the same sessions, for a row that cannot have its own. */
static __noinline u32 common_cell(u32 session_index, u32 row, u32 call)
{
	u32 common = common_row(row), *entry, number = 0;
	struct row *partial = row_at(row);

	if (common)
		number = cell_index_for(common, call, config.cells, &entry);
	if (!number)
		count_loss(session_index, LOSS_CALLS);
	else if (row != common)
		count_loss(session_index, LOSS_CELLS_FULL);
	if (partial && row != common)
		partial->is_partial = 1;
	return number;
}

/*
 * The counters of a call in a row. If no cell is left at all, counts a loss of the session and
 * returns NULL.
 */
static __always_inline struct cell *cell_in(u32 session, u32 row, u32 call, u32 **entry)
{
	u32 number = cell_index_for(row, call, config.unreserved_cells, entry);

	if (unlikely(!number))
		number = common_cell(session, row, call);
	if (unlikely(!number))
		return NULL;
	return bpf_map_lookup_elem(&lens_cells, &number);
}

static __always_inline struct cell *cell_of(struct thread_state *thread, u32 row, u32 call,
					    u32 **entry)
{
	return cell_in(thread->session, row, call, entry);
}

static __always_inline struct cell *cell_for(struct thread_state *thread, u32 call, u32 **entry)
{
	return cell_of(thread, thread->row, call, entry);
}

static __always_inline u32 log2_floor(u64 value)
{
	u32 log = 0;

	if (value >> 32) {
		value >>= 32;
		log += 32;
	}
	if (value >> 16) {
		value >>= 16;
		log += 16;
	}
	if (value >> 8) {
		value >>= 8;
		log += 8;
	}
	if (value >> 4) {
		value >>= 4;
		log += 4;
	}
	if (value >> 2) {
		value >>= 2;
		log += 2;
	}
	return log + (value >> 1);
}

/* Same as stats::histogram::bucket. */
static __always_inline u32 histogram_bucket(u64 ns)
{
	u32 octaves = 0, bucket;

	/*
	 * The bucket of a cheap call is found without a branch on its time. Such times jitter, and
	 * a misprediction costs 5 ns.
	 */
	if (ns >= SMALL_VALUES) {
		octaves = log2_floor(ns) - log2_floor(SMALL_VALUES - 1);
		ns >>= octaves;
	}
	bucket = config.small_buckets[ns & (SMALL_VALUES - 1)] + octaves * BUCKETS_PER_OCTAVE;
	return bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1;
}

static __always_inline u32 errno_index(s64 result)
{
	u64 error = -result;

	if (error < ERRNO_REGULAR)
		return error;
	error -= ERRNO_RESTART_FIRST;
	return error < ERRNO_RESTART_COUNT ? ERRNO_REGULAR + error : 0;
}

static __always_inline bool is_error(s64 result)
{
	return (u64)result >= (u64)-4095;
}

/*
 * Whether a tracer has set the number of the call that ends to -1, to skip the call. It sets the
 * result later, when it is not reported any more.
 */
static __always_inline bool is_skipped(struct task_struct *task, struct pt_regs *regs)
{
	return (s32)regs->orig_ax == -1 && task->ptrace;
}

static __always_inline void count_errno(struct cell *cell, s64 result)
{
	u32 index = errno_index(result);

	/* The compiler knows that the bound holds; Linux 6.1's verifier must see the check. */
	barrier_var(index);
	if (index < ERRNO_INDICES)
		cell->errors[index] += 1;
}

static __always_inline void count_error(struct cell *cell, struct crossing *at)
{
	if (!is_error(at->result))
		return;
	if (unlikely(is_skipped(running_task(at->thread->task), at->regs)))
		cell->denied += 1;
	else
		count_errno(cell, at->result);
}

#endif
