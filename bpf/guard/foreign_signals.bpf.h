/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Signals that the guard has not sent: whether one has stopped a process or requested it to end.
 * The marks are on all threads of the process, because any of them may be its last one, or become
 * its first one by an execve.
 */
#ifndef TOLLGATE_GUARD_FOREIGN_SIGNALS_BPF_H
#define TOLLGATE_GUARD_FOREIGN_SIGNALS_BPF_H

#include "guard/holds.bpf.h"
#include "guard/parents.bpf.h"
#include "guard/state.bpf.h"

/* include/uapi/asm-generic/signal.h, include/linux/signal_types.h */
#define SIGHUP 1
#define SIGINT 2
#define SIGQUIT 3
#define SIGTERM 15
#define SIGTSTP 20
#define SIGTTIN 21
#define SIGTTOU 22
#define SEND_BY_KERNEL ((void *)1)
#define SIGNAL_BIT(signal) (1UL << ((signal) - 1))
#define STOP_SIGNALS                                                                               \
	(SIGNAL_BIT(SIGSTOP) | SIGNAL_BIT(SIGTSTP) | SIGNAL_BIT(SIGTTIN) | SIGNAL_BIT(SIGTTOU))
#define TERMINATION_SIGNALS                                                                        \
	(SIGNAL_BIT(SIGHUP) | SIGNAL_BIT(SIGINT) | SIGNAL_BIT(SIGQUIT) | SIGNAL_BIT(SIGTERM))
/* include/uapi/asm-generic/siginfo.h */
#define SI_KERNEL 0x80
/* include/linux/sched/signal.h */
#define SIGNAL_STOP_STOPPED 1

struct process_mark {
	u32 tgid;
	u32 foreign_stop;
	/* As in struct guard_cold; 0: only `foreign_stop` is to be set. */
	u32 grace_until;
	u32 is_by_kernel;
};

/* What `foreign_stop` becomes by a further stop; 0: another process has continued it. */
static __always_inline u32 added_stop(u32 before, u32 stop)
{
	u32 with_child = (before | stop) & FOREIGN_STOP_WITH_CHILD;

	before &= ~FOREIGN_STOP_WITH_CHILD;
	if (!stop)
		return 0;
	stop &= ~FOREIGN_STOP_WITH_CHILD;
	return with_child | (stop > before ? stop : before);
}

static long mark_thread(u32 i, struct process_mark *mark)
{
	struct thread_state *thread = thread_at(i);
	struct guard_cold *cold = guard_cold_at(i);

	if (thread->tgid != mark->tgid || !thread->task || !thread->guard.session)
		return 0;
	if (mark->grace_until) {
		if (mark->is_by_kernel && cold->had_kernel_grace)
			return 0;
		if (mark->is_by_kernel)
			cold->had_kernel_grace = 1;
		WRITE_ONCE(cold->grace_until, mark->grace_until);
	} else {
		WRITE_ONCE(cold->foreign_stop, added_stop(cold->foreign_stop, mark->foreign_stop));
		if (mark->foreign_stop & FOREIGN_STOP_WITH_CHILD)
			cold->ever_held = 1;
	}
	return 0;
}

static __always_inline bool outlives_leader(struct task_struct *leader)
{
	/* The first thread stays until all others are gone. */
	return (leader->flags & PF_EXITING) && BPF_CORE_READ(leader, signal, nr_threads) > 1;
}

/* Whether a thread of the process may be guarded. There are many slots to search for them. */
static __always_inline bool may_be_guarded(struct task_struct *task)
{
	u32 slot = process_slot(task);

	return slot ? thread_at(slot)->guard.session != 0 : outlives_leader(task->group_leader);
}

/* Whether a sender of signals is not guarded, or was never to be held. */
static __always_inline bool is_beyond_guard(struct task_struct *sender)
{
	struct thread_state *thread = thread_at(slot_of(sender));

	return !has(thread, GUARD) || exemption_of(thread->slot) == GUARD_EXEMPT;
}

/*
 * Whether Tollgate or the gate stops or continues a process by this signal: the guard's process,
 * its watchdog, or `guard off`. The kernel itself sends no SIGSTOP, so such a one is the gate's.
 */
static __always_inline bool is_by_guard(int signal, struct kernel_siginfo *info)
{
	struct task_struct *sender = bpf_get_current_task_btf();

	if (info <= (struct kernel_siginfo *)SEND_BY_KERNEL)
		return info && signal == SIGSTOP;
	/* bpf_send_signal_task() */
	if (BPF_CORE_READ(info, si_code) == SI_KERNEL)
		return signal == SIGSTOP;
	/* Root could end Tollgate as well. */
	return BPF_CORE_READ(info, si_code) == SI_QUEUE &&
	       BPF_CORE_READ(info, _sifields._rt._sigval.sival_int) == GUARD_SIGNAL &&
	       !BPF_CORE_READ(sender, cred, euid.val) && is_beyond_guard(sender);
}

