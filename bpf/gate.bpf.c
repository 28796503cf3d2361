// SPDX-License-Identifier: GPL-2.0
/*
 * The gate: one program a hook for all extensions. It finds the thread's state once, reads the clock once
 * a side, and calls the extensions that are compiled in (config.enabled) and apply to the thread
 * (its mask). A bystander costs a per-CPU load and a branch.
 */
#include "state.bpf.h"
#include "calls.bpf.h"
#include "guard.bpf.h"
#include "guard_before.bpf.h"
#include "guard_continue.bpf.h"
#include "lens.bpf.h"
#include "plugin.bpf.h"
#include "service_datagrams.bpf.h"
#include "service_files.bpf.h"
#include "service_sockets.bpf.h"
#include "service_told.bpf.h"
#include "tasks.bpf.h"

char LICENSE[] SEC("license") = "GPL";

/* Whether the call counts. `ctx`: only where plugins are. */
static __always_inline bool enters(struct thread_state *thread, struct pt_regs *regs, long id, void *ctx)
{
	bool is_denounced = false;
	struct task_struct *task;
	u32 call, before;

	if (!thread || !thread->mask || unlikely(retired()))
		return false;
	if (unlikely(thread->until_exec)) {
		if (!is_execve(call_slot(running_task(thread->task), id)))
			return false;
		thread->until_exec = 0;
	}
	if ((config.enabled & LENS) && unlikely(thread->in_call) && thread->generation == config.generation)
		lens_abandon(thread);
	thread->generation = config.generation;
	if (!(config.enabled & ASK_WHICH_CALL)) {
		thread->in_call = IN_SOME_CALL;
		return true;
	}
	thread->in_call = IN_CALL;
	task = running_task(thread->task);
	call = call_slot(task, id);
	before = thread->call;
	thread->call = call;
	if (has(thread, GUARD)) {
		if (ctx && plugin_chains[PLUGIN_GUARDS].first[thread->plugin_session & (SESSIONS - 1)])
			is_denounced = plugins_denounce(ctx, thread->plugin_session);
		if (guard_enter(thread, call, is_denounced) && ctx)
			plugins_judge(ctx, thread->plugin_session);
	}
	if (has(thread, SERVICE))
		service_enter(thread, regs, call, before);
	if (has(thread, LENS))
		lens_enter(thread, task, call);
	return true;
}

SEC("tp_btf/sys_enter")
int BPF_PROG(gate_enter, struct pt_regs *regs, long id)
{
	enters(current_thread(regs), regs, id, NULL);
	return 0;
}

/* Only where plugins are: a program that may go over to others begins and ends otherwise. */
SEC("?tp_btf/sys_enter")
int BPF_PROG(gate_enter_plugins, struct pt_regs *regs, long id)
{
	struct thread_state *thread = current_thread(regs);

	if (enters(thread, regs, id, ctx))
		plugins_run(ctx, &plugin_chains[PLUGIN_ENTERS], thread->plugin_session, &plugin_enters);
	return 0;
}

/*
 * An exit without an enter: a fork child's first return or a thread attached in mid-call (both have not
 * crossed yet: dropped), a call that seccomp or a tracer rejected, or one whose enter another generation
 * handled in the moment it retired.
 */
static __always_inline void exit_alone(struct thread_state *thread, struct pt_regs *regs, long result)
{
	u32 seen = thread->generation;
	u32 call;

	if (thread->until_exec)
		return;
	thread->generation = config.generation;
	if (!seen)
		return;
	if (seen != config.generation) {
		lose(thread->session, LOSS_HANDOVER);
		return;
	}
	if (has(thread, LENS)) {
		call = call_slot(running_task(thread->task), regs->orig_ax);
		lens_denied(thread, call, result);
	}
}

