/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Charges: what the kernel has counted for a task since the last charge is added to the account of
 * its service (docs/decisions/0005-service.md).
 */
#ifndef TOLLGATE_SERVICE_CHARGE_BPF_H
#define TOLLGATE_SERVICE_CHARGE_BPF_H

#include "service/state.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, SERVICES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u32);
	__type(value, struct service_account);
} service_accounts SEC(".maps");

static __always_inline void read_counters(struct task_counters *now, struct task_struct *task)
{
	now->cpu_ns = task->se.sum_exec_runtime;
	now->wait_ns = task->sched_info.run_delay;
	now->switches = task->nvcsw;
	now->preemptions = task->nivcsw;
	now->minor_faults = task->min_flt;
	now->major_faults = task->maj_flt;
	/*
	 * These fields need CONFIG_TASK_XACCT and CONFIG_TASK_IO_ACCOUNTING, which a kernel may
	 * lack.
	 */
	if (bpf_core_field_exists(task->ioac.rchar)) {
		now->read_bytes = task->ioac.rchar;
		now->written_bytes = task->ioac.wchar;
	}
	if (bpf_core_field_exists(task->ioac.read_bytes)) {
		now->storage_read_bytes = task->ioac.read_bytes;
		now->storage_written_bytes = task->ioac.write_bytes;
	}
}

/*
 * The task's counters now. The scheduler updates its CPU time at ticks and switches only. If the
 * binding changes in between, the clock gives the time since the latest switch. This only decides
 * which of the two services is charged for that time. The sum of the charges is still the
 * scheduler's time.
 */
static __always_inline void counters_now(struct service_member *member, struct task_struct *task,
					 u64 now, bool is_running, struct task_counters *counters)
{
	u64 cpu_ns;

	read_counters(counters, task);
	/*
	 * Not every switch is reported (docs/decisions/0001-gate.md). If the number of switches has
	 * changed, the thread was switched out since.
	 */
	if (is_running && member->switched_in_ns &&
	    member->switched_in_switches == counters->switches + counters->preemptions) {
		cpu_ns = member->switched_in_cpu_ns + (now - member->switched_in_ns);
		if (cpu_ns > counters->cpu_ns)
			counters->cpu_ns = cpu_ns;
	}
}

/* Applies `use` to each field of the account and its usage since the last charge. */
#define FOR_EACH_USAGE(use)                                                                        \
	use(task.cpu_ns, counters.cpu_ns - member->charged_at.cpu_ns);                             \
	use(task.wait_ns, counters.wait_ns - member->charged_at.wait_ns);                          \
	use(task.switches, counters.switches - member->charged_at.switches);                       \
	use(task.preemptions, counters.preemptions - member->charged_at.preemptions);              \
	use(task.minor_faults, counters.minor_faults - member->charged_at.minor_faults);           \
	use(task.major_faults, counters.major_faults - member->charged_at.major_faults);           \
	use(task.read_bytes, counters.read_bytes - member->charged_at.read_bytes);                 \
	use(task.written_bytes, counters.written_bytes - member->charged_at.written_bytes);        \
	use(task.storage_read_bytes,                                                               \
	    counters.storage_read_bytes - member->charged_at.storage_read_bytes);                  \
	use(task.storage_written_bytes,                                                            \
	    counters.storage_written_bytes - member->charged_at.storage_written_bytes);            \
	use(present_ns, now - member->charged_ns);                                                 \
	use(calls, member->calls);                                                                 \
	use(received_bytes, member->received_bytes);                                               \
	use(sent_bytes, member->sent_bytes)

/*
 * The additions are atomic, because the end of a task is charged in an interrupt, which may
 * interrupt another charge. User space makes the accounts of the services that it names.
 */
#define ADD_USAGE(field, value)                                                                    \
	do {                                                                                       \
		u64 __used = value;                                                                \
		if (__used)                                                                        \
			__sync_fetch_and_add(&account->field, __used);                             \
	} while (0)

static __noinline void service_charge(struct thread_state *thread, struct task_struct *task,
				      u64 now, bool is_running)
{
	struct service_member *member = member_of(thread);
	struct task_counters counters = {};
	struct service_account *account;
	u32 service = successor_of(member->service);

	/* The thread has used nothing. */
	if (member->is_new)
		return;
	counters_now(member, task, now, is_running, &counters);
	account = bpf_map_lookup_elem(&service_accounts, &service);
	if (account) {
		FOR_EACH_USAGE(ADD_USAGE);
		__sync_fetch_and_add(&account->charges, 1);
	} else {
		count_loss(READ_ONCE(header.services_session), LOSS_CHARGES);
	}
	member->charged_at = counters;
	member->charged_ns = now;
	member->calls = 0;
	member->received_bytes = 0;
	member->sent_bytes = 0;
}

#endif
