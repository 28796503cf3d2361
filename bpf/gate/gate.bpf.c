// SPDX-License-Identifier: GPL-2.0
/*
 * The gate: one program at each hook for all extensions. It finds the thread's state once, reads
 * the clock once at the beginning and once at the end of a call, and calls the extensions that are
 * compiled in (config.enabled) and apply to the thread (its mask). A bystander costs a per-CPU load
 * and a branch. wire/programs.h says which of the programs are loaded.
 */
#include "gate/cgroups.bpf.h"
#include "gate/crossing.bpf.h"
#include "gate/switch.bpf.h"
#include "gate/tasks.bpf.h"
#include "guard/precall.bpf.h"
#include "service/iter.bpf.h"

char LICENSE[] SEC("license") = "GPL";

SEC("tp_btf/sys_enter")
int BPF_PROG(gate_sys_enter, struct pt_regs *regs, long id)
{
	on_sys_enter(current_thread(regs), regs, id, NULL);
	return 0;
}

/* Loaded only with plugins, because tail calls change a program's prologue and epilogue. */
SEC("?tp_btf/sys_enter")
int BPF_PROG(gate_sys_enter_plugins, struct pt_regs *regs, long id)
{
	struct thread_state *thread = current_thread(regs);

	if (on_sys_enter(thread, regs, id, ctx))
		plugins_run(ctx, &plugin_chains[PLUGIN_HOOK_ENTER], thread->plugin_session,
			    &plugin_enter);
	return 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(gate_sys_exit, struct pt_regs *regs, long result)
{
	on_sys_exit(current_thread(regs), regs, result);
	return 0;
}

SEC("?tp_btf/sys_exit")
int BPF_PROG(gate_sys_exit_plugins, struct pt_regs *regs, long result)
{
	struct thread_state *thread = current_thread(regs);

	if (on_sys_exit(thread, regs, result))
		plugins_run(ctx, &plugin_chains[PLUGIN_HOOK_EXIT], thread->plugin_session,
			    &plugin_exit);
	return 0;
}

/*
 * Every context switch of the machine passes here. For a bystander, it costs three comparisons and
 * an update of the per-CPU state. This does not use BPF_PROG(), which would read all arguments
 * before it calls bpf_get_smp_processor_id(), and keep them in registers across the call.
 */
SEC("tp_btf/sched_switch")
int gate_sched_switch(u64 *ctx)
{
	struct cpu_state *cpu = this_cpu();
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];

	if (unlikely(cpu->task != (u64)prev || needs_handlers(cpu) ||
		     *pid_bucket(next->pid)))
		return sched_switch_gated(ctx);
	set_current(cpu, next, 0);
	return 0;
}

/* Only with pace and LENS_WHY. */
SEC("?tp_btf/sched_waking")
int BPF_PROG(gate_waking, struct task_struct *task)
{
	u32 slot = slot_of(task);

	if (slot && !is_retired())
		call_waking(ctx, thread_at(slot));
	return 0;
}

/* Only with LENS_WHY. Since v5.19: 16edd9b511a1 ("locking: Add lock contention tracepoints"). */
SEC("?tp_btf/contention_begin")
int BPF_PROG(gate_contention, void *lock, unsigned int flags)
{
	if (!is_retired())
		call_contention((u64)lock, flags);
	return 0;
}

SEC("?tp_btf/contention_end")
int BPF_PROG(gate_contention_end, void *lock)
{
	if (!is_retired())
		call_contention_end((u64)lock);
	return 0;
}

/* Only with pace. */
SEC("?tp_btf/cpu_frequency")
int BPF_PROG(gate_frequency, unsigned int khz, unsigned int cpu)
{
	if (!is_retired())
		call_frequency(khz, cpu);
	return 0;
}

