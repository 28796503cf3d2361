/* SPDX-License-Identifier: GPL-2.0 */
/* The speeds at which the processors run, as their drivers report them. */
#ifndef TOLLGATE_PACE_REPORTED_SPEED_BPF_H
#define TOLLGATE_PACE_REPORTED_SPEED_BPF_H

#include "pace/timers.bpf.h"

static __always_inline void pace_record_speed(struct pace_cpu *at, u32 khz)
{
	struct pace_search_level search = { .khz = khz };

	bpf_loop(pace_control.powers, pace_compare_level, &search, 0);
	at->is_reported = 1;
	WRITE_ONCE(at->khz, khz);
	WRITE_ONCE(at->cycles_per_ns, ((u64)khz << PACE_CYCLES_SHIFT) / KHZ_PER_GHZ);
	WRITE_ONCE(at->milliwatts, search.level.milliwatts);
}

/* The speed of a processor has changed. */
static __always_inline void pace_frequency(u32 khz, u32 cpu)
{
	struct pace_cpu *at = pace_cpu_at(cpu);
	u32 slot = READ_ONCE(at->slot);
	struct pace_task *task = pace_running(at);
	u64 now;

	if (!task) {
		pace_record_speed(at, khz);
		return;
	}
	now = bpf_ktime_get_ns();
	pace_charge_at(cpu, slot, task, now);
	pace_record_speed(at, khz);
	if (task->domain)
		pace_arm(cpu, task, now);
}

#endif
