/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The index of a call and its flags. The index follows from the call's number and ABI. It is
 * computed when the call begins, because an execve may change the ABI before it ends.
 */
#ifndef TOLLGATE_GATE_CALLS_BPF_H
#define TOLLGATE_GATE_CALLS_BPF_H

#include "gate/state.bpf.h"

/*
 * All extensions except plugins need a call's index. Plugins get the call's number from the kernel,
 * so a gate with plugins only does not compute the index.
 */
#define NEEDS_CALL_INDEX (~(PLUGIN | PLUGIN_EXIT))

/* arch/x86/include/asm/thread_info.h: set during a 32-bit call, by int $0x80 or sysenter. */
#define TS_COMPAT 0x0002
/* arch/x86/include/uapi/asm/unistd.h. Negative numbers have the bit, too, but are no calls. */
#define X32_SYSCALL_BIT 0x40000000

static __always_inline u32 call_index(struct task_struct *task, long id)
{
	u32 number = id, base = 0;

	if (task->thread_info.status & TS_COMPAT) {
		base = ABI_I386 * CALLS_PER_ABI;
	} else if ((s32)number >= X32_SYSCALL_BIT) {
		base = ABI_X32 * CALLS_PER_ABI;
		number &= ~X32_SYSCALL_BIT;
	}
	if (number > CALL_UNKNOWN)
		number = CALL_UNKNOWN;
	return base + number;
}

_Static_assert(CALL_EXECVE == PRECALL_BITS + 1 && PRECALL_DEFER <= PRECALL_BITS,
	       "the flags of a call overlap");

/* The flags of a call: bits of enum call_flag, and those of enum guard_precall. */
static __always_inline u32 call_flags(u32 call)
{
	u64 index = call;

	/* The compiler may know the bound; the verifier must see the check. */
	barrier_var(index);
	return index < CALL_INDICES ? config.call_flags[index] : 0;
}

static __always_inline bool is_execve(u32 call)
{
	return call_flags(call) & CALL_EXECVE;
}

/* How the call can be held before it takes effect: enum guard_precall; 0: it cannot. */
static __always_inline u32 precall_of(u32 call)
{
	return call_flags(call) & PRECALL_BITS;
}

/* An argument of a call, whose registers are saved there. */
static __always_inline u64 call_argument(const struct pt_regs *regs, u32 call, u32 argument)
{
	bool is_i386 = call / CALLS_PER_ABI == ABI_I386;

	switch (argument) {
	case 0:
		return is_i386 ? (u32)regs->bx : regs->di;
	case 1:
		return is_i386 ? (u32)regs->cx : regs->si;
	case 2:
		return is_i386 ? (u32)regs->dx : regs->dx;
	case 3:
		return is_i386 ? (u32)regs->si : regs->r10;
	case 4:
		return is_i386 ? (u32)regs->di : regs->r8;
	default:
		return is_i386 ? (u32)regs->bp : regs->r9;
	}
}

/* The descriptor by which the call sends, if it sends. */
static __always_inline u32 descriptor_of(u32 call, u32 flags, const struct pt_regs *regs)
{
	if (flags & CALL_THIRD_DESCRIPTOR)
		return regs->dx;
	return unlikely(call / CALLS_PER_ABI == ABI_I386) ? regs->bx : regs->di;
}

#endif