/* The process was stopped before it was attached. */
static __always_inline void guard_note_stopped(struct thread_state *thread)
{
	struct task_struct *task = (void *)thread->task;

	guard_cold_of(thread)->foreign_stop =
		BPF_CORE_READ(task, signal, flags) & SIGNAL_STOP_STOPPED ?
			FOREIGN_STOP_CERTAIN | SIGSTOP :
			0;
}

/*
 * The thread stops. If the mark was cleared meanwhile, the signal is Tollgate's repetition of one
 * after which the process was continued.
 */
static __always_inline void guard_note_stop(struct thread_state *thread, struct task_struct *task)
{
	struct guard_cold *cold = guard_cold_of(thread);
	u32 signal;

	/* The stop of FOREIGN_STOP_WITH_CHILD alone is the guard's, whatever its signal is. */
	if (likely(!(cold->foreign_stop & ~FOREIGN_STOP_WITH_CHILD)))
		return;
	signal = BPF_CORE_READ(task, signal, group_exit_code);
	if (signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU)
		cold->foreign_stop = FOREIGN_STOP_CERTAIN | signal;
}

/* Whether a stop signal has its default effect. If not, its handler may stop the process later. */
static __always_inline bool is_default(int signal, struct task_struct *task)
{
	void *handler;

	if (signal == SIGSTOP)
		return true;
	if (signal == SIGTSTP)
		handler = BPF_CORE_READ(task, sighand, action[SIGTSTP - 1].sa.sa_handler);
	else if (signal == SIGTTIN)
		handler = BPF_CORE_READ(task, sighand, action[SIGTTIN - 1].sa.sa_handler);
	else
		handler = BPF_CORE_READ(task, sighand, action[SIGTTOU - 1].sa.sa_handler);
	return !handler;
}

static __always_inline void guard_foreign_stop(int signal, struct kernel_siginfo *info,
					       struct task_struct *task)
{
	struct process_mark mark = {
		.tgid = task->tgid,
		.foreign_stop = signal == SIGSTOP ? FOREIGN_STOP_CERTAIN | signal : signal,
	};

	if (!may_be_guarded(task) || (task->flags & PF_EXITING) || !is_default(signal, task))
		return;
	if (is_by_guard(signal, info)) {
		guard_expect_reaction(task);
		return;
	}
	if (info > (struct kernel_siginfo *)SEND_BY_KERNEL && is_reaction(info, task)) {
		mark.foreign_stop = FOREIGN_STOP_WITH_CHILD;
		/* Its own parent may do the same. */
		guard_expect_reaction(task);
	}
	bpf_loop(header.next_thread, mark_thread, &mark, 0);
}

static __always_inline void guard_foreign_continue(struct task_struct *task)
{
	struct process_mark mark = { .tgid = task->tgid };
	u32 slot = process_slot(task);

	if (slot ? guard_cold_at(slot)->foreign_stop : outlives_leader(task->group_leader))
		bpf_loop(header.next_thread, mark_thread, &mark, 0);
}

/*
 * Whether the kernel sends the signal on its own: a terminal was closed, Ctrl-C was pressed, or the
 * process's parent has ended (PR_SET_PDEATHSIG). The cause cannot be known. A process may have the
 * other end of its terminal, for instance.
 */
static __always_inline bool is_by_kernel(struct kernel_siginfo *info)
{
	return info <= (struct kernel_siginfo *)SEND_BY_KERNEL;
}

/*
 * Whether the sender of a signal may request that a process ends, and so free it of holds for some
 * seconds. The process itself may not, nor may a guarded thread with anomalies among its latest
 * calls. Otherwise, an attacker would free himself. A signal of a timer has no sender.
 */
static __always_inline bool may_terminate(struct kernel_siginfo *info, struct task_struct *task)
{
	struct task_struct *sender = bpf_get_current_task_btf();
	struct thread_state *thread;
	int code = SI_USER;

	if (info == SEND_BY_KERNEL)
		return true;
	/* Without information, it comes from a parent that ends. */
	if (info)
		code = BPF_CORE_READ(info, si_code);
	if ((code != SI_USER && code != SI_QUEUE && code != SI_TKILL) || sender->tgid == task->tgid)
		return false;
	thread = thread_at(slot_of(sender));
	return (!thread->guard.lfc && !thread->guard.held) || is_beyond_guard(sender);
}

static __always_inline void guard_terminate(struct kernel_siginfo *info, struct task_struct *task)
{
	struct process_mark mark = { .tgid = task->tgid, .is_by_kernel = is_by_kernel(info) };

	if (!may_be_guarded(task) || !may_terminate(info, task))
		return;
	/* mark_thread() checks each thread, but one that is being created has no mark yet. */
	if (mark.is_by_kernel && guard_cold_at(process_slot(task))->had_kernel_grace)
		return;
	mark.grace_until = (bpf_ktime_get_ns() + GUARD_GRACE_NS) >> GUARD_GRACE_SHIFT;
	bpf_loop(header.next_thread, mark_thread, &mark, 0);
}

#endif