/* The session whose plugins a task has; 0: it is a bystander, or does not count yet. */
static __always_inline u32 plugin_session_of(struct task_struct *task)
{
	u32 slot = slot_of(task);

	return slot && !thread_at(slot)->until_exec ? thread_at(slot)->plugin_session : 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(gate_fork, struct task_struct *parent, struct task_struct *child)
{
	if (is_retired())
		return 0;
	task_forked(parent, child);
	if (config.enabled & PLUGIN)
		plugins_run(ctx, &plugin_chains[PLUGIN_HOOK_FORK], plugin_session_of(child),
			    &plugin_fork);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(gate_exec, struct task_struct *task, int old_pid, struct linux_binprm *bprm)
{
	if (is_retired())
		return 0;
	task_executed(task, old_pid, bprm);
	if (config.enabled & PLUGIN)
		plugins_run(ctx, &plugin_chains[PLUGIN_HOOK_EXEC], plugin_session_of(task),
			    &plugin_exec);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(gate_task_exit, struct task_struct *task)
{
	u32 slot = slot_of(task);
	struct thread_state *thread = slot ? thread_at(slot) : NULL;
	u32 session;

	if (!thread || is_retired())
		return 0;
	session = thread->until_exec ? 0 : thread->plugin_session;
	task_exited(thread, task, slot);
	if (config.enabled & PLUGIN)
		plugins_run(ctx, &plugin_chains[PLUGIN_HOOK_END], session, &plugin_end);
	return 0;
}

/* Only with services. */
SEC("tp_btf/sched_process_free")
int BPF_PROG(gate_task_free, struct task_struct *task)
{
	u32 slot = slot_of(task);

	if (slot && !is_retired())
		task_freed(thread_at(slot), task, slot);
	return 0;
}

/* Only with services. Since v6.3: 6e6eda44b939 ("sock: add tracepoint for send recv length"). */
SEC("?tp_btf/sock_recv_length")
int BPF_PROG(gate_sock_recv, struct sock *sk, int length, int flags)
{
	call_sock_recv(sk, length, flags);
	return 0;
}

SEC("?tp_btf/sock_send_length")
int BPF_PROG(gate_sock_send, struct sock *sk, int length, int flags)
{
	call_sock_send(sk, length);
	return 0;
}

/*
 * Before v6.3, the programs are on functions that the compiler does not inline. The program for
 * sending runs before the message is sent.
 */
SEC("?fexit/sock_recvmsg")
int BPF_PROG(gate_recvmsg_exit, struct socket *socket, void *message, int flags, int length)
{
	call_sock_recv(socket->sk, length, flags);
	return 0;
}

SEC("?fentry/security_socket_sendmsg")
int BPF_PROG(gate_sendmsg_entry, struct socket *socket, void *message, int length)
{
	call_sock_send(socket->sk, length);
	return 0;
}

/* Only with services. */
SEC("?tp_btf/inet_sock_set_state")
int BPF_PROG(gate_tcp_state, struct sock *sk, int before, int now)
{
	call_tcp_state(sk, before, now);
	return 0;
}

/*
 * Only with services. Among others, every packet that is sent over a loopback device passes here.
 */
SEC("?tp_btf/netif_rx")
int BPF_PROG(gate_netif_rx, struct sk_buff *packet)
{
	call_netif_rx(packet);
	return 0;
}

/* Only with services: the source of a datagram, for the thread that receives it. */
SEC("?cgroup/recvmsg4")
int gate_recvmsg4(struct bpf_sock_addr *from)
{
	call_recvmsg(from, AF_INET);
	return 1;
}

SEC("?cgroup/recvmsg6")
int gate_recvmsg6(struct bpf_sock_addr *from)
{
	call_recvmsg(from, AF_INET6);
	return 1;
}

/* Only with the lens. An io_uring request was prepared, and is about to be issued. */
SEC("?tp_btf/io_uring_submit_req")
int BPF_PROG(gate_request, struct io_kiocb *request)
{
	if (!is_retired())
		call_request(request, request->opcode);
	return 0;
}

/* Before v6.4: see lib/compat.bpf.h. */
SEC("?tp_btf/io_uring_submit_sqe")
int BPF_PROG(gate_request_sqe, struct io_kiocb *request)
{
	if (!is_retired())
		call_request(request, request->opcode);
	return 0;
}

/* A request that could not be prepared. The kernel replaces an operation that it does not know. */
SEC("?tp_btf/io_uring_req_failed")
int BPF_PROG(gate_request_failed, const struct io_uring_sqe *entry, struct io_kiocb *request)
{
	if (!is_retired())
		call_request_failed(request, entry->opcode);
	return 0;
}

SEC("?tp_btf/io_uring_complete")
int gate_request_done(u64 *ctx)
{
	struct io_uring_cqe *completion = (void *)ctx[2];

	if (is_retired())
		return 0;
	if (COMPLETION_HAS_VALUES)
		call_request_done(ctx[0], ctx[1], ctx[2], ctx[3]);
	else
		call_request_done(ctx[0], ctx[1], completion->user_data, completion->res);
	return 0;
}

SEC("?tp_btf/io_uring_cqe_overflow")
int BPF_PROG(gate_request_lost, void *ring, u64 user_data, s32 result, u32 flags)
{
	if (!is_retired())
		call_request_lost(flags);
	return 0;
}

/* Only with sessions of control groups. `task` is the first thread if its whole process moves. */
SEC("?tp_btf/cgroup_attach_task")
int BPF_PROG(gate_cgroup_attach, struct cgroup *cgroup, const char *path, struct task_struct *task,
	     bool is_process)
{
	if (!is_retired())
		cgroup_entered(cgroup, task, is_process);
	return 0;
}

/*
 * A new task, before it runs. This is not a part of gate_fork, because both together need more than
 * the 512 bytes of stack.
 */
SEC("?tp_btf/sched_wakeup_new")
int BPF_PROG(gate_new_task, struct task_struct *task)
{
	if (!is_retired())
		cgroup_new_task(task);
	return 0;
}

SEC("?tp_btf/cgroup_mkdir")
int BPF_PROG(gate_cgroup_mkdir, struct cgroup *cgroup, const char *path)
{
	if (!is_retired())
		cgroup_made(cgroup, path);
	return 0;
}

SEC("?tp_btf/cgroup_rmdir")
int BPF_PROG(gate_cgroup_rmdir, struct cgroup *cgroup, const char *path)
{
	if (!is_retired())
		cgroup_removed(cgroup);
	return 0;
}

/* Only with flame graphs of processor time: a timer of one session, which is the cookie. */
SEC("?perf_event")
int gate_flame_timer(void *ctx)
{
	lens_flame_timer(ctx, bpf_get_attach_cookie(ctx));
	return 0;
}

/* Only with the guard. */
SEC("tp_btf/signal_deliver")
int BPF_PROG(gate_signal_deliver, int signal, void *info, struct k_sigaction *action)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 slot = slot_of(task);
	struct thread_state *thread = slot ? thread_at(slot) : NULL;

	if (thread && !is_retired())
		call_sig_deliver(thread, task, action);
	return 0;
}

/* Only with the guard or services. */
SEC("tp_btf/signal_generate")
int BPF_PROG(gate_signal_generate, int signal, struct kernel_siginfo *info,
	     struct task_struct *task, int group, int result)
{
	if (is_retired())
		return 0;
	call_sig_generate(signal, info, task, result);
	return 0;
}

/*
 * Attaches tasks that already run. User space fills `attach_requests` and reads the iterator. Then
 * user space runs on each CPU once, because the gate sees a running thread only after a switch to
 * it.
 */
SEC("iter/task")
int gate_attach_tasks(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;

	if (task)
		task_attached(task);
	return 0;
}

/* The slot of an iterator's task; 0: there is none, or the extension does not apply to it. */
static __always_inline u32 slot_with(struct task_struct *task, u32 extension)
{
	u32 slot = task ? slot_of(task) : 0;

	return slot && has(thread_at(slot), extension) ? slot : 0;
}

/* Adds the kernel's ticks to the accounts of all threads that have not ended. */
SEC("iter/task")
int gate_iter_ticks(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	u32 slot = slot_with(task, LENS);

	if (slot)
		lens_read_ticks(thread_at(slot), task);
	return 0;
}

/* All members of services, with their usage since the last charge, for user space to read. */
SEC("iter/task")
int gate_iter_members(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	u32 slot = slot_with(task, SERVICE);

	if (slot && !member_of(thread_at(slot))->is_exiting)
		service_write_member(ctx->meta->seq, thread_at(slot), task);
	return 0;
}

/*
 * All open sockets by which a thread has sent or received. It iterates over files, because some
 * machines refuse iterators over socket storage by a policy. So it writes a socket once for each
 * descriptor of it.
 */
SEC("iter/task_file")
int gate_iter_sockets(struct bpf_iter__task_file *ctx)
{
	struct file *file = ctx->file;
	struct socket *socket = file ? bpf_sock_from_file(file) : NULL;
	struct sock *sk = socket ? socket->sk : NULL;
	struct service_socket *state;

	if (!sk)
		return 0;
	state = bpf_sk_storage_get(&service_sockets, sk, NULL, 0);
	if (state)
		service_write_socket(ctx->meta->seq, sk, state);
	return 0;
}

/* Matches newly active rules for all members. */
SEC("iter/task")
int gate_iter_reclassify(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	u32 slot = slot_with(task, SERVICE);

	if (slot)
		service_reclassify(thread_at(slot), task);
	return 0;
}
