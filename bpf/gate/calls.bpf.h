/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Which call is which: its number and ABI, as known at its entry (at exit, an execve may show
 * another ABI), and what is to be known of it.
 */
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

/* arch/x86/entry/syscalls/syscall_64.tbl: calls by which a process changes its effective user. */
#define SETUID_64 105
#define SETREUID_64 113
#define SETRESUID_64 117
/* syscall_32.tbl */
#define SETUID_32 23
#define SETREUID_32 70
#define SETRESUID_32 164
#define SETREUID32_32 203
#define SETRESUID32_32 208
#define SETUID32_32 213
#define IO_URING_SETUP 425
#define IO_URING_ENTER 426
#define SPLICE_64 275
#define SPLICE_32 313

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

static __always_inline bool is_sigreturn(u32 call)
{
	return call == SIGRETURN_64 || call == ABI_I386 * CALLS_PER_ABI + SIGRETURN_32 ||
	       call == ABI_I386 * CALLS_PER_ABI + RT_SIGRETURN_32 ||
	       call == ABI_X32 * CALLS_PER_ABI + RT_SIGRETURN_X32;
}

static __always_inline bool is_restart(u32 call)
{
	return call == RESTART_64 || call == ABI_I386 * CALLS_PER_ABI + RESTART_32 ||
	       call == ABI_X32 * CALLS_PER_ABI + RESTART_64;
}

/* How the call can be kept from taking effect: enum guard_precall; 0: it cannot. */
static __always_inline u32 precall_of(u32 call)
{
	return call < CALL_INDICES ? config.precall[call] : 0;
}

static __always_inline bool changes_user(u32 call)
{
	switch (call) {
	case SETUID_64:
	case SETREUID_64:
	case SETRESUID_64:
	case ABI_I386 * CALLS_PER_ABI + SETUID_32:
	case ABI_I386 * CALLS_PER_ABI + SETREUID_32:
	case ABI_I386 * CALLS_PER_ABI + SETRESUID_32:
	case ABI_I386 * CALLS_PER_ABI + SETUID32_32:
	case ABI_I386 * CALLS_PER_ABI + SETREUID32_32:
	case ABI_I386 * CALLS_PER_ABI + SETRESUID32_32:
	case ABI_X32 * CALLS_PER_ABI + SETUID_64:
	case ABI_X32 * CALLS_PER_ABI + SETREUID_64:
	case ABI_X32 * CALLS_PER_ABI + SETRESUID_64:
		return true;
	default:
		return false;
	}
}

/* The descriptor by which the call sends, if it sends. */
static __always_inline u32 descriptor_of(u32 call, const struct pt_regs *regs)
{
	if (unlikely(call >= ABI_X32 * CALLS_PER_ABI))
		call -= ABI_X32 * CALLS_PER_ABI;
	else if (unlikely(call >= ABI_I386 * CALLS_PER_ABI))
		return call == ABI_I386 * CALLS_PER_ABI + SPLICE_32 ? regs->dx : regs->bx;
	return call == SPLICE_64 ? regs->dx : regs->di;
}

/* Also if another thread has set up the ring. */
static __always_inline bool uses_io_uring(u32 call)
{
	switch (call) {
	case IO_URING_SETUP:
	case IO_URING_ENTER:
	case ABI_I386 * CALLS_PER_ABI + IO_URING_SETUP:
	case ABI_I386 * CALLS_PER_ABI + IO_URING_ENTER:
	case ABI_X32 * CALLS_PER_ABI + IO_URING_SETUP:
	case ABI_X32 * CALLS_PER_ABI + IO_URING_ENTER:
		return true;
	default:
		return false;
	}
}

/* Whether a call sends. */
static __always_inline bool sends(u32 call)
{
	switch (call) {
	case 1: /* write */
	case 20: /* writev */
	case 40: /* sendfile */
	case 44: /* sendto */
	case 46: /* sendmsg */
	case SPLICE_64:
	case 307: /* sendmmsg */
	case ABI_I386 * CALLS_PER_ABI + 4: /* write */
	case ABI_I386 * CALLS_PER_ABI + 102: /* socketcall */
	case ABI_I386 * CALLS_PER_ABI + 146: /* writev */
	case ABI_I386 * CALLS_PER_ABI + 187: /* sendfile */
	case ABI_I386 * CALLS_PER_ABI + 239: /* sendfile64 */
	case ABI_I386 * CALLS_PER_ABI + SPLICE_32:
	case ABI_I386 * CALLS_PER_ABI + 345: /* sendmmsg */
	case ABI_I386 * CALLS_PER_ABI + 369: /* sendto */
	case ABI_I386 * CALLS_PER_ABI + 370: /* sendmsg */
	case ABI_X32 * CALLS_PER_ABI + 1: /* write */
	case ABI_X32 * CALLS_PER_ABI + 40: /* sendfile */
	case ABI_X32 * CALLS_PER_ABI + 44: /* sendto */
	case ABI_X32 * CALLS_PER_ABI + SPLICE_64:
	case ABI_X32 * CALLS_PER_ABI + 516: /* writev */
	case ABI_X32 * CALLS_PER_ABI + 518: /* sendmsg */
	case ABI_X32 * CALLS_PER_ABI + 538: /* sendmmsg */
		return true;
	default:
		return false;
	}
}

/* arch/x86/entry/syscalls/syscall_{64,32}.tbl: open, creat, openat, open_by_handle_at, openat2 */
static __always_inline bool opens(u32 call)
{
	switch (call) {
	case 2:
	case 85:
	case 257:
	case 304:
	case 437:
	case ABI_I386 * CALLS_PER_ABI + 5:
	case ABI_I386 * CALLS_PER_ABI + 8:
	case ABI_I386 * CALLS_PER_ABI + 295:
	case ABI_I386 * CALLS_PER_ABI + 342:
	case ABI_I386 * CALLS_PER_ABI + 437:
	case ABI_X32 * CALLS_PER_ABI + 2:
	case ABI_X32 * CALLS_PER_ABI + 85:
	case ABI_X32 * CALLS_PER_ABI + 257:
	case ABI_X32 * CALLS_PER_ABI + 304:
	case ABI_X32 * CALLS_PER_ABI + 437:
		return true;
	default:
		return false;
	}
}

#endif