static __always_inline bool exits(struct thread_state *thread, struct pt_regs *regs, long result)
{
	u64 now = 0;

	if (!thread || !thread->mask)
		return false;
	if ((config.enabled & LENS) && thread->entered_ns)
		now = bpf_ktime_get_ns();
	if (unlikely(retired()))
		return false;
	if (unlikely(!thread->in_call)) {
		exit_alone(thread, regs, result);
		return false;
	}
	thread->in_call = 0;
	if (has(thread, LENS))
		lens_exit(thread, running_task(thread->task), result, now);
	if ((config.enabled & SERVICE_FILES) && has(thread, SERVICE))
		service_left(thread, result);
	return true;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(gate_exit, struct pt_regs *regs, long result)
{
	exits(current_thread(regs), regs, result);
	return 0;
}

SEC("?tp_btf/sys_exit")
int BPF_PROG(gate_exit_plugins, struct pt_regs *regs, long result)
{
	struct thread_state *thread = current_thread(regs);

	if (exits(thread, regs, result))
		plugins_run(ctx, &plugin_chains[PLUGIN_EXITS], thread->plugin_session, &plugin_exits);
	return 0;
}

/* Kernel threads and the daemon's own, which nobody gates, come and go: they compete with no service. */
static __always_inline void leaves(struct thread_state *thread, struct task_struct *task, struct cpu_state *cpu,
				   unsigned int state, u32 next_slot)
{
	if (thread && thread->in_call && has(thread, LENS) && !retired())
		lens_leave(thread, task, cpu, state, bpf_ktime_get_ns());
	if (thread && has(thread, SERVICE) && !retired())
		service_leave(thread, task, state, !state && next_slot);
	/* All threads of a process that stops, where only one gets the signal. */
	if (unlikely(thread && state & STATE_STOPPED) && has(thread, GUARD))
		guard_interrupted(thread, task);
}

static __always_inline void returns(struct thread_state *thread, struct task_struct *task)
{
	if (thread && thread->left_ns && has(thread, LENS) && !retired())
		lens_return(thread, task, bpf_ktime_get_ns());
	if (thread && has(thread, SERVICE) && !retired())
		service_return(thread, task);
}

static __noinline int switch_gated(bool preempt, struct task_struct *prev, struct task_struct *next,
				   unsigned int prev_state)
{
	struct cpu_state *cpu = this_cpu();
	u32 slot = likely(cpu->task == (u64)prev) ? cpu->slot : slot_of(prev), next_slot = slot_of(next);

	if (slot)
		leaves(thread_at(slot), prev, cpu, preempt ? 0 : prev_state, next_slot);
	note_running(cpu, next, next_slot);
	if (next_slot)
		returns(thread_at(next_slot), next);
	return 0;
}

/*
 * Bystanders come and go here at every switch of the machine: for them, three comparisons and a note. Not
 * BPF_PROG(), which would read the arguments first and have them saved in registers over the helper's call.
 */
SEC("tp_btf/sched_switch")
int gate_switch(u64 *ctx)
{
	struct cpu_state *cpu = this_cpu();
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];

	if (unlikely(cpu->task != (u64)prev || cpu->slot || *tag_of(next->pid)))
		return switch_gated(ctx[0], prev, next, ctx[3]);
	note_running(cpu, next, 0);
	return 0;
}

