/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Stacks for flame graphs. The kernel stack of a blocked interval is taken when it ends, and the
 * user stack when the call ends: only then is the current memory the program's, and its registers
 * and its stack have not changed since the call began. User space unwinds the copy.
 */
#ifndef TOLLGATE_LENS_FLAME_BPF_H
#define TOLLGATE_LENS_FLAME_BPF_H

#include "gate/calls.bpf.h"
#include "gate/events.bpf.h"
#include "lens/sites.bpf.h"
#include "lens/state.bpf.h"
#include "wire/lens.h"

/*
 * A thread is sampled once for this much blocked time on average, so each longer sleep has a stack
 * of its own. A sample costs some 3 us, 0.3 % of it.
 */
#define FLAME_BUDGET_NS 1000000

/* By the address of the task. */
HASH_MAP(lens_flame_threads, THREADS, u64, struct flame_thread);
ARRAY_MAP(lens_flame_rates, SESSIONS, struct flame_rate, 0);

/* The state of a thread; the first time, a new one, whose first sample is at a random point. */
static __always_inline struct flame_thread *flame_thread_of(struct thread_state *thread)
{
	/*
	 * Copied, because Linux 6.1 accepts no key in the memory to which an argument of a global
	 * function points.
	 */
	u64 task = thread->task;
	struct flame_thread *flame = bpf_map_lookup_elem(&lens_flame_threads, &task);
	static const struct flame_thread fresh;

	if (likely(flame))
		return flame;
	bpf_map_update_elem(&lens_flame_threads, &task, &fresh, BPF_NOEXIST);
	flame = bpf_map_lookup_elem(&lens_flame_threads, &task);
	if (flame)
		flame->budget_ns = bpf_get_prandom_u32() % FLAME_BUDGET_NS;
	return flame;
}

/* Whether the session can have one more sample in this period. */
static __always_inline bool flame_may_sample(u32 session, u64 now)
{
	struct flame_rate *rate = bpf_map_lookup_elem(&lens_flame_rates, &session);
	u64 period = now >> FLAME_PERIOD_SHIFT;

	if (!rate)
		return false;
	/* If two processors begin a period at the same time, a few samples are not counted. */
	if (READ_ONCE(rate->period) != period) {
		rate->period = period;
		rate->samples = 0;
	}
	return __sync_fetch_and_add(&rate->samples, 1) <
	       ((u64)FLAME_RATE << FLAME_PERIOD_SHIFT) / 1000000000;
}

/* A thread is switched in that was off the processor for `off` within its call. */
static __always_inline void lens_flame_interval(struct switching *at, u64 off)
{
	struct thread_state *thread = at->thread;
	struct flame_thread *flame = flame_thread_of(thread);
	struct flame_sleep *record;
	u64 waited;

	if (!flame)
		return;
	/* The first one in this call. */
	if (!thread->lens.off_ns) {
		flame->sequence += 1;
		flame->samples = 0;
	}
	if (!thread->lens.is_asleep)
		return;
	waited = lens_waited(at);
	if (waited >= off)
		return;
	flame->unsampled_ns += off - waited;
	flame->budget_ns -= off - waited;
	if (flame->budget_ns > 0)
		return;
	flame->budget_ns = FLAME_BUDGET_NS / 2 + bpf_get_prandom_u32() % FLAME_BUDGET_NS;
	if (flame_may_sample(thread->session, switch_ns(at))) {
		record = reserve_record(thread->session, sizeof(*record), LOSS_FLAME_FULL);
		if (record) {
			record->type = RECORD_FLAME_SLEEP;
			record->slot = thread->slot;
			record->sequence = flame->sequence;
			record->unused = 0;
			record->blocked_ns = flame->unsampled_ns;
			lens_fill_stack(&record->kernel, at->task);
			bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
			flame->samples += 1;
		}
	} else {
		count_loss(thread->session, LOSS_FLAME_RATE);
	}
	flame->unsampled_ns = 0;
}

/*
 * Fills a sample of the current thread with what the program does. `has_stack`: its registers and
 * its stack are those with which the call began.
 */
static __always_inline void flame_fill(struct flame_sample *sample, struct thread_state *thread,
				       struct task_struct *task, bool has_stack)
{
	struct session *session = session_at(thread->session);
	struct pt_regs *regs = (void *)bpf_task_pt_regs(task);
	struct task_struct *leader = task->group_leader;
	u32 i;

