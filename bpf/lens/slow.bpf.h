/* SPDX-License-Identifier: GPL-2.0 */
/* A full record of each call that is slower than the session's limit. */
#ifndef TOLLGATE_LENS_SLOW_BPF_H
#define TOLLGATE_LENS_SLOW_BPF_H

#include "lens/sites.bpf.h"
#include "lens/state.bpf.h"
#include "lens/why.bpf.h"
#include "lib/path.bpf.h"
#include "wire/lens.h"

#define PAGE_SHIFT 12

/*
 * A sleep of at least 1/LONG_SLEEP_SHARE of the limit may be why a call is slow, so its stack is
 * saved. Seven shorter sleeps do not reach the limit.
 */
#define LONG_SLEEP_SHARE 8

/* The stack of the longest sleep of a call in progress, by task. */
HASH_MAP(lens_sleep_stacks, THREADS, u64, struct stack);

static __always_inline u64 lens_slow_limit(struct thread_state *thread)
{
	struct session *session = session_at(thread->session);

	return session ? session->slow_limit_ns : 0;
}

static __always_inline bool lens_slow_is_longest_sleep(struct thread_state *thread, u64 slept)
{
	if (!(config.enabled & LENS_SLOW) || !(thread->mask & LENS_SLOW))
		return false;
	if (thread->lens.has_long_sleep && slept <= lens_cold_of(thread)->max_sleep_ns)
		return false;
	return slept >= lens_slow_limit(thread) / LONG_SLEEP_SHARE;
}

static __always_inline void lens_slow_save_stack(struct thread_state *thread, struct stack *stack,
						 u64 slept)
{
	if (!(config.enabled & LENS_SLOW))
		return;
	if (bpf_map_update_elem(&lens_sleep_stacks, &thread->task, stack, BPF_ANY)) {
		count_loss(thread->session, LOSS_SITES_FULL);
		return;
	}
	lens_cold_of(thread)->max_sleep_ns = slept;
	thread->lens.has_long_sleep = 1;
}

static __always_inline void lens_slow_args(struct slow_call *slow, struct task_struct *task)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(task);

#pragma unroll
	for (u32 i = 0; i < CALL_ARGS; i++)
		slow->args[i] = call_argument(regs, slow->call, i);
}

/* Resolves the arguments: descriptors to files, pointers to the texts of paths. */
static __always_inline void lens_slow_resolve_args(struct slow_call *slow, struct task_struct *task)
{
	u32 call = slow->call;
	struct arg_kinds *kinds = bpf_map_lookup_elem(&lens_arg_kinds, &call);

	for (u32 i = 0; i < ARG_NAMES; i++) {
		slow->fd[i].arg = CALL_ARGS;
		slow->path[i].arg = CALL_ARGS;
	}
	if (!kinds)
		return;
	for (u32 i = 0; i < ARG_NAMES; i++) {
		struct arg_string *string = &slow->path[i];
		u32 fd = kinds->fd[i], path = kinds->path[i];

		if (fd < CALL_ARGS && path_of_fd(&slow->fd[i], task, slow->args[fd]))
			slow->fd[i].arg = fd;
		if (path < CALL_ARGS && bpf_probe_read_user_str(string->text, sizeof(string->text),
								(void *)slow->args[path]) > 0)
			string->arg = path;
	}
}

/* include/uapi/asm-generic/errno-base.h */
#define ENOENT 2

struct mapped_code {
	u64 address;
	struct file *file;
	u64 offset;
};

static long note_mapping(struct task_struct *task, struct vm_area_struct *mapping,
			 struct mapped_code *code)
{
	code->file = mapping->vm_file;
	code->offset = code->address - mapping->vm_start + (mapping->vm_pgoff << PAGE_SHIFT);
	return 0;
}

struct user_frames {
	struct slow_call *slow;
	struct task_struct *task;
};

