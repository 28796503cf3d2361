/* SPDX-License-Identifier: GPL-2.0 */
/* The number and ABI of a call, as known at its entry (at exit, an execve may show another ABI). */
#ifndef TOLLGATE_GATE_CALLS_BPF_H
#define TOLLGATE_GATE_CALLS_BPF_H

#include "gate/state.bpf.h"

/*
 * Extensions that need a call's index. Plugins have the number from the kernel, so a gate with
 * plugins only does not look for the index.
 */
#define NEEDS_CALL_INDEX (LENS | GUARD | SERVICE)

/* arch/x86/include/asm/thread_info.h: set during a 32-bit call, by int $0x80 or sysenter. */
#define TS_COMPAT 0x0002
/* arch/x86/include/uapi/asm/unistd.h */
#define X32_SYSCALL_BIT 0x40000000

/* arch/x86/entry/syscalls/syscall_{64,32}.tbl */
#define EXECVE_64 59
#define EXECVEAT_64 322
#define EXECVE_32 11
#define EXECVEAT_32 358
#define EXECVE_X32 520
#define EXECVEAT_X32 545

#define SIGRETURN_64 15
#define SIGRETURN_32 119
#define RT_SIGRETURN_32 173
#define RT_SIGRETURN_X32 513
#define RESTART_64 219
#define RESTART_32 0

static __always_inline u32 call_index(struct task_struct *task, long id)
{
	u32 number = id, base = 0;

	if (task->thread_info.status & TS_COMPAT) {
		base = ABI_I386 * CALLS_PER_ABI;
	} else if (number & X32_SYSCALL_BIT) {
		base = ABI_X32 * CALLS_PER_ABI;
		number &= ~X32_SYSCALL_BIT;
	}
	if (number > CALL_UNKNOWN)
		number = CALL_UNKNOWN;
	return base + number;
}

static __always_inline bool is_execve(u32 call)
{
	switch (call) {
	case EXECVE_64:
	case EXECVEAT_64:
	case ABI_I386 * CALLS_PER_ABI + EXECVE_32:
	case ABI_I386 * CALLS_PER_ABI + EXECVEAT_32:
	case ABI_X32 * CALLS_PER_ABI + EXECVE_X32:
	case ABI_X32 * CALLS_PER_ABI + EXECVEAT_X32:
		return true;
	default:
		return false;
	}
}

#endif