	sample->type = RECORD_FLAME_SAMPLE;
	sample->slot = thread->slot;
	sample->call = thread->call;
	sample->tgid = visible_pid(leader, session ? session->pid_level : 0);
	bpf_probe_read_kernel(sample->comm, sizeof(sample->comm), &leader->comm);
	sample->start_code = BPF_CORE_READ(task, mm, start_code);
	sample->start_stack = BPF_CORE_READ(task, mm, start_stack);
	sample->mmap_base = BPF_CORE_READ(task, mm, mmap_base);
	sample->inode = BPF_CORE_READ(task, mm, exe_file, f_inode, i_ino);
	sample->registers.ip = regs->ip;
	sample->registers.sp = regs->sp;
	sample->registers.bp = regs->bp;
	sample->registers.bx = regs->bx;
	sample->registers.r12 = regs->r12;
	sample->registers.r13 = regs->r13;
	sample->registers.r14 = regs->r14;
	sample->registers.r15 = regs->r15;
	sample->stack_bytes = 0;
	if (!has_stack || thread->call / CALLS_PER_ABI == ABI_I386)
		return;
	for (i = 0; i < FLAME_BLOCKS; i++) {
		if (bpf_probe_read_user(&sample->user_stack[i * FLAME_BLOCK], FLAME_BLOCK,
					(void *)regs->sp + i * FLAME_BLOCK))
			break;
	}
	sample->stack_bytes = i * FLAME_BLOCK;
}

/* How a sample is submitted: user space is woken up for the first one of a thread and program. */
static __always_inline u64 flame_wakeup(struct flame_sample *sample, struct flame_thread *flame,
					u32 session)
{
	if (flame && flame->start_stack != sample->start_stack) {
		flame->start_stack = sample->start_stack;
		return BPF_RB_FORCE_WAKEUP;
	}
	return deferred_wakeup(session, sizeof(*sample));
}

/*
 * Reports the call that ends, of which intervals were sampled. This is a global function, so that
 * it is verified once.
 */
__noinline int lens_flame_report(struct thread_state *thread, s64 result)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct flame_thread *flame;
	struct flame_sample *sample;
	bool is_replaced;
	u32 session;

	if (!thread || !(config.enabled & LENS_FLAME))
		return 0;
	flame = flame_thread_of(thread);
	if (!flame || !flame->samples)
		return 0;
	session = thread->session;
	sample = reserve_record(session, sizeof(*sample), LOSS_FLAME_FULL);
	if (!sample)
		return 0;
	is_replaced = !result && is_execve(thread->call);
	sample->sequence = flame->sequence;
	sample->kernel.frames = 0;
	flame_fill(sample, thread, task, !is_replaced);
	bpf_ringbuf_submit(sample, flame_wakeup(sample, flame, session));
	return 0;
}

/*
 * A timer of this session has interrupted the kernel on this processor. If the current thread is in
 * a call, its stacks are a sample of the call's processor time.
 */
static __always_inline void lens_flame_timer(void *ctx, u32 session)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct cpu_state *cpu = this_cpu();
	struct thread_state *thread;
	struct flame_sample *sample;
	long bytes;

	if (cpu->task != (u64)task || !cpu->slot)
		return;
	thread = thread_at(cpu->slot);
	if (thread->session != session || !(thread->mask & LENS_FLAME_CPU) ||
	    thread->in_call != IN_CALL || thread->until_exec)
		return;
	sample = reserve_record(session, sizeof(*sample), LOSS_FLAME_FULL);
	if (!sample)
		return;
	bytes = bpf_get_stack(ctx, sample->kernel.address, sizeof(sample->kernel.address), 0);
	sample->kernel.frames = bytes > 0 ? bytes / sizeof(sample->kernel.address[0]) : 0;
	/* An execve replaces the memory at some point. */
	flame_fill(sample, thread, task, !is_execve(thread->call));
	bpf_ringbuf_submit(sample, flame_wakeup(sample, flame_thread_of(thread), session));
}

/* The thread ends. */
static __always_inline void lens_flame_drop_thread(struct thread_state *thread)
{
	if (config.enabled & (LENS_FLAME | LENS_FLAME_CPU))
		bpf_map_delete_elem(&lens_flame_threads, &thread->task);
}

#endif
