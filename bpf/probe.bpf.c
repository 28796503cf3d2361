// SPDX-License-Identifier: GPL-2.0
/*
 * One tiny program a capability. Doctor loads each alone: the kernel's answer is the finding. None does
 * anything when it runs, and only those named in crates/kernel/src/probe/ are ever attached, for a moment.
 */
#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

#define BPF_MAP_TYPE_SK_STORAGE 24
#define BPF_MAP_TYPE_TASK_STORAGE 29
#define BPF_LOCAL_STORAGE_GET_F_CREATE 1
#define CLOCK_MONOTONIC 1

/* A program that returns `result` after `statement`. */
#define PROBE(name, hook, result, statement)                                                                       \
	SEC(hook) int name(void *ctx)                                                                              \
	{                                                                                                          \
		statement;                                                                                         \
		return result;                                                                                     \
	}

#define EMPTY(name, hook, result) PROBE(name, hook, result, )

/* The gate's hooks: doctor attaches these for real. */
EMPTY(sys_enter, "tp_btf/sys_enter", 0)
EMPTY(sys_exit, "tp_btf/sys_exit", 0)
EMPTY(sched_switch, "tp_btf/sched_switch", 0)
EMPTY(sched_process_fork, "tp_btf/sched_process_fork", 0)
EMPTY(sched_process_exec, "tp_btf/sched_process_exec", 0)
EMPTY(sched_process_exit, "tp_btf/sched_process_exit", 0)
EMPTY(task_iterator, "iter/task", 0)

/* What the gate's programs call. */
static __always_inline void swap_32(void)
{
	volatile u32 value = 0;

	__sync_val_compare_and_swap(&value, 0, 1);
}

static __always_inline void read_kernel(void)
{
	u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), bpf_get_current_task_btf());
}

static __always_inline void take_stack(void)
{
	u64 frames[4] = {};

	bpf_get_task_stack(bpf_get_current_task_btf(), frames, sizeof(frames), 0);
}

extern void *bpf_rdonly_cast(const void *object, u32 type) __ksym __weak;

PROBE(cmpxchg, "socket", 0, swap_32())
PROBE(probe_read_kernel, "tp_btf/sys_enter", 0, read_kernel())
PROBE(get_task_stack, "tp_btf/sys_enter", 0, take_stack())
PROBE(rdonly_cast, "tp_btf/sys_enter", 0, bpf_rdonly_cast(NULL, bpf_core_type_id_kernel(struct task_struct)))
