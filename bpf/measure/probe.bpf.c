// SPDX-License-Identifier: GPL-2.0
/*
 * One tiny program or map for each capability. `tollgate doctor` loads each alone, and finds out
 * whether the kernel accepts it. None does anything if it runs. Only a few are ever attached, and
 * only for a moment (crates/kernel/src/probe).
 *
 * This file uses no CO-RE and no kfunc: either would make libbpf read the kernel's types for every
 * probe.
 */
#include "lib/kernel.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

/* include/uapi/linux/bpf.h, beyond what kernel.h names. */
#define BPF_MAP_TYPE_SK_STORAGE 24
#define BPF_MAP_TYPE_TASK_STORAGE 29
#define SIGSTOP 19
#define ERESTARTNOINTR 513
#define XDP_PASS 2
#define TC_ACT_OK 0

/* A program that does `statement`. cgroup programs return 1: the call goes on. */
#define PROBE(name, hook, result, statement)                                                       \
	SEC(hook) int name(void *ctx)                                                              \
	{                                                                                          \
		statement;                                                                         \
		return result;                                                                     \
	}

#define EMPTY(name, hook, result) PROBE(name, hook, result, )

#define MAP(name, map_type, entries, flags, key_type, value_type)                                  \
	struct {                                                                                   \
		__uint(type, map_type);                                                            \
		__uint(max_entries, entries);                                                      \
		__uint(map_flags, flags);                                                          \
		__type(key, key_type);                                                             \
		__type(value, value_type);                                                         \
	} name SEC(".maps")

struct ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

struct user_data {
	u64 word;
};

struct user_pointer {
	struct user_data __attribute__((btf_type_tag("uptr"))) * data;
	struct user_data unused; /* makes clang describe the type, not only name it */
};

/* Maps that are probes themselves, and maps that the programs below use. */
struct ring ring_buffer SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, u32);
	__array(values, struct ring);
} ring_array SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1);
	__type(value, u32);
} queue SEC(".maps");
MAP(mmapable, BPF_MAP_TYPE_ARRAY, 1, BPF_F_MMAPABLE, u32, u64);
MAP(sk_storage, BPF_MAP_TYPE_SK_STORAGE, 0, BPF_F_NO_PREALLOC, int, u64);
MAP(counter, BPF_MAP_TYPE_ARRAY, 1, 0, u32, u64);
MAP(user_pointers, BPF_MAP_TYPE_TASK_STORAGE, 0, BPF_F_NO_PREALLOC, int, struct user_pointer);

static __always_inline void *first(void *map)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(map, &zero);
}

static __always_inline void count(void)
{
	u64 *counter_value = first(&counter);

	if (counter_value)
		__sync_fetch_and_add(counter_value, 1);
}

/* The gate. */
EMPTY(sys_enter, "tp_btf/sys_enter", 0)
EMPTY(sys_exit, "tp_btf/sys_exit", 0)
EMPTY(sched_switch, "tp_btf/sched_switch", 0)
EMPTY(sched_process_fork, "tp_btf/sched_process_fork", 0)
EMPTY(sched_process_exec, "tp_btf/sched_process_exec", 0)
EMPTY(sched_process_exit, "tp_btf/sched_process_exit", 0)
EMPTY(task_iterator, "iter/task", 0)
EMPTY(file_iterator, "iter/task_file", 0)

static __always_inline void swap_32(void)
{
	volatile u32 value = 0;

	__sync_val_compare_and_swap(&value, 0, 1);
}

static __always_inline void read_kernel(void)
{
	u64 value;

	bpf_probe_read_kernel(&value, sizeof(value), bpf_get_current_task_btf());
}

static __always_inline void take_stack(void)
{
	u64 frames[4];

	bpf_get_task_stack(bpf_get_current_task_btf(), frames, sizeof(frames), 0);
}

PROBE(atomics_32, "socket", 0, swap_32())
PROBE(probe_read, "tp_btf/sys_enter", 0, read_kernel())
PROBE(task_stack, "tp_btf/sys_enter", 0, take_stack())

/* A planned part of lens: a process reads the statistics of its own calls. */
static __always_inline void read_user_data(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct user_pointer *pointer = bpf_task_storage_get(&user_pointers, task, NULL, 0);

	if (pointer && pointer->data)
		*(volatile u64 *)&pointer->data->word;
}

EMPTY(fentry, "fentry/__x64_sys_getpgid", 0)
EMPTY(kprobe, "kprobe/__x64_sys_getpgid", 0)
EMPTY(kprobe_multi, "kprobe.multi/__x64_sys_getpgid", 0)
EMPTY(contention_begin, "tp_btf/contention_begin", 0)
EMPTY(contention_end, "tp_btf/contention_end", 0)
PROBE(uptr, "tp_btf/sys_enter", 0, read_user_data())

/* guard */
PROBE(send_signal, "tp_btf/sys_enter", 0, bpf_send_signal_thread(SIGSTOP))
/* Attached to security_bpf: `counter` shows whether it ran. */
PROBE(lsm, "lsm/bpf", 0, count())

static __always_inline void undo_call(void)
{
	if (bpf_get_current_task_btf())
		bpf_set_retval(-ERESTARTNOINTR);
}

PROBE(connect4, "cgroup/connect4", 1, undo_call())
PROBE(connect6, "cgroup/connect6", 1, undo_call())
PROBE(bind4, "cgroup/bind4", 1, undo_call())
PROBE(bind6, "cgroup/bind6", 1, undo_call())
PROBE(sendmsg4, "cgroup/sendmsg4", 1, undo_call())
PROBE(sendmsg6, "cgroup/sendmsg6", 1, undo_call())
PROBE(sock_create, "cgroup/sock_create", 1, undo_call())

/* plugin */
static long empty_round(u64 index, void *ctx)
{
	return 0;
}

/* may_goto to `label`, in bytes: not every clang knows the mnemonic. */
#define MAY_GOTO(label)                                                                            \
	asm volatile goto("1: .byte 0xe5; .byte 0;"                                                \
			  ".long ((%l[" #label "] - 1b - 8) / 8) & 0xffff; .short 0"               \
			  : : : : label)

/*
 * The loop ends by itself just beyond the number of iterations that a counting may_goto allows
 * (2^23).
 */
#define MORE_THAN_COUNTED_BOUND ((1 << 23) + 1000)

/* The counter is in a map, so that the verifier does not track its value. */
static __always_inline void loop_until_cut(void)
{
	volatile u64 *iterations = first(&counter);

	if (!iterations)
		return;
	for (;;) {
		MAY_GOTO(out);
		*iterations += 1;
		if (*iterations > MORE_THAN_COUNTED_BOUND)
			return;
	}
out:
	return;
}

EMPTY(syscall_type, "syscall", 0)
PROBE(may_goto, "syscall", 0, loop_until_cut())
PROBE(loops, "socket", 0, bpf_loop(1, empty_round, NULL, 0))
EMPTY(xdp_type, "xdp", XDP_PASS)
EMPTY(tc_type, "tc", TC_ACT_OK)
