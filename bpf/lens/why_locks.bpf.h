/* SPDX-License-Identifier: GPL-2.0 */
/* LENS_WHY: the lock that a thread waits for, and who holds it. */
#ifndef TOLLGATE_LENS_WHY_LOCKS_BPF_H
#define TOLLGATE_LENS_WHY_LOCKS_BPF_H

#include "gate/calls.bpf.h"
#include "lens/waits.bpf.h"
#include "lens/why_state.bpf.h"

/* The low bits of the owner of a mutex and of an rwsem: kernel/locking/mutex.h and rwsem.c. */
#define OWNER_FLAGS 0x7ULL
#define RWSEM_READER_OWNED 0x1

/* arch/x86/entry/syscalls: syscall_64.tbl (also x32), syscall_32.tbl */
#define CALL_FUTEX 202
#define CALL_FUTEX_I386 240
#define CALL_FUTEX_TIME64_I386 422

/* include/uapi/linux/futex.h */
#define FUTEX_WAIT 0
#define FUTEX_LOCK_PI 6
#define FUTEX_WAIT_BITSET 9
#define FUTEX_LOCK_PI2 13
#define FUTEX_CMD_MASK 0x7f
#define FUTEX_WAITERS 0x80000000
#define FUTEX_TID_MASK 0x3fffffff

/* A thread that waits for a mutex of glibc expects this: sysdeps/nptl/lowlevellock.h */
#define LOCKED_WITH_WAITERS 2
/* nptl/pthreadP.h: all bits of the kind of a mutex */
#define MUTEX_KIND_MASK 0x3ff

/* sysdeps/x86/nptl/bits/struct_mutex.h; on i386, the last two are in the other order. */
struct glibc_mutex {
	u32 lock;
	u32 count;
	u32 owner;
	u32 users;
	u32 kind;
};

PERCPU_MAP(why_mutex_scratch, 1, struct glibc_mutex);

static __always_inline void why_set_holder(struct why_thread *why, struct task_struct *task,
					   u32 slot, u32 level)
{
	struct why_party *holder = &why->current.holder;
	struct thread_state *thread = thread_at(slot);

	why_name(holder, task, level);
	holder->slot = slot;
	holder->is_asleep = !!(BPF_CORE_READ(task, __state) & STATE_ASLEEP);
	holder->kind = WHY_OUTSIDE;
	if (BPF_CORE_READ(task, flags) & PF_KTHREAD) {
		holder->kind = WHY_KERNEL_THREAD;
	} else if (!slot) {
		holder->kind = WHY_BYSTANDER;
	} else if (thread->in_call) {
		holder->kind = WHY_CALL;
		holder->call = lens_call_of(thread);
	}
}

/* The task that owns a lock of the kernel; 0: it is not known. */
static __always_inline u64 why_owner(u64 lock, u32 flags)
{
	u64 owner;

	if (flags & WHY_LOCK_MUTEX)
		return BPF_CORE_READ((struct mutex *)lock, owner.counter) & ~OWNER_FLAGS;
	if (flags & (WHY_LOCK_PERCPU | WHY_LOCK_RT) ||
	    !(flags & (WHY_LOCK_READ | WHY_LOCK_WRITE)))
		return 0;
	owner = BPF_CORE_READ((struct rw_semaphore *)lock, owner.counter);
	return owner & RWSEM_READER_OWNED ? 0 : owner & ~OWNER_FLAGS;
}

/* The thread begins to wait for a lock of the kernel. It is a global function: see why_woken(). */
__noinline int why_contends(u32 slot, u64 lock, u32 flags)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct why_thread *why = why_of(slot);
	struct mm_struct *mm;
	u64 owner;

	if (!(config.enabled & LENS_WHY) || !why)
		return 0;
	flags = flags ? flags : WHY_LOCK_SEMAPHORE;
	mm = BPF_CORE_READ(task, mm);
	if (mm && lock == (u64)mm + bpf_core_field_offset(struct mm_struct, mmap_lock))
		flags |= WHY_LOCK_MMAP;
	why->current.lock.address = lock;
	why->current.lock.flags = flags;
	why->current.holder.kind = WHY_UNKNOWN;
	why->current.holder.slot = 0;
	owner = why_owner(lock, flags);
	if (owner)
		why_set_holder(why, (struct task_struct *)owner,
			       slot_by_pid(BPF_CORE_READ((struct task_struct *)owner, pid), owner),
			       why_pid_level(slot));
	return 0;
}