static long note_user_frame(u32 frame, struct user_frames *frames)
{
	struct slow_call *slow = frames->slow;
	struct mapped_code code = {};
	u32 at = frame & (STACK_DEPTH - 1), files = slow->stack_files, i;
	u64 inode;

	code.address = slow->user_stack[at];
	slow->user_file[at] = NO_STACK_FILE;
	slow->user_offset[at] = 0;
	if (bpf_find_vma(bpf_get_current_task_btf(), code.address, note_mapping, &code, 0) ==
	    -ENOENT)
		slow->user_file[at] = NO_STACK_MAPPING;
	if (!code.file)
		return 0;
	inode = READ_FIELD(struct inode, READ_FIELD(struct file, code.file, f_inode), i_ino);
	for (i = 0; i < STACK_FILES && i < files; i++) {
		if (slow->stack_file[i].inode == inode)
			break;
	}
	if (i >= STACK_FILES)
		return 0;
	if (i == files) {
		path_of_file(&slow->stack_file[i], frames->task, code.file);
		slow->stack_files = files + 1;
	}
	slow->user_file[at] = i;
	slow->user_offset[at] = code.offset;
	return 0;
}

static __always_inline void lens_slow_stacks(struct slow_call *slow, struct thread_state *thread)
{
	/*
	 * Copied, because Linux 6.1 accepts no key in the memory to which an argument of a global
	 * function points.
	 */
	u64 task = thread->task;
	struct stack *kernel = bpf_map_lookup_elem(&lens_sleep_stacks, &task);
	struct user_frames frames = { .slow = slow, .task = bpf_get_current_task_btf() };
	long bytes;

	slow->kernel_frames = 0;
	if (kernel && thread->lens.has_long_sleep) {
		slow->kernel_frames = kernel->frames;
		__builtin_memcpy(slow->kernel_stack, kernel->address, sizeof(slow->kernel_stack));
	}
	bytes = bpf_get_task_stack(bpf_get_current_task_btf(), slow->user_stack,
				   sizeof(slow->user_stack), BPF_F_USER_STACK);
	slow->user_frames = bytes > 0 ? bytes / sizeof(slow->user_stack[0]) : 0;
	slow->stack_files = 0;
	bpf_loop(slow->user_frames, note_user_frame, &frames, 0);
}

/* This is a global function, so that the verifier checks it once, however many paths lead to it. */
__noinline int lens_slow_report(struct thread_state *thread, s64 result, u64 now, u64 runqueue)
{
	struct session *session;
	struct task_struct *task;
	struct slow_call *slow;

	if (!thread)
		return 0;
	session = session_at(thread->session);
	slow = reserve_record(thread->session, sizeof(*slow), LOSS_SLOW_CALLS);
	if (!slow)
		return 0;
	task = bpf_get_current_task_btf();
	slow->type = RECORD_SLOW_CALL;
	slow->session = thread->session;
	slow->pid = visible_pid(task, session ? session->pid_level : 0);
	slow->tgid = visible_pid(task->group_leader, session ? session->pid_level : 0);
	slow->call = thread->call;
	bpf_get_current_comm(slow->comm, sizeof(slow->comm));
	slow->result = result;
	slow->ended_ns = now;
	slow->wall_ns = now - thread->lens.entered_ns;
	slow->runqueue_ns = runqueue;
	slow->blocked_ns = thread->lens.off_ns - runqueue;
	lens_slow_args(slow, task);
	lens_slow_resolve_args(slow, task);
	lens_slow_stacks(slow, thread);
	slow->has_why = 0;
	if (thread->lens.has_long_sleep && has(thread, LENS_WHY))
		why_explain(slow, thread->slot);
	bpf_ringbuf_submit(slow, 0);
	return 0;
}

static __always_inline void lens_slow_exit(struct thread_state *thread, s64 result, u64 now,
					   u64 runqueue)
{
	if (now - thread->lens.entered_ns >= lens_slow_limit(thread))
		lens_slow_report(thread, result, now, runqueue);
	thread->lens.has_long_sleep = 0;
}

/* The thread ends: its stack is removed. */
static __always_inline void lens_slow_drop_stack(struct thread_state *thread)
{
	if (config.enabled & LENS_SLOW)
		bpf_map_delete_elem(&lens_sleep_stacks, &thread->task);
}

#endif
