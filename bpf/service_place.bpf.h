/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Which threads are to be in whose control group. A move costs microseconds, and milliseconds at times
 * (docs/decisions/0005-service.md): so only a thread that runs on and on while others wait is moved to
 * where its service's share of the processors is kept, the next times from the beginning of its work. It
 * goes back if it sleeps for a while after an answer: a worker that waits for its next client must not wait
 * in the last one's group, and one whose client asks again at once is not worth two moves a request. User
 * space moves, and waits for that while (`placements`).
 */
#ifndef TOLLGATE_SERVICE_PLACE_BPF_H
#define TOLLGATE_SERVICE_PLACE_BPF_H

#include "state.bpf.h"
#include "service_rules.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, PLACEMENT_BYTES);
} placements SEC(".maps");

/*
 * Whoever works less for one service at a time is not worth a move: an event loop that serves many, above all, whose
 * later work for others would be held up where the last one's is. Some dozens of moves.
 */
#define WORTH_A_MOVE_NS 1000000
/* Who has worked so long once is moved at the beginning of its next work, until so many passed without. */
#define WORTH_LABELS 8
/* A service whose thread did not let others run competes for so long: a period of quotas. */
#define COMPETES_NS 100000000

static __always_inline u32 place_of(u32 service)
{
	return services[service & (SERVICES - 1)].place;
}

static __always_inline u32 placing_of(u32 service)
{
	return services[service & (SERVICES - 1)].placing;
}

/* As the session that has services in force sees it: that of the thread's own may be in a container. */
static __always_inline u32 number_of(struct thread_state *thread)
{
	struct session *session = session_at(READ_ONCE(header.services));

	return session ? visible_pid((struct task_struct *)thread->task, session->pid_level) : 0;
}

/* Asks user space to move the thread; with `leaves`, only if it sleeps for a while. */
static __noinline bool place(struct thread_state *thread, struct service_member *member, u32 where,
			     bool leaves)
{
	struct service_placement *placement = bpf_ringbuf_reserve(&placements, sizeof(*placement), 0);
	struct task_struct *task = (void *)thread->task;

	if (!placement) {
		lose(READ_ONCE(header.services), LOSS_PLACEMENTS);
		return false;
	}
	__builtin_memset(placement, 0, sizeof(*placement));
	placement->tid = number_of(thread);
	placement->slot = thread->slot;
	placement->began_ns = BPF_CORE_READ(task, start_boottime);
	placement->place = where;
	placement->is_own = member->borrowed != BORROWED_FOR_WORK;
	placement->leaves = leaves;
	if (!leaves)
		member->placed = where;
	bpf_ringbuf_submit(placement, 0);
	return true;
}

/* The thread, in a service's group, goes to sleep after an answer. */
static __always_inline void leave_place(struct thread_state *thread, struct service_member *member,
					struct task_struct *task)
{
	u64 began_ns = task->start_boottime;

	WRITE_ONCE(member->slept_ns, bpf_ktime_get_ns());
	if (READ_ONCE(member->leaving_began_ns) == began_ns)
		return;
	WRITE_ONCE(member->leaving_began_ns, began_ns);
	if (!place(thread, member, SERVICE_ROOT, true))
		WRITE_ONCE(member->leaving_began_ns, 0);
}

/* Somebody had to wait for its threads not long ago. */
static __always_inline bool competes(u32 service)
{
	return bpf_ktime_get_ns() < services[service & (SERVICES - 1)].competes_until_ns;
}

/* It has got a label, or the same again. */
static __always_inline void place_labelled(struct thread_state *thread, struct service_member *member)
{
	u32 where = place_of(member->service);

	if (member->is_worth)
		member->is_worth--;
	if (member->borrowed != BORROWED_FOR_WORK && placing_of(member->service) & PLACE_AT_ONCE)
		place(thread, member, where, false);
	else if (where && where != member->placed && member->is_worth && competes(member->service))
		place(thread, member, where, false);
	else if (member->placed && member->placed != where)
		place(thread, member, SERVICE_ROOT, false);
}

/* It was forked, maybe before its parent was moved. */
static __always_inline void place_born(struct thread_state *thread, struct service_member *member)
{
	if (placing_of(member->service) & PLACE_AT_ONCE)
		place(thread, member, place_of(member->service), false);
}

/* It leaves its processor: asleep, or because somebody who is gated is to have it (`gives_way`). */
static __always_inline void place_running(struct thread_state *thread, struct service_member *member,
					  struct task_struct *task, bool sleeps, bool gives_way)
{
	bool is_done = sleeps && member->has_answered;
	u32 service = member->service & (SERVICES - 1);

	if (member->is_exiting)
		return;
	if (is_done && member->placed) {
		leave_place(thread, member, task);
		return;
	}
	if (!gives_way && !(placing_of(service) & PLACE_ALONE))
		return;
	/* The clock may have been ahead of the scheduler's count when it was charged. */
	if ((s64)(task->se.sum_exec_runtime - member->at.cpu_ns) < WORTH_A_MOVE_NS)
		return;
	member->is_worth = WORTH_LABELS;
	services[service].competes_until_ns = bpf_ktime_get_ns() + COMPETES_NS;
	if (place_of(service) == member->placed)
		return;
	place(thread, member, place_of(service), false);
	if (is_done)
		leave_place(thread, member, task);
}

/* It has sent something: an answer, if its side accepted the connection. */
static __always_inline void place_answered(struct service_member *member, struct service_socket *socket)
{
	if (socket && socket->role == ROLE_ACCEPTED && member->borrowed == BORROWED_FOR_WORK)
		member->has_answered = 1;
}

#endif
