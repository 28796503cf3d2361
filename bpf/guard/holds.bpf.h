/* SPDX-License-Identifier: GPL-2.0 */
/* The response to an anomaly: the policy of the session, holds, and events for user space. */
#ifndef TOLLGATE_GUARD_HOLDS_BPF_H
#define TOLLGATE_GUARD_HOLDS_BPF_H

#include "gate/calls.bpf.h"
#include "guard/exemption.bpf.h"
#include "guard/profiles.bpf.h"
#include "guard/state.bpf.h"
#include "wire/guard.h"

/* The latest verdict that the guard gave on each processor, for plugins. */
struct plugin_verdict verdicts[CPUS] SEC(".bss.verdicts");

static __always_inline void guard_report_event(struct thread_state *thread, u32 call,
					       u32 mismatches, u32 action, u32 restraint, u64 now,
					       u64 held_until_ns)
{
	struct guard_event *event = reserve_record(thread->guard.session, sizeof(*event),
						   LOSS_GUARD_EVENTS);
	struct task_struct *task = bpf_get_current_task_btf();
	struct session *session = session_at(thread->guard.session);
	struct task_struct *parent = BPF_CORE_READ(task, real_parent, group_leader);
	struct inode *file = BPF_CORE_READ(task, mm, exe_file, f_inode);

	if (!event)
		return;
	event->type = RECORD_GUARD_EVENT;
	event->session = thread->guard.session;
	event->pid = thread->visible_pid;
	event->tgid = session ? visible_pid(task->group_leader, session->pid_level) : 0;
	event->profile_slot = thread->guard.profile_slot;
	event->call = call;
	event->time_ns = now;
	event->held_until_ns = held_until_ns;
	event->window = thread->guard.window;
	event->mismatches = mismatches;
	event->lfc = thread->guard.lfc;
	event->action = action;
	event->restraint = restraint;
	event->precall = thread->guard.precall;
	event->uid = bpf_get_current_uid_gid();
	event->parent = 0;
	if (session)
		event->parent = visible_pid(parent, session->pid_level);
	event->device = BPF_CORE_READ(file, i_sb, s_dev);
	event->inode = BPF_CORE_READ(file, i_ino);
	bpf_probe_read_kernel(event->parent_comm, sizeof(event->parent_comm), &parent->comm);
	bpf_probe_read_kernel(event->comm, sizeof(event->comm), &task->comm);
	bpf_ringbuf_submit(event, BPF_RB_FORCE_WAKEUP);
}

/* pH's delay: 2^LFC times the factor. */
static __always_inline u64 guard_delay(struct guard_parameters *parameters, u32 lfc)
{
	u64 factor = parameters->delay_factor_ns;

	if (!factor)
		return 0;
	/* 2^63 ns are 292 years. */
	if (lfc > 62 || factor >= 1ULL << (63 - lfc) || factor << lfc > parameters->delay_cap_ns)
		return parameters->delay_cap_ns;
	return factor << lfc;
}

/*
 * Whether the session holds as many processes as it may. A stopped process begins no further hold,
 * unless several of its threads begin theirs at the same time.
 */
static __always_inline bool is_max_held(struct session *session)
{
	return session->held + __sync_fetch_and_add(&session->holds_begun, 1) >=
	       session->guard.max_held;
}

/*
 * Stops the process. The signal goes to this thread. If another thread of the process got it, this
 * thread would not check for signals at the end of the call, and a call that was undone would fail
 * with -ERESTARTNOINTR.
 */
static __always_inline bool send_stop(struct thread_state *thread, u32 call)
{
	thread->guard.precall = precall_of(call);
	/*
	 * If the process stopped in this call, the call would fail with EINTR. The baseline does
	 * not have the calls that the program makes after EINTR, so they would be held as well.
	 */
	if (thread->guard.precall & PRECALL_DEFER)
		return true;
	/*
	 * Since 6.14, the kernel sends the signal in an interrupt some moments later. If the thread
	 * is released before that, the SIGSTOP comes after the SIGCONT. So Tollgate checks each
	 * process that it has released (crates/kernel/src/guard/left_stopped.rs). A SIGCONT from
	 * here could not know whether another process has stopped this one as well.
	 */
	if (bpf_send_signal_thread(SIGSTOP)) {
		thread->guard.precall = 0;
		return false;
	}
	return true;
}

/*
 * Whether the thread's process was requested to end a short time ago. It is not held then, so that
 * it can end.
 */
static __always_inline bool is_in_grace(struct thread_state *thread, struct guard_cold *cold,
					u64 now)
{
	if (likely(!cold->grace_until))
		return false;
	/* If it is held, Tollgate is about to release it. */
	if (now >> GUARD_GRACE_SHIFT < cold->grace_until || thread->guard.held)
		return true;
	cold->grace_until = 0;
	return false;
}

/*
 * Whether a tracer gets the thread's stop signals. It may pass them on, as strace does, or discard
 * them, and the gate does not learn which.
 */
