/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Decides when a thread is migrated to another control group. A migration costs microseconds, and
 * milliseconds at times (docs/decisions/0005-service.md). So the first migration of a thread to its
 * service's control group comes only when the thread runs on while others wait. Its next migrations
 * come at the beginning of its work. There are two exceptions: the limits of some services apply
 * from the start (MIGRATE_AT_ONCE) or also if no others wait (MIGRATE_UNCONTENDED).
 *
 * A worker that waits for its next client must not wait in the last client's control group. If it
 * sleeps for a while after a reply, it is migrated back to its saved origin. If the client sends
 * its next request at once, two migrations for each request would cost too much. So user space
 * reads the kernel side's requests for migrations (`service_migrations`), waits, and migrates the
 * thread only if it still sleeps.
 */
#ifndef TOLLGATE_SERVICE_MIGRATE_BPF_H
#define TOLLGATE_SERVICE_MIGRATE_BPF_H

#include "gate/events.bpf.h"
#include "service/state.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, MIGRATION_RING_BYTES);
} service_migrations SEC(".maps");

/*
 * A thread that has worked for one service for less than this is not migrated. It may be an event
 * loop that serves many services: its later work for the others would be delayed in this service's
 * control group. The value is the time of some dozens of migrations.
 */
#define MIGRATE_MIN_RUN_NS 1000000
/*
 * Once a thread has worked for MIGRATE_MIN_RUN_NS, it is migrated at the beginning of its next
 * work. This ends after MIGRATE_CREDIT bindings in a row in which it works for a shorter time.
 */
#define MIGRATE_CREDIT 8
/*
 * A service whose thread kept others from running is contended for this long: one period of CPU
 * quotas.
 */
#define CONTENDED_NS 100000000

/*
 * The thread's number in the PID namespace of the services' session: its own session may be in a
 * container.
 */
static __always_inline u32 service_tid(struct thread_state *thread)
{
	struct session *session = session_at(READ_ONCE(header.services_session));

	return session ? visible_pid((struct task_struct *)thread->task, session->pid_level) : 0;
}

/* Requests a migration by user space; with `is_return`, only if the thread sleeps for a while. */
static __noinline bool request_migration(struct thread_state *thread, struct service_member *member,
					 u32 cgroup_of, bool is_return)
{
	struct service_migration *migration =
		bpf_ringbuf_reserve(&service_migrations, sizeof(*migration), 0);
	struct task_struct *task = (void *)thread->task;

	if (!migration) {
		count_loss(READ_ONCE(header.services_session), LOSS_MIGRATIONS);
		return false;
	}
	__builtin_memset(migration, 0, sizeof(*migration));
	migration->tid = service_tid(thread);
	migration->slot = thread->slot;
	migration->began_ns = BPF_CORE_READ(task, start_boottime);
	migration->cgroup_of = cgroup_of;
	migration->has_all_limits = member->binding != BINDING_REQUEST;
	migration->is_return = is_return;
	if (!is_return)
		member->in_cgroup_of = cgroup_of;
	bpf_ringbuf_submit(migration, 0);
	return true;
}

/* A thread in a service's control group goes to sleep after a reply. */
static __always_inline void request_return(struct switching *at, struct service_member *member)
{
	u64 began_ns = at->task->start_boottime;

	WRITE_ONCE(member->slept_ns, switch_ns(at));
	if (READ_ONCE(member->return_thread_ns) == began_ns)
		return;
	WRITE_ONCE(member->return_thread_ns, began_ns);
	if (!request_migration(at->thread, member, SERVICE_ROOT, true))
		WRITE_ONCE(member->return_thread_ns, 0);
}

/* Whether others had to wait for the service's threads not long ago. */
static __always_inline bool is_contended(u32 service)
{
	return bpf_ktime_get_ns() < services[service & (SERVICES - 1)].contended_until_ns;
}

/* The thread has got another binding, or the same one again. */
static __always_inline void migrate_on_bind(struct thread_state *thread,
					    struct service_member *member)
{
	u32 cgroup_of = cgroup_service_of(member->service);

	if (member->migrate_credit)
		member->migrate_credit--;
	if (member->binding != BINDING_REQUEST &&
	    migrate_flags_of(member->service) & MIGRATE_AT_ONCE)
		request_migration(thread, member, cgroup_of, false);
	else if (cgroup_of && cgroup_of != member->in_cgroup_of && member->migrate_credit &&
		 is_contended(member->service))
		request_migration(thread, member, cgroup_of, false);
	else if (member->in_cgroup_of && member->in_cgroup_of != cgroup_of)
		request_migration(thread, member, SERVICE_ROOT, false);
}

/* The thread was forked, maybe before its parent was migrated. */
static __always_inline void migrate_on_fork(struct thread_state *thread,
					    struct service_member *member)
{
	if (migrate_flags_of(member->service) & MIGRATE_AT_ONCE)
		request_migration(thread, member, cgroup_service_of(member->service), false);
}

/* The thread is switched out: it sleeps, or a gated thread preempts it. */
static __always_inline void migrate_on_switch_out(struct switching *at,
						  struct service_member *member)
{
	bool is_done = at->state && member->has_replied;
	bool gives_way = !at->state && at->next_slot;
	struct thread_state *thread = at->thread;
	struct task_struct *task = at->task;
	u32 service = member->service & (SERVICES - 1);

	if (member->is_exiting)
		return;
	if (is_done && member->in_cgroup_of) {
		request_return(at, member);
		return;
	}
	if (!gives_way && !(migrate_flags_of(service) & MIGRATE_UNCONTENDED))
		return;
	/*
	 * The difference may be negative: at the charge, the clock may have been ahead of the
	 * scheduler's counter.
	 */
	if ((s64)(task->se.sum_exec_runtime - member->charged_at.cpu_ns) < MIGRATE_MIN_RUN_NS)
		return;
	member->migrate_credit = MIGRATE_CREDIT;
	services[service].contended_until_ns = switch_ns(at) + CONTENDED_NS;
	if (cgroup_service_of(service) == member->in_cgroup_of)
		return;
	request_migration(thread, member, cgroup_service_of(service), false);
	if (is_done)
		request_return(at, member);
}

#endif
