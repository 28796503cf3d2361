// SPDX-License-Identifier: GPL-2.0
/*
 * Only for crates/kernel/tests/differential/: computes the speed of an invented task at a moment,
 * for comparison with the reference in crates/pace.
 */
/* The headers have functions of the gate that nothing calls here. */
#pragma clang diagnostic ignored "-Wunused-function"
#include "pace/wanted_speed.bpf.h"
#include "wire/steps.h"

char LICENSE[] SEC("license") = "GPL";

/* Some time at which the task begins. */
#define BEGIN_NS 1000

struct pace_moment pace_moment SEC(".bss.moment");

SEC("syscall")
int pace_moments(void *ctx)
{
	struct pace_task *task = pace_task_at(1);
	struct pace_need need = {};

	task->schedule = 1;
	task->is_late = pace_moment.is_late;
	task->begin_ns = BEGIN_NS;
	task->cycles = pace_moment.cycles;
	task->deadline_ns = pace_moment.deadline_ns;
	pace_find_need(task, BEGIN_NS + pace_moment.ns, &need);
	pace_moment.is_late = task->is_late;
	pace_moment.khz = need.khz;
	pace_moment.next = need.next;
	return 0;
}
