/* SPDX-License-Identifier: GPL-2.0 */
/* LENS_WHY: what is kept of each thread, and who a party is. */
#ifndef TOLLGATE_LENS_WHY_STATE_BPF_H
#define TOLLGATE_LENS_WHY_STATE_BPF_H

#include "gate/threads.bpf.h"
#include "lens/account.bpf.h"
#include "lens/state.bpf.h"
#include "wire/why.h"

/* include/linux/sched.h, TASK_NORMAL: the states of a task that sleeps; not in BTF */
#define STATE_ASLEEP 0x3

/* Made with LENS_WHY: crates/kernel/src/lens/why.rs. */
ARRAY_MAP(why_threads, THREADS, struct why_thread, 0);
/* The slots of threads by their numbers, to find the owner of a futex. */
HASH_MAP(why_numbers, THREADS, struct why_number, u32);

static __always_inline struct why_thread *why_of(u32 slot)
{
	return bpf_map_lookup_elem(&why_threads, &slot);
}

static __always_inline u32 why_pid_level(u32 slot)
{
	struct session *session = session_at(thread_at(slot)->session);

	return session ? session->pid_level : 0;
}

/* The names and numbers of a task. Its address may be stale. */
static __always_inline void why_name(struct why_party *party, struct task_struct *task, u32 level)
{
	struct task_struct *leader = BPF_CORE_READ(task, group_leader);

	party->pid = level ? visible_pid(task, level) : BPF_CORE_READ(task, pid);
	party->tgid = level ? visible_pid(leader, level) : BPF_CORE_READ(task, tgid);
	bpf_probe_read_kernel(party->thread, COMM_LEN, &task->comm);
	bpf_probe_read_kernel(party->program, COMM_LEN, &leader->comm);
}

/* From now on, the thread is found by the number that its program knows. */
static __noinline int why_know_number(struct task_struct *task, u32 slot)
{
	struct why_thread *why = why_of(slot);
	struct upid upid = {};
	struct pid *pid;

	if (!why || why->number.tid)
		return 0;
	pid = BPF_CORE_READ(task, thread_pid);
	if (!pid || !number_at(task, BPF_CORE_READ(pid, level), &upid))
		return 0;
	why->number.namespace_inum = BPF_CORE_READ(upid.ns, ns.inum);
	why->number.tid = upid.nr;
	bpf_map_update_elem(&why_numbers, &why->number, &slot, BPF_ANY);
	return 0;
}

/* The slot gets a thread. Its previous one had another number. */
static __noinline int why_new_thread(u32 slot)
{
	struct why_thread *why = why_of(slot);

	if (!why || !why->number.tid)
		return 0;
	bpf_map_delete_elem(&why_numbers, &why->number);
	__builtin_memset(why, 0, sizeof(*why));
	return 0;
}

#endif
