/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The extensions that are called at each hook of the gate, in their order. A handler is named
 * EXTENSION_<hook>. It runs if the thread has the extension. A handler that is called without a
 * condition here tests this itself.
 */
#ifndef TOLLGATE_GATE_HOOKS_BPF_H
#define TOLLGATE_GATE_HOOKS_BPF_H

#include "gate/events.bpf.h"
#include "guard/hooks.bpf.h"
#include "guard/sigcont.bpf.h"
#include "guard/state.bpf.h"
#include "lens/hooks.bpf.h"
#include "lens/io_uring.bpf.h"
#include "lens/state.bpf.h"
#include "lens/why.bpf.h"
#include "pace/hooks.bpf.h"
#include "plugin/hooks.bpf.h"
#include "service/files.bpf.h"
#include "service/hooks.bpf.h"
#include "service/messages.bpf.h"

/*
 * Plugins run before the guard, after it, and before the lens. The lens is last, because it reads
 * the clock.
 */
static __always_inline void call_sys_enter(struct crossing *at)
{
	plugin_guard_sys_enter(at);
	if (has(at->thread, GUARD))
		guard_sys_enter(at);
	plugin_verdict_sys_enter(at);
	if (has(at->thread, SERVICE))
		service_sys_enter(at);
	if (has(at->thread, PACE))
		pace_sys_enter(at);
	if (has(at->thread, LENS))
		plugin_timed_sys_enter(at);
	if (has(at->thread, LENS))
		lens_sys_enter(at);
	else if (config.enabled & LENS)
		at->thread->in_call = IN_CALL_BEFORE_LENS;
}

static __always_inline void call_sys_exit(struct crossing *at)
{
	if (has(at->thread, LENS))
		lens_sys_exit(at);
	if (has(at->thread, SERVICE))
		service_sys_exit(at);
	if (has(at->thread, PACE))
		pace_sys_exit(at);
}

/* A call that seccomp or a tracer has rejected. Only its end is reported. */
static __always_inline void call_sys_exit_denied(struct crossing *at)
{
	if (has(at->thread, LENS))
		lens_sys_exit_denied(at);
}

/* The end of a call that the thread was in when it began to count. */
static __always_inline void call_sys_exit_unseen(struct thread_state *thread)
{
	if (has(thread, LENS))
		lens_sys_exit_unseen(thread);
}

/* From now on, the thread counts in its row. */
static __always_inline void call_begin_to_count(struct thread_state *thread,
						struct task_struct *task)
{
	if (config.enabled & LENS)
		lens_begin_life(thread, task, has(thread, GUARD) && guard_is_held(thread));
	in_band_note_image(thread, task);
}

/* The current thread executes a program, and is about to count in another row of its session. */
static __always_inline void call_change_command(struct thread_state *thread)
{
	if (has(thread, LENS) && !thread->until_exec)
		lens_split_life(thread->slot);
}

/* The thread is about to count in another row. It is not the current one. */
static __always_inline void call_leave_row(struct thread_state *thread, struct task_struct *task)
{
	if (!has(thread, LENS))
		lens_note_unseen_call(thread, task);
	else if (!thread->until_exec)
		lens_leave_row(thread, task);
}

static __always_inline void call_switch_out(struct switching *at)
{
	at->is_held = has(at->thread, GUARD) && guard_is_held(at->thread);
	if (has(at->thread, LENS))
		lens_switch_out(at);
	if (has(at->thread, SERVICE))
		service_switch_out(at);
	guard_switch_out(at);
	if (has(at->thread, PACE))
		pace_switch_out(at);
}

static __always_inline void call_switch_in(struct switching *at)
{
	if (has(at->thread, LENS))
		lens_switch_in(at);
	if (has(at->thread, SERVICE))
		service_switch_in(at);
	if (has(at->thread, PACE))
		pace_switch_in(at);
}

/* A switch to any task, on a processor that is watched. */
static __always_inline void call_watched_switch(struct cpu_state *cpu, struct task_struct *next)
{
	if ((config.enabled & PACE) && unlikely(cpu->is_watched) && !is_retired())
		pace_watched_switch(cpu, next);
}

