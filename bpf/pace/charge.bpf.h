/* SPDX-License-Identifier: GPL-2.0 */
/* How the work of a thread is charged to its task. */
#ifndef TOLLGATE_PACE_CHARGE_BPF_H
#define TOLLGATE_PACE_CHARGE_BPF_H

#include "pace/cycle_counter.bpf.h"

/*
 * The maximum number of nested tasks of a thread to which its work is charged. It limits the time
 * of a switch.
 */
#define PACE_NESTED 4

/* Work of a thread that is not charged to its task yet. */
struct pace_work {
	u64 ns;
	u64 cycles;
	u64 energy_pj;
};

/*
 * Since when a thread with a task runs on a processor, if its switch in was not reported
 * (docs/decisions/0001-gate.md); 0: it is not known, or the thread does not run. While it is being
 * switched, the scheduler's time may be that of its stretch before, which is charged already.
 */
static __always_inline u64 pace_unreported_since(u32 slot, struct cpu_state *cpu)
{
	struct task_struct *task = (void *)thread_at(slot)->task;
	u64 arrived = BPF_CORE_READ(task, sched_info.last_arrival) + cpu->clock_offset;

	return cpu->clock_offset && arrived > READ_ONCE(pace_of(slot)->left_ns) ? arrived : 0;
}

/* The work of a thread on a processor from `since` to `now`. `since` is 0 if it is not known. */
static __always_inline struct pace_work pace_work(struct pace_cpu *at, u64 since, u64 now)
{
	struct pace_work work = {};

	if (!since || (s64)(now - since) <= 0)
		return work;
	work.ns = now - since;
	work.cycles = work.ns * at->cycles_per_ns >> PACE_CYCLES_SHIFT;
	/* A nanosecond at a milliwatt is a picojoule. */
	work.energy_pj = work.ns * at->milliwatts;
	return work;
}

/* Charges work to a task, and to the tasks around it. */
static __always_inline void pace_add_work(struct pace_task *task, struct pace_work work)
{
	u32 i;

	if (!work.ns)
		return;
	for (i = 0; i < PACE_NESTED && task; i++) {
		__sync_fetch_and_add(&task->cpu_ns, work.ns);
		__sync_fetch_and_add(&task->cycles, work.cycles);
		if (work.energy_pj)
			__sync_fetch_and_add(&task->energy_pj, work.energy_pj);
		task = pace_outer(task);
	}
}

/*
 * The work of the thread that runs here since its last charge. The caller charges it. Another
 * processor may charge the thread as well if it reports a change of the speed, or if the timer of a
 * paced task expires there. Then the exchange decides who charges a stretch of time.
 */
static __always_inline struct pace_work pace_take_work(u32 slot, u64 now)
{
	struct pace_thread *of = pace_of(slot);
	struct pace_cpu *at = pace_cpu_at(bpf_get_smp_processor_id());
	struct pace_work work;
	u64 since;
	bool is_reported;

	if (unlikely(at->is_reported || READ_ONCE(pace_control.session))) {
		since = __sync_lock_test_and_set(&of->charged_ns, now);
	} else {
		since = READ_ONCE(of->charged_ns);
		WRITE_ONCE(of->charged_ns, now);
	}
	is_reported = since;
	if (unlikely(!since) && thread_at(slot)->task == (u64)bpf_get_current_task_btf())
		since = pace_unreported_since(slot, this_cpu());
	work = pace_work(at, since, now);
	if (unlikely(at->has_counter) && work.ns)
		work.cycles = pace_count_cycles(slot, is_reported, now, work.cycles);
	return work;
}

/* Charges the time of the thread that runs here since the last charge. */
static __always_inline void pace_charge(u32 slot, struct pace_task *task, u64 now)
{
	pace_add_work(task, pace_take_work(slot, now));
}

/*
 * The same for the thread that runs on a processor, which need not be this one. Another processor's
 * counter cannot be read, so that the cycles are an estimate until the thread is charged there.
 */
static __always_inline void pace_charge_at(u32 cpu, u32 slot, struct pace_task *task, u64 now)
{
	struct pace_cpu *at = pace_cpu_at(cpu);
	struct pace_thread *of = pace_of(slot);
	u64 since = READ_ONCE(of->charged_ns);
	bool is_here = cpu == bpf_get_smp_processor_id();
	struct pace_work work = pace_work(at, since, now);
	bool is_counted = unlikely(at->has_counter) && work.ns;

	if (!since)
		return;
	/* Before the exchange: the next charge there subtracts it. */
	if (is_counted && !is_here)
		__sync_fetch_and_add(&at->estimated, work.cycles);
	if (__sync_val_compare_and_swap(&of->charged_ns, since, now) != since) {
		if (is_counted && !is_here)
			__sync_fetch_and_sub(&at->estimated, work.cycles);
		return;
	}
	if (is_counted && is_here)
		work.cycles = pace_count_cycles(slot, 1, now, work.cycles);
	pace_add_work(task, work);
}

#endif
