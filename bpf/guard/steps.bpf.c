// SPDX-License-Identifier: GPL-2.0
/*
 * Only for crates/kernel/tests/differential/: runs the guard on invented calls, one after the
 * other, and records each result for comparison with the reference in crates/guard.
 */
#include "guard/model.bpf.h"
#include "wire/steps.h"

char LICENSE[] SEC("license") = "GPL";

struct thread_state step_threads[GUARD_STEP_THREADS] SEC(".bss.s_threads");
struct guard_profile step_profile SEC(".bss.s_profile");
struct guard_parameters step_parameters SEC(".bss.s_param");
struct guard_step steps[GUARD_STEPS] SEC(".bss.steps");
u32 step_count;

static long run_step(u64 index, void *unused)
{
	struct guard_step *step = &steps[index & (GUARD_STEPS - 1)];
	struct thread_state *thread = &step_threads[step->thread & (GUARD_STEP_THREADS - 1)];
	u32 call = step->call;

	if (call >= CALL_INDICES)
		return 1;
	switch (step->kind) {
	case STEP_CALL:
		step->mismatches = guard_fast_path(thread, &step_profile, call) ?
					   0 :
					   guard_slow_path(thread, &step_profile, &step_parameters,
							   call, false);
		if (step->mismatches == NOT_TESTED)
			step->mismatches = 0;
		break;
	case STEP_STOP:
		thread->guard.restart |= GUARD_RESTART_EXPECTED;
		break;
	default:
		handler_enter(thread, step->kind == STEP_SIGNAL_RESTARTS);
	}
	step->lfc = thread->guard.lfc;
	step->state = step_profile.state;
	step->anomalies = step_profile.anomalies;
	return 0;
}

SEC("syscall")
int guard_steps(void *ctx)
{
	bpf_loop(step_count, run_step, NULL, 0);
	return 0;
}
