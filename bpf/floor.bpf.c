// SPDX-License-Identifier: GPL-2.0
/* The floor: empty programs on the gate's hooks. What these cost, nobody who hooks them can go below. */
#include "kernel.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

#define EMPTY(name, hook)                                                                                          \
	SEC(hook) int name(void *ctx)                                                                              \
	{                                                                                                          \
		return 0;                                                                                          \
	}

EMPTY(floor_enter, "tp_btf/sys_enter")
EMPTY(floor_exit, "tp_btf/sys_exit")
EMPTY(floor_switch, "tp_btf/sched_switch")
EMPTY(floor_fork, "tp_btf/sched_process_fork")
EMPTY(floor_exec, "tp_btf/sched_process_exec")
EMPTY(floor_task_exit, "tp_btf/sched_process_exit")
