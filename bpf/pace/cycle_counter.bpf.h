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
 * An interrupting timer counts fewer cycles than this, which are 3 ms at 5 GHz. With more, the
 * counter is another one, which a later session has opened.
 */
#define PACE_INTERRUPTED_MAX (1 << 24)

/*
 * The cycles of this processor since its counter was last read, less what other processors have
 * charged meanwhile. They belong to the thread of this slot if the counter was read when the thread
 * began to run here with a task, or later; `is_reported`: the thread's switch in was reported, so
 * that this may be so. Otherwise, or if the counter cannot be read, `estimate` stands for them.
 * This is a global function, so that the verifier checks it once.
 *
 * A timer of this processor may interrupt it, and charge the same thread. The exchanges give each
 * cycle to one of the two. What is negative then is subtracted from the next cycles.
 */
__noinline u64 pace_count_cycles(u32 slot, u32 is_reported, u64 now, u64 estimate)
{
	struct pace_cpu *at = pace_cpu_at(bpf_get_smp_processor_id());
	u64 count, before;
	s64 cycles, charged;
	bool is_its;

	if (!(config.enabled & PACE))
		return 0;
	charged = __sync_lock_test_and_set(&at->estimated, 0);
	count = bpf_perf_event_read(&pace_counters, BPF_F_CURRENT_CPU);
	/* The result is an error. */
	if ((s64)count < 0) {
		at->counted_slot = 0;
		return estimate;
	}
	is_its = is_reported && READ_ONCE(at->counted_slot) == slot;
	before = __sync_lock_test_and_set(&at->counted, count);
	at->counted_slot = slot;
	at->counted_ns = now;
	if (!is_its || (s64)(before - count) > PACE_INTERRUPTED_MAX)
		return estimate;
	cycles = count - before - charged;
	if (unlikely(cycles < 0)) {
		__sync_fetch_and_add(&at->estimated, -cycles);
		return 0;
	}
	return cycles;
}

/*
 * The thread of this slot has a task and runs on this processor from now on. The caller stores this
 * afterwards, so that a timer does not charge what was counted before.
 */
static __always_inline void pace_start_counting(struct pace_cpu *at, u32 slot, u64 now)
{
	/* What has just been charged has read the counter. */
	if (unlikely(at->has_counter) && (at->counted_ns != now || at->counted_slot != slot))
		pace_count_cycles(slot, 0, now, 0);
}

/* What is charged next on a processor does not begin at the latest reading of its counter. */
static __always_inline void pace_stop_counting(struct pace_cpu *at)
{
	if (unlikely(at->has_counter))
		WRITE_ONCE(at->counted_slot, 0);
}

#endif