/* The number of the thread that owns the futex for which a thread waits; 0: it is not known. */
static __always_inline u32 why_futex_owner(u64 address, u32 operation, u32 expected, bool is_i386)
{
	u32 zero = 0, word, kind, users;
	struct glibc_mutex *mutex;

	operation &= FUTEX_CMD_MASK;
	if (operation == FUTEX_LOCK_PI || operation == FUTEX_LOCK_PI2) {
		if (bpf_probe_read_user(&word, sizeof(word), (void *)address))
			return 0;
		return word & FUTEX_TID_MASK;
	}
	if (operation != FUTEX_WAIT && operation != FUTEX_WAIT_BITSET)
		return 0;
	/* A robust mutex of glibc, and most mutexes of musl: the word has the owner. */
	if (expected & FUTEX_WAITERS)
		return expected & FUTEX_TID_MASK;
	mutex = bpf_map_lookup_elem(&why_mutex_scratch, &zero);
	if (expected != LOCKED_WITH_WAITERS || !mutex ||
	    bpf_probe_read_user(mutex, sizeof(*mutex), (void *)address))
		return 0;
	kind = is_i386 ? mutex->users : mutex->kind;
	users = is_i386 ? mutex->kind : mutex->users;
	if (mutex->lock != LOCKED_WITH_WAITERS || kind & ~MUTEX_KIND_MASK || !users ||
	    users & ~FUTEX_TID_MASK)
		return 0;
	return mutex->owner;
}

/* The current thread begins to sleep in a futex call. */
static __always_inline void why_waits_for_futex(struct why_thread *why, struct pt_regs *regs,
						u32 slot, bool is_i386)
{
	u64 address = is_i386 ? (u32)regs->bx : regs->di;
	u32 operation = is_i386 ? regs->cx : regs->si, expected = regs->dx, *owner;
	struct why_number number = { .namespace_inum = why->number.namespace_inum };

	number.tid = why_futex_owner(address, operation, expected, is_i386);
	if (!number.tid || number.tid == why->number.tid)
		return;
	owner = bpf_map_lookup_elem(&why_numbers, &number);
	if (!owner || !*owner)
		return;
	why->current.lock.address = address;
	why->current.lock.flags = WHY_LOCK_FUTEX;
	why_set_holder(why, (struct task_struct *)thread_at(*owner)->task, *owner,
		       why_pid_level(slot));
}

/* The current thread begins to sleep in a call. */
__noinline int why_begin_sleep(u32 slot)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread = thread_at(slot);
	struct why_thread *why = why_of(slot);
	u32 call, abi = 0;

	if (!(config.enabled & LENS_WHY) || !why)
		return 0;
	why_know_number(task, slot);
	if (why->current.lock.flags)
		return 0;
	call = lens_call_of(thread);
	if (call >= CALLS_PER_ABI) {
		abi = call / CALLS_PER_ABI;
		call -= abi * CALLS_PER_ABI;
	}
	if (abi == ABI_I386) {
		if (call == CALL_FUTEX_I386 || call == CALL_FUTEX_TIME64_I386)
			why_waits_for_futex(why, (void *)bpf_task_pt_regs(task), slot, true);
	} else if (call == CALL_FUTEX) {
		why_waits_for_futex(why, (void *)bpf_task_pt_regs(task), slot, false);
	}
	return 0;
}

/* The slot of the current thread, if it has LENS_WHY; 0: it does not. */
static __always_inline u32 why_current_slot(void)
{
	u32 slot = running_slot(bpf_get_current_task_btf());

	return slot && has(thread_at(slot), LENS_WHY) && thread_at(slot)->in_call ? slot : 0;
}

/* A thread of the machine begins to wait for a lock. For one that spins, it does not sleep. */
static __always_inline void lens_contention(u64 lock, u32 flags)
{
	u32 slot = flags & WHY_LOCK_SPIN ? 0 : why_current_slot();

	if (slot)
		why_contends(slot, lock, flags);
}

static __always_inline void lens_contention_end(u64 lock)
{
	u32 slot = why_current_slot();
	struct why_thread *why = slot ? why_of(slot) : NULL;

	if (why && why->current.lock.address == lock)
		why->current.lock.flags = 0;
}

#endif
