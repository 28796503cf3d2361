/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Signals: a handler begins with an empty window, and a call that a signal interrupts may be
 * restarted.
 */
#ifndef TOLLGATE_GUARD_SIGNALS_BPF_H
#define TOLLGATE_GUARD_SIGNALS_BPF_H

#include "gate/calls.bpf.h"
#include "guard/state.bpf.h"

/* include/uapi/asm-generic/signal.h, include/linux/errno.h */
#define SIG_IGNORE 1
#define EINTR 4
#define SA_RESTART 0x10000000
#define ERESTARTSYS 512
#define ERESTARTNOINTR 513
#define ERESTARTNOHAND 514
#define ERESTART_RESTARTBLOCK 516

/* A signal handler returns: the thread continues the window that the signal interrupted. */
static __always_inline void handler_return(struct thread_state *thread)
{
	struct guard_cold *cold = guard_cold_of(thread);
	u64 window = cold->interrupted[0];
	u32 i;

	for (i = 0; i < GUARD_HANDLERS - 1; i++)
		cold->interrupted[i] = cold->interrupted[i + 1];
	thread->guard.handlers--;
	thread->guard.restart = thread->guard.restart >> 1 & ~GUARD_RESTART_EXPECTED;
	if (window & GUARD_RESTARTS)
		thread->guard.restart |= GUARD_RESTART_EXPECTED;
	thread->guard.window = window & GUARD_WINDOW_MASK;
}

/* A handler begins with an empty window. `will_restart`: the interrupted call is restarted. */
static __always_inline void handler_enter(struct thread_state *thread, bool will_restart)
{
	struct guard_cold *cold = guard_cold_of(thread);
	u32 i;

	for (i = GUARD_HANDLERS - 1; i > 0; i--)
		cold->interrupted[i] = cold->interrupted[i - 1];
	cold->interrupted[0] = thread->guard.window | (will_restart ? GUARD_RESTARTS : 0);
	/*
	 * If there are too many handlers, the outermost window is dropped: a program that leaves
	 * handlers by longjmp never returns from them.
	 */
	if (thread->guard.handlers < GUARD_HANDLERS)
		thread->guard.handlers++;
	thread->guard.restart = (thread->guard.restart & ~GUARD_RESTART_EXPECTED) << 1 &
				((1 << (GUARD_HANDLERS + 2)) - 1);
	thread->guard.window = 0;
}

/*
 * A thread stops in a call, or a signal without a handler wakes it. If the result of the call is a
 * restart code (ERESTARTSYS and the like), the kernel restarts the call. After EINTR, the program
 * usually makes the call again itself.
 */
static __always_inline void guard_mark_restart(struct thread_state *thread,
					       struct task_struct *task)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(task);
	long result = -(long)regs->ax;

	if ((long)regs->orig_ax < 0)
		return;
	if (result == ERESTARTSYS || result == ERESTARTNOINTR || result == ERESTARTNOHAND ||
	    result == ERESTART_RESTARTBLOCK ||
	    (result == EINTR && precall_of(thread->call) & PRECALL_DEFER))
		thread->guard.restart |= GUARD_RESTART_EXPECTED;
}

/* A signal is delivered. The kernel restarts the call as in arch/x86/kernel/signal.c. */
static __always_inline void guard_sig_deliver(struct thread_state *thread, struct task_struct *task,
					      struct k_sigaction *action)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(task);
	bool in_call = (long)regs->orig_ax >= 0;
	long result = -(long)regs->ax;

	if ((u64)action->sa.sa_handler <= SIG_IGNORE)
		guard_mark_restart(thread, task);
	else
		handler_enter(thread, in_call && (result == ERESTARTNOINTR ||
						  (result == ERESTARTSYS &&
						   (action->sa.sa_flags & SA_RESTART))));
}

#endif