/* Whose plugins a task's are: none for a bystander, and for one that does not count yet. */
static __always_inline u32 plugin_session_of(struct task_struct *task)
{
	u32 slot = slot_of(task);

	return slot && !thread_at(slot)->until_exec ? thread_at(slot)->plugin_session : 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(gate_fork, struct task_struct *parent, struct task_struct *child)
{
	if (retired())
		return 0;
	task_forked(parent, child);
	if (config.enabled & PLUGIN)
		plugins_run(ctx, &plugin_chains[PLUGIN_FORKS], plugin_session_of(child), &plugin_forks);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(gate_exec, struct task_struct *task, int old_pid, struct linux_binprm *bprm)
{
	if (retired())
		return 0;
	task_executed(task, old_pid);
	if (config.enabled & PLUGIN)
		plugins_run(ctx, &plugin_chains[PLUGIN_EXECS], plugin_session_of(task), &plugin_execs);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(gate_task_exit, struct task_struct *task)
{
	u32 slot = slot_of(task);
	struct thread_state *thread = slot ? thread_at(slot) : NULL;
	u32 session;

	if (!thread || retired())
		return 0;
	if (thread->in_call && has(thread, LENS))
		lens_unfinished(thread);
	lens_slow_forget(thread);
	session = thread->until_exec ? 0 : thread->plugin_session;
	task_exited(thread, task, slot);
	if (config.enabled & PLUGIN)
		plugins_run(ctx, &plugin_chains[PLUGIN_ENDS], session, &plugin_ends);
	return 0;
}

/* Only where services are. */
SEC("tp_btf/sched_process_free")
int BPF_PROG(gate_task_free, struct task_struct *task)
{
	u32 slot = slot_of(task);

	if (slot && !retired())
		task_freed(thread_at(slot), task, slot);
	return 0;
}

/* Only where services are: since v6.3, 6e6eda44b939 ("sock: add tracepoint for send recv length"). */
SEC("?tp_btf/sock_recv_length")
int BPF_PROG(gate_received, struct sock *sk, int length, int flags)
{
	message_received(sk, length, flags);
	return 0;
}

SEC("?tp_btf/sock_send_length")
int BPF_PROG(gate_sent, struct sock *sk, int length, int flags)
{
	message_sent(sk, length);
	return 0;
}

/* Before that: functions that are not made part of others. This one comes before the message is on its way. */
SEC("?fexit/sock_recvmsg")
int BPF_PROG(gate_received_exit, struct socket *socket, void *message, int flags, int length)
{
	message_received(socket->sk, length, flags);
	return 0;
}

SEC("?fentry/security_socket_sendmsg")
int BPF_PROG(gate_sent_entry, struct socket *socket, void *message, int length)
{
	message_sent(socket->sk, length);
	return 0;
}

/* Only where services are. */
SEC("?tp_btf/inet_sock_set_state")
int BPF_PROG(gate_tcp, struct sock *sk, int before, int now)
{
	tcp_changed(sk, before, now);
	return 0;
}

/* Only where services are: what is sent over loopback devices, among others. */
SEC("?tp_btf/netif_rx")
int BPF_PROG(gate_packet, struct sk_buff *packet)
{
	datagram_sent(packet);
	return 0;
}

/* Only where services are: who receives by UDP is told from where it came. */
SEC("?cgroup/recvmsg4")
int gate_datagram_4(struct bpf_sock_addr *from)
{
	datagram_arrived(from, AF_INET);
	return 1;
}

SEC("?cgroup/recvmsg6")
int gate_datagram_6(struct bpf_sock_addr *from)
{
	datagram_arrived(from, AF_INET6);
	return 1;
}

/* Only where the guard is on. */
SEC("tp_btf/signal_deliver")
int BPF_PROG(gate_signal, int signal, void *info, struct k_sigaction *action)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 slot = slot_of(task);
	struct thread_state *thread = slot ? thread_at(slot) : NULL;

	if (thread && has(thread, GUARD) && !retired())
		guard_signal(thread, task, action);
	return 0;
}

/* Only where the guard is on, or services are. */
SEC("tp_btf/signal_generate")
int BPF_PROG(gate_signalled, int signal, struct kernel_siginfo *info, struct task_struct *task, int group, int result)
{
	if (retired())
		return 0;
	if ((config.enabled & GUARD) && signal == SIGCONT)
		guard_continued(task);
	if (config.enabled & SERVICE)
		service_signalled(signal, info, task, result);
	return 0;
}

/* Takes in tasks that already run: user space fills `adoptions`, reads the iterator, then visits each CPU. */
SEC("iter/task")
int gate_adopt(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;

	if (task)
		task_adopted(task);
	return 0;
}

/* All members of services, with what they have used since they were last charged, for user space to read. */
SEC("iter/task")
int gate_members(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	u32 slot = task ? slot_of(task) : 0;

	if (slot && has(thread_at(slot), SERVICE) && !member_of(thread_at(slot))->is_exiting)
		service_tell(ctx->meta->seq, thread_at(slot), task);
	return 0;
}

/* All sockets that somebody has sent or received by. */
SEC("iter/bpf_sk_storage_map")
int gate_sockets(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	/* Each read of the context may be NULL again to the verifier. */
	struct service_socket *socket = ctx->value;
	struct sock *sk = ctx->sk;

	if (sk && socket)
		service_tell_socket(ctx->meta->seq, sk, socket);
	return 0;
}

/* Asks rules that have come into force of all members. */
SEC("iter/task")
int gate_ask(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	u32 slot = task ? slot_of(task) : 0;

	if (slot && has(thread_at(slot), SERVICE))
		service_found(thread_at(slot), task);
	return 0;
}