static __always_inline void call_exec(struct thread_state *thread)
{
	if (config.enabled & LENS_IN_BAND)
		lens_exec(thread);
	if (has(thread, GUARD))
		guard_exec(thread);
	if (has(thread, SERVICE))
		service_exec(thread);
	if (has(thread, PACE))
		pace_exec(thread);
}

/*
 * A slot gets a thread. The handlers are called even if these programs do not have the extension: a
 * later generation may add it while the thread lives. It must then not find the state of the slot's
 * previous thread.
 */
static __always_inline void call_new_thread(u32 slot)
{
	lens_new_thread(slot);
	if (config.enabled & LENS_WHY)
		why_new_thread(slot);
	guard_new_thread(slot);
}

static __always_inline void call_join(struct joining *at)
{
	plugin_join(at);
	guard_join(at);
	pace_join(at);
}

/* A thread is new. `parent` is the gated thread that has created it, or NULL if a bystander has. */
static __always_inline void call_fork(struct thread_state *thread, struct thread_state *parent)
{
	/* 6.1's verifier must see the comparison with NULL. */
	barrier_var(parent);
	if (parent && has(thread, GUARD))
		guard_fork(thread, parent);
	service_fork(thread, parent);
	if (parent && has(thread, PACE))
		pace_fork(thread, parent);
}

static __always_inline void call_task_exit(struct thread_state *thread, struct task_struct *task)
{
	lens_task_exit(thread, task);
	if (has(thread, GUARD))
		guard_task_exit(thread, task);
	if (has(thread, SERVICE))
		service_task_exit(thread, task);
	if (has(thread, PACE))
		pace_task_exit(thread);
}

static __always_inline void call_task_free(struct thread_state *thread, struct task_struct *task)
{
	if (has(thread, SERVICE))
		service_task_free(thread, task);
}

static __always_inline void call_sig_deliver(struct thread_state *thread, struct task_struct *task,
					     struct k_sigaction *action)
{
	if (has(thread, GUARD))
		guard_sig_deliver(thread, task, action);
}

static __always_inline void call_waking(void *ctx, struct thread_state *thread)
{
	if (has(thread, LENS_WHY))
		lens_waking(ctx, thread);
	if (has(thread, PACE))
		pace_waking(thread);
}

/* From here on, the handlers find the thread themselves. */
static __always_inline void call_sig_generate(int signal, struct kernel_siginfo *info,
					      struct task_struct *task, int result)
{
	guard_sig_generate(signal, info, task, result);
	service_sig_generate(signal, info, task, result);
}

static __always_inline void call_sock_recv(struct sock *sk, int length, int flags)
{
	service_sock_recv(sk, length, flags);
}

static __always_inline void call_sock_send(struct sock *sk, int length)
{
	service_sock_send(sk, length);
}

static __always_inline void call_tcp_state(struct sock *sk, int before, int now)
{
	service_tcp_state(sk, before, now);
}

static __always_inline void call_netif_rx(struct sk_buff *packet)
{
	service_netif_rx(packet);
}

static __always_inline void call_request(struct io_kiocb *request, u32 operation)
{
	lens_request(request, operation);
}

static __always_inline void call_request_failed(struct io_kiocb *request, u32 operation)
{
	lens_request_failed(request, operation);
}

static __always_inline void call_request_done(u64 ring, u64 address, u64 user_data, s32 result)
{
	lens_request_done(ring, address, user_data, result);
}

static __always_inline void call_request_lost(u32 flags)
{
	lens_request_lost(flags);
}

static __always_inline void call_contention(u64 lock, u32 flags)
{
	lens_contention(lock, flags);
}

static __always_inline void call_contention_end(u64 lock)
{
	lens_contention_end(lock);
}

static __always_inline void call_frequency(u32 khz, u32 cpu)
{
	pace_frequency(khz, cpu);
}

static __always_inline void call_recvmsg(struct bpf_sock_addr *from, u32 family)
{
	service_recvmsg(from, family);
}

#endif
