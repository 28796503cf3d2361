/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Which extensions are called at which hook of the gate, in this order. `when(BIT, EXTENSION)`
 * calls the handler EXTENSION_<hook> for a thread that has the extension; `always(EXTENSION)`
 * leaves the test to the handler.
 */
#ifndef TOLLGATE_GATE_HOOKS_BPF_H
#define TOLLGATE_GATE_HOOKS_BPF_H

#include "gate/events.bpf.h"
#include "guard/hooks.bpf.h"
#include "guard/sigcont.bpf.h"
#include "lens/hooks.bpf.h"
#include "plugin/hooks.bpf.h"
#include "service/files.bpf.h"
#include "service/hooks.bpf.h"
#include "service/messages.bpf.h"

/*
 * Plugins have handlers before and after the guard, and for the plugins at enter. The lens is last:
 * it reads the clock.
 */
#define AT_SYS_ENTER(when, always)                                                                 \
	always(plugin_guard)                                                                       \
	when(GUARD, guard)                                                                         \
	always(plugin_verdict)                                                                     \
	when(SERVICE, service)                                                                     \
	when(LENS, plugin_timed)                                                                   \
	when(LENS, lens)
#define AT_SYS_EXIT(when, always)                                                                  \
	when(LENS, lens)                                                                           \
	when(SERVICE, service)
/* A call that only its end shows: seccomp or a tracer rejected it. */
#define AT_SYS_EXIT_DENIED(when, always)                                                           \
	when(LENS, lens)
#define AT_SWITCH_OUT(when, always)                                                                \
	when(LENS, lens)                                                                           \
	when(SERVICE, service)                                                                     \
	always(guard)
#define AT_SWITCH_IN(when, always)                                                                 \
	when(LENS, lens)                                                                           \
	when(SERVICE, service)
#define AT_EXEC(when, always)                                                                      \
	when(GUARD, guard)                                                                         \
	when(SERVICE, service)
#define AT_TASK_EXIT(when, always)                                                                 \
	always(lens)                                                                               \
	when(GUARD, guard)                                                                         \
	when(SERVICE, service)
#define AT_TASK_FREE(when, always)                                                                 \
	when(SERVICE, service)
#define AT_SIG_DELIVER(when, always)                                                               \
	when(GUARD, guard)
/* From here on, the handlers find the thread themselves. */
#define AT_SIG_GENERATE(always)                                                                    \
	always(guard)                                                                              \
	always(service)
#define AT_SOCK_RECV(always)                                                                       \
	always(service)
#define AT_SOCK_SEND(always)                                                                       \
	always(service)
#define AT_TCP_STATE(always)                                                                       \
	always(service)
#define AT_NETIF_RX(always)                                                                        \
	always(service)
#define AT_RECVMSG(always)                                                                         \
	always(service)

#define CALL_SYS_ENTER(extension) extension##_sys_enter(at);
#define WHEN_SYS_ENTER(bit, extension)                                                             \
	if (has(at->thread, bit)) CALL_SYS_ENTER(extension)
static __always_inline void call_sys_enter(struct crossing *at)
{
	AT_SYS_ENTER(WHEN_SYS_ENTER, CALL_SYS_ENTER)
}

#define CALL_SYS_EXIT(extension) extension##_sys_exit(at);
#define WHEN_SYS_EXIT(bit, extension)                                                              \
	if (has(at->thread, bit)) CALL_SYS_EXIT(extension)
static __always_inline void call_sys_exit(struct crossing *at)
{
	AT_SYS_EXIT(WHEN_SYS_EXIT, CALL_SYS_EXIT)
}

#define CALL_SYS_EXIT_DENIED(extension) extension##_sys_exit_denied(at);
#define WHEN_SYS_EXIT_DENIED(bit, extension)                                                       \
	if (has(at->thread, bit)) CALL_SYS_EXIT_DENIED(extension)
static __always_inline void call_sys_exit_denied(struct crossing *at)
{
	AT_SYS_EXIT_DENIED(WHEN_SYS_EXIT_DENIED, CALL_SYS_EXIT_DENIED)
}

