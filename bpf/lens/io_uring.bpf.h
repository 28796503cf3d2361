/* SPDX-License-Identifier: GPL-2.0 */
/*
 * io_uring's requests, from submission to completion. They have cells as calls do, but are no
 * calls: they may complete in another thread, or in one of the kernel's, so nothing is known about
 * their time except how long it is.
 */
#ifndef TOLLGATE_LENS_IO_URING_BPF_H
#define TOLLGATE_LENS_IO_URING_BPF_H

#include "gate/rows.bpf.h"
#include "lens/cells.bpf.h"
#include "lens/state.bpf.h"

/* The flags of a request begin with those of its submission: include/uapi/linux/io_uring.h. */
#define IOSQE_CQE_SKIP_SUCCESS (1 << 6)
#define IORING_CQE_F_MORE (1 << 1)

HASH_MAP(lens_requests, REQUESTS_IN_FLIGHT, u64, struct request);

/*
 * The thread to which a request belongs: the current thread, which submits it. If that is a thread
 * of the kernel that polls the submission queue (IORING_SETUP_SQPOLL), it is the first thread of
 * its process, which is the ring's.
 */
static __always_inline struct thread_state *request_owner(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread;
	u32 slot;

	if (unlikely(task->flags & (PF_IO_WORKER | PF_USER_WORKER)))
		slot = slot_of(task->group_leader);
	else
		slot = running_slot(task);
	thread = thread_at(slot);
	if (!slot || !has(thread, LENS) || thread->until_exec)
		return NULL;
	return thread;
}

/* A request is submitted. An earlier one at the same address has ended unseen. */
static __always_inline void lens_request(struct io_kiocb *request, u32 operation)
{
	struct thread_state *thread = request_owner();
	u64 address = (u64)request;
	struct request state = {};
	struct row *row;
	struct cell *cell;
	u32 *entry = NULL;

	if (!thread)
		return;
	state.row = thread->row;
	row = row_at(state.row);
	if (!row)
		return;
	if (operation > REQUEST_UNKNOWN - REQUESTS_BEGIN)
		operation = REQUEST_UNKNOWN - REQUESTS_BEGIN;
	state.cell = REQUESTS_BEGIN + operation;
	cell = cell_in(thread->session, state.row, state.cell, &entry);
	if (!cell)
		return;
	state.row_began_ns = row->began_ns;
	state.ring = (u64)request->ctx;
	state.user_data = request->cqe.user_data;
	state.is_silent = !!(request->flags & IOSQE_CQE_SKIP_SUCCESS);
	/* Each call of the machine reads this cache line, so it is written once. */
	if (unlikely(!READ_ONCE(header.ever_requested)))
		WRITE_ONCE(header.ever_requested, 1);
	state.submitted_ns = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&lens_requests, &address, &state, BPF_ANY)) {
		count_loss(thread->session, LOSS_REQUESTS);
		return;
	}
	cell->submitted += 1;
	cell->skipped += state.is_silent;
}

/*
 * A request cannot be prepared. In v6.1, that also happens to one in a chain after it was submitted
 * (io_req_prep_async). It is in the table then, which a silent one that has ended may be as well.
 */
static __always_inline void lens_request_failed(struct io_kiocb *request, u32 operation)
{
	u64 address = (u64)request;
	struct request *found = bpf_map_lookup_elem(&lens_requests, &address);

	if (found && !found->is_silent && found->ring == (u64)request->ctx)
		return;
	lens_request(request, operation);
}

/*
 * A completion is posted. `address`: the request that ends with it; 0, or a request that is not in
 * the table: this is one of several results, a message of another ring, or a notification that the
 * memory of a request is free.
 */
static __always_inline void lens_request_done(u64 ring, u64 address, u64 user_data, s32 result)
{
	struct request *found, state;
	u64 wall;
	u32 bucket, *entry = NULL;
	struct cell *cell;
	struct row *row;

	if (!READ_ONCE(header.ever_requested))
		return;
	found = bpf_map_lookup_elem(&lens_requests, &address);
	if (!found || found->ring != ring)
		return;
	if (found->is_silent && found->user_data != user_data)
		return;
	/* Only here, because the completions of all programs of the machine come as far as that. */
	wall = bpf_ktime_get_ns() - found->submitted_ns;
	/* Memory of a deleted entry may be used again at once. */
	state = *found;
	bpf_map_delete_elem(&lens_requests, &address);
	row = row_at(state.row);
	if (!row || row->state == ROW_FREE || row->began_ns != state.row_began_ns)
		return;
	cell = cell_in(row->session, state.row, state.cell, &entry);
	if (!cell)
		return;
	cell->count += 1;
	cell->denied += state.is_silent;
	cell->wall_ns += wall;
	if (wall > cell->max_ns)
		cell->max_ns = wall;
	bucket = histogram_bucket(wall);
	if (bucket < HISTOGRAM_BUCKETS)
		cell->histogram[bucket] += 1;
	if (is_error(result))
		count_errno(cell, result);
}

/* A completion does not fit into its queue. The kernel does not say to which request it belongs. */
static __always_inline void lens_request_lost(u32 flags)
{
	struct thread_state *thread;

	if (flags & IORING_CQE_F_MORE)
		return;
	thread = request_owner();
	if (thread)
		count_loss(thread->session, LOSS_REQUEST_ENDS);
}

#endif
