// SPDX-License-Identifier: GPL-2.0
/* The floor: empty programs on the gate's hooks. Nothing that uses these hooks can cost less. */
#include "lib/kernel.h"
#include <bpf/bpf_helpers.h>
#include "plugin/chain.bpf.h"

char LICENSE[] SEC("license") = "GPL";

#define EMPTY(name, hook)                                                                          \
	SEC(hook) int name(void *ctx)                                                              \
	{                                                                                          \
		return 0;                                                                          \
	}

/* The same with one clock reading, which every tool that times calls needs at both ends. */
#define CLOCK(name, hook)                                                                          \
	SEC(hook) int name(void *ctx)                                                              \
	{                                                                                          \
		latest_ns = bpf_ktime_get_ns();                                                    \
		return 0;                                                                          \
	}

u64 latest_ns;

CLOCK(clock_enter, "tp_btf/sys_enter")
CLOCK(clock_exit, "tp_btf/sys_exit")

/* The same with a chain of plugins that is empty. */
PLUGIN_MAP(plugins);
struct plugin_chain chain;

SEC("tp_btf/sys_enter")
int chain_enter(void *ctx)
{
	plugins_run(ctx, &chain, 0, &plugins);
	return 0;
}

EMPTY(floor_enter, "tp_btf/sys_enter")
EMPTY(floor_exit, "tp_btf/sys_exit")
EMPTY(floor_switch, "tp_btf/sched_switch")
EMPTY(floor_fork, "tp_btf/sched_process_fork")
EMPTY(floor_exec, "tp_btf/sched_process_exec")
EMPTY(floor_task_exit, "tp_btf/sched_process_exit")
EMPTY(floor_task_free, "tp_btf/sched_process_free")
EMPTY(floor_received, "?tp_btf/sock_recv_length")
EMPTY(floor_sent, "?tp_btf/sock_send_length")
EMPTY(floor_received_exit, "?fexit/sock_recvmsg")
EMPTY(floor_sent_entry, "?fentry/security_socket_sendmsg")
EMPTY(floor_tcp, "tp_btf/inet_sock_set_state")
EMPTY(floor_packet, "?tp_btf/netif_rx")
EMPTY(floor_signal, "tp_btf/signal_deliver")
EMPTY(floor_continue, "tp_btf/signal_generate")