#define CALL_SWITCH_OUT(extension) extension##_switch_out(at);
#define WHEN_SWITCH_OUT(bit, extension)                                                            \
	if (has(at->thread, bit)) CALL_SWITCH_OUT(extension)
static __always_inline void call_switch_out(struct switching *at)
{
	AT_SWITCH_OUT(WHEN_SWITCH_OUT, CALL_SWITCH_OUT)
}

#define CALL_SWITCH_IN(extension) extension##_switch_in(at);
#define WHEN_SWITCH_IN(bit, extension)                                                             \
	if (has(at->thread, bit)) CALL_SWITCH_IN(extension)
static __always_inline void call_switch_in(struct switching *at)
{
	AT_SWITCH_IN(WHEN_SWITCH_IN, CALL_SWITCH_IN)
}

#define CALL_EXEC(extension) extension##_exec(thread);
#define WHEN_EXEC(bit, extension)                                                                  \
	if (has(thread, bit)) CALL_EXEC(extension)
static __always_inline void call_exec(struct thread_state *thread)
{
	AT_EXEC(WHEN_EXEC, CALL_EXEC)
}

#define CALL_TASK_EXIT(extension) extension##_task_exit(thread, task);
#define WHEN_TASK_EXIT(bit, extension)                                                             \
	if (has(thread, bit)) CALL_TASK_EXIT(extension)
static __always_inline void call_task_exit(struct thread_state *thread, struct task_struct *task)
{
	AT_TASK_EXIT(WHEN_TASK_EXIT, CALL_TASK_EXIT)
}

#define CALL_TASK_FREE(extension) extension##_task_free(thread, task);
#define WHEN_TASK_FREE(bit, extension)                                                             \
	if (has(thread, bit)) CALL_TASK_FREE(extension)
static __always_inline void call_task_free(struct thread_state *thread, struct task_struct *task)
{
	AT_TASK_FREE(WHEN_TASK_FREE, CALL_TASK_FREE)
}

#define CALL_SIG_DELIVER(extension) extension##_sig_deliver(thread, task, action);
#define WHEN_SIG_DELIVER(bit, extension)                                                           \
	if (has(thread, bit)) CALL_SIG_DELIVER(extension)
static __always_inline void call_sig_deliver(struct thread_state *thread, struct task_struct *task,
					     struct k_sigaction *action)
{
	AT_SIG_DELIVER(WHEN_SIG_DELIVER, CALL_SIG_DELIVER)
}

#define CALL_SIG_GENERATE(extension) extension##_sig_generate(signal, info, task, result);
static __always_inline void call_sig_generate(int signal, struct kernel_siginfo *info,
					      struct task_struct *task, int result)
{
	AT_SIG_GENERATE(CALL_SIG_GENERATE)
}

#define CALL_SOCK_RECV(extension) extension##_sock_recv(sk, length, flags);
static __always_inline void call_sock_recv(struct sock *sk, int length, int flags)
{
	AT_SOCK_RECV(CALL_SOCK_RECV)
}

#define CALL_SOCK_SEND(extension) extension##_sock_send(sk, length);
static __always_inline void call_sock_send(struct sock *sk, int length)
{
	AT_SOCK_SEND(CALL_SOCK_SEND)
}

#define CALL_TCP_STATE(extension) extension##_tcp_state(sk, before, now);
static __always_inline void call_tcp_state(struct sock *sk, int before, int now)
{
	AT_TCP_STATE(CALL_TCP_STATE)
}

#define CALL_NETIF_RX(extension) extension##_netif_rx(packet);
static __always_inline void call_netif_rx(struct sk_buff *packet)
{
	AT_NETIF_RX(CALL_NETIF_RX)
}

#define CALL_RECVMSG(extension) extension##_recvmsg(from, family);
static __always_inline void call_recvmsg(struct bpf_sock_addr *from, u32 family)
{
	AT_RECVMSG(CALL_RECVMSG)
}

#endif
