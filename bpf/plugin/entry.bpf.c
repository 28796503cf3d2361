// SPDX-License-Identifier: GPL-2.0
/*
 * Enters the plugins of a process at a hook of control groups. The programs are attached to the
 * root of the hierarchy, so every task of the machine passes them. Each task runs the plugins of
 * its session, as at the hooks of the gate, whose maps these programs use. A process that has
 * plugins for the whole machine only enters them without a look-up
 * (crates/kernel/src/plugin/hook.rs).
 */
#include "gate/threads.bpf.h"
#include "plugin/chain.bpf.h"

char LICENSE[] SEC("license") = "GPL";

/* The process's own chain at this hook: crates/kernel/src/plugin/chain.rs makes these maps. */
struct plugin_chain entry_chain SEC(".bss.chain");
PLUGIN_MAP(plugin_slots);

/*
 * The session whose plugins the task runs; 0: it is a bystander, or does not count yet. The kernel
 * makes calls of io_uring in threads whose creation is not reported. They count as their process.
 */
static __always_inline u32 session_of_current(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 slot = slot_of(task);
	struct thread_state *thread;

	if (!slot)
		slot = slot_of(task->group_leader);
	thread = thread_at(slot);
	return slot && thread->mask && !thread->until_exec ? thread->plugin_session : 0;
}

#define ENTRY(hook)                                                                                \
	SEC("?cgroup/" #hook) int enter_##hook(void *ctx)                                          \
	{                                                                                          \
		plugins_run(ctx, &entry_chain, session_of_current(), &plugin_slots);               \
		return 1;                                                                          \
	}

ENTRY(connect4)
ENTRY(connect6)
ENTRY(sendmsg4)
ENTRY(sendmsg6)
ENTRY(bind4)
ENTRY(bind6)
ENTRY(sock_create)
