/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The hardware counters of cycles. User space opens one for each processor, if the machine has
 * them. The cycles of a stretch of time are what the counter of its processor has counted.
 */
#ifndef TOLLGATE_PACE_CYCLE_COUNTER_BPF_H
#define TOLLGATE_PACE_CYCLE_COUNTER_BPF_H

#include "pace/state.bpf.h"

/* The counters stay in the map when the process that has put them there ends. */
struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(max_entries, CPUS);
	__uint(map_flags, BPF_F_PRESERVE_ELEMS);
	__type(key, u32);
	__type(value, u32);
} pace_counters SEC(".maps");

/*
 * The cycles of this processor from `since` to `now`. `estimate` is what the speed makes of this
 * time. It stands for the cycles if the counter was not read at `since`, or cannot be read. What
 * other processors have charged meanwhile is subtracted. With 0 for `since`, counting begins. This
 * is a global function, so that the verifier checks it once.
 */
__noinline u64 pace_count_cycles(u64 since, u64 now, u64 estimate)
{
	struct pace_cpu *at = pace_cpu_at(bpf_get_smp_processor_id());
	u64 count, before, cycles, charged;
	bool is_known;

	if (!(config.enabled & PACE))
		return 0;
	charged = __sync_lock_test_and_set(&at->estimated, 0);
	is_known = since && (charged || at->counted_ns == since);
	count = bpf_perf_event_read(&pace_counters, BPF_F_CURRENT_CPU);
	/* The result is an error. */
	if ((s64)count < 0) {
		at->counted_ns = 0;
		return estimate;
	}
	at->counted_ns = now;
	before = __sync_lock_test_and_set(&at->counted, count);
	/* A new counter begins at 0. */
	if (!is_known || count < before)
		return estimate;
	cycles = count - before;
	if (unlikely(cycles < charged)) {
		__sync_fetch_and_add(&at->estimated, charged - cycles);
		return 0;
	}
	return cycles - charged;
}

/* A thread with a task runs on this processor from now on, and its time is charged from now on. */
static __always_inline void pace_start_counting(struct pace_cpu *at, u64 now)
{
	/* What has just been charged has read the counter. */
	if (unlikely(at->has_counter) && at->counted_ns != now)
		pace_count_cycles(0, now, 0);
}

#endif