static __always_inline bool is_traced(void)
{
	return bpf_get_current_task_btf()->ptrace;
}

/*
 * pH's suspend_execve: a new program would begin with an LFC of 0, so a thread that has had many
 * anomalies must not begin one.
 */
static __always_inline bool is_execve_suspended(struct guard_parameters *parameters,
						struct guard_cold *cold, u32 call)
{
	return unlikely(parameters->suspend_execve && is_execve(call)) &&
	       cold->max_lfc >= parameters->suspend_execve;
}

/*
 * Applies the policy to a thread with anomalies among its latest calls. The SIGSTOP of a hold takes
 * effect when a hook undoes the call (guard/precall.bpf.h), when the call ends, or at once if the
 * call sleeps. A call that is undone or interrupted is restarted.
 */
__noinline int guard_respond(struct thread_state *thread, struct session *session, u32 call,
			     u32 mismatches)
{
	u32 response, action = GUARD_OBSERVE, restraint = GUARD_UNRESTRAINED;
	u64 now = bpf_ktime_get_ns(), delay_ns = 0, held_until_ns = 0;
	struct plugin_verdict *verdict;
	struct guard_cold *cold;
	bool was_held;

	if (!thread || !session)
		return 0;
	cold = guard_cold_of(thread);
	was_held = thread->guard.held;
	response = session->guard.response;
	if (response != GUARD_OBSERVE) {
		restraint = exemption_of(thread->slot);
		if (restraint != GUARD_UNRESTRAINED)
			response = GUARD_OBSERVE;
	}
	if (response == GUARD_DENY && is_execve(call) && precall_of(call)) {
		thread->guard.precall = PRECALL_DENY;
		action = GUARD_DENY;
	} else if (response == GUARD_KILL || (response == GUARD_DENY && is_execve(call)))
		action = bpf_send_signal(SIGKILL) ? GUARD_OBSERVE : response;
	else if (response == GUARD_STOP)
		delay_ns = ~0ULL - now;
	else if (response != GUARD_OBSERVE && is_execve_suspended(&session->guard, cold, call))
		delay_ns = session->guard.suspend_execve_ns;
	else if (response != GUARD_OBSERVE)
		delay_ns = guard_delay(&session->guard, thread->guard.lfc);
	if (delay_ns && call_flags(call) & CALL_NEVER_RETURNS) {
		restraint = GUARD_NEVER_RETURNS;
		delay_ns = 0;
	}
	if (delay_ns && is_in_grace(thread, cold, now)) {
		restraint = GUARD_TERMINATING;
		delay_ns = 0;
	}
	if (delay_ns && !was_held && is_max_held(session)) {
		if (session->guard.over_max_held == GUARD_KILL)
			action = bpf_send_signal(SIGKILL) ? GUARD_OBSERVE : GUARD_KILL;
		else
			restraint = GUARD_MAX_HELD;
		delay_ns = 0;
	}
	if (delay_ns) {
		/*
		 * The hold is recorded before the signal, so that it is found if the guard's
		 * process is killed.
		 */
		if (!was_held || cold->held_until_ns < now + delay_ns)
			cold->held_until_ns = now + delay_ns;
		/*
		 * Besides the leader, the thread itself is marked, because an execve makes it the
		 * leader. If the leader has ended, slot 0 is marked, which belongs to no thread.
		 */
		guard_cold_at(slot_of(bpf_get_current_task_btf()->group_leader))->ever_held = 1;
		cold->ever_held = 1;
		header.ever_held = 1;
		WRITE_ONCE(thread->guard.held, 1);
		/*
		 * The signal of an earlier hold (guard_rehold) may still be on its way, and then
		 * this one is refused.
		 */
		if (send_stop(thread, call) || was_held) {
			action = response == GUARD_DENY ? GUARD_DELAY : response;
			if (is_traced())
				restraint = GUARD_TRACED;
			else
				held_until_ns = now + delay_ns;
		} else {
			thread->guard.held = 0;
		}
	}
	if (config.enabled & PLUGIN) {
		verdict = &verdicts[bpf_get_smp_processor_id() & (CPUS - 1)];
		verdict->mismatches = mismatches & ~GUARD_DENOUNCED;
		verdict->lfc = thread->guard.lfc;
		verdict->action = action;
		verdict->is_denounced = !!(mismatches & GUARD_DENOUNCED);
	}
	if (mismatches || action)
		guard_report_event(thread, call, mismatches, action, restraint, now, held_until_ns);
	return 0;
}

/*
 * A held thread makes a call, because its time is over or because a process other than Tollgate has
 * continued it too early.
 */
static __always_inline void guard_rehold(struct thread_state *thread, struct guard_cold *cold,
					 u32 call)
{
	/*
	 * When the time is over, Tollgate clears the flag and continues the process. The gate does
	 * not do so here, because a SIGSTOP by Tollgate itself may still be pending.
	 */
	if (!cold->grace_until && bpf_ktime_get_ns() < cold->held_until_ns)
		send_stop(thread, call);
}

#endif
