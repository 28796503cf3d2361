// SPDX-License-Identifier: GPL-2.0
/*
 * Only for crates/kernel/tests/differential.rs: has the guard judge calls that no thread makes, one
 * after the other, and notes each verdict, to be compared with the reference in crates/guard.
 */
#include "state.bpf.h"
#include "guard.bpf.h"

char LICENSE[] SEC("license") = "GPL";

struct thread_state step_threads[GUARD_STEP_THREADS] SEC(".bss.s_threads");
struct guard_profile step_profile SEC(".bss.s_profile");
struct guard_parameters step_parameters SEC(".bss.s_param");
struct guard_step steps[GUARD_STEPS] SEC(".bss.steps");
u32 step_count;

static long take_step(u64 index, void *unused)
{
	struct guard_step *step = &steps[index & (GUARD_STEPS - 1)];
	struct thread_state *thread = &step_threads[step->thread & (GUARD_STEP_THREADS - 1)];
	u32 call = step->call;

	if (call >= CALL_SLOTS)
		return 1;
	switch (step->kind) {
	case STEP_CALL:
		step->mismatches = guard_is_usual(thread, &step_profile, call) ?
					   0 :
					   guard_look(thread, &step_profile, &step_parameters, call, false);
		if (step->mismatches == NOT_JUDGED)
			step->mismatches = 0;
		break;
	case STEP_STOP:
		thread->again = 1;
		break;
	default:
		handler_begins(thread, step->kind == STEP_SIGNAL_RESTARTS);
	}
	step->lfc = thread->lfc;
	step->state = step_profile.state;
	step->anomalies = step_profile.anomalies;
	return 0;
}

SEC("syscall")
int guard_steps(void *ctx)
{
	bpf_loop(step_count, take_step, NULL, 0);
	return 0;
}
