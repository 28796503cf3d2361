/* SPDX-License-Identifier: GPL-2.0 */
/* Work that follows files: who opens one asks the rules, and works for what they say until it opens or receives another. */
#ifndef TOLLGATE_SERVICE_FILES_BPF_H
#define TOLLGATE_SERVICE_FILES_BPF_H

#include "service.bpf.h"
#include "calls.bpf.h"

/* include/linux/fs.h: by O_PATH, by which nothing can be read or written. */
#define FMODE_PATH 0x4000

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

/*
 * Leaves the hashes of so many folders of an opened file's path in the scratch, and returns how many there are. At each
 * open anew: an answer that was kept would be wrong once a folder above is renamed, of which nobody is told.
 */
static __noinline u32 hash_file(struct task_struct *task, struct file *file, u32 depth)
{
	struct service_scratch *room = scratch();
	u32 names;

	if (!room)
		return 0;
	if (!walk_path(room, task, file)) {
		lose(READ_ONCE(header.services), LOSS_FILES);
		return 0;
	}
	names = room->names < depth ? room->names : depth;
	fold_names(room, PATH_OF_FILE, names);
	return names;
}

/* The thread that runs here, in this slot, has opened a file and got this descriptor. */
__noinline int service_opened(u32 slot, u32 descriptor)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread = thread_at(slot);
	struct service_question question = {};
	struct file *file;
	u32 depth;

	if (!(config.enabled & SERVICE_FILES))
		return 0;
	file = file_of_fd(task, descriptor);
	if (!file || READ_FIELD(struct file, file, f_mode) & FMODE_PATH)
		return 0;
	question_of(&question, member_of(thread), EVENT_OPEN, SERVICE_NONE);
	/* Enough for either book: which one is in force is not known until the rules are asked. */
	depth = books[0].file_depth > books[1].file_depth ? books[0].file_depth : books[1].file_depth;
	question.file_names = depth ? hash_file(task, file, depth) : 0;
	ask_rules(&question, task);
	service_obey(thread, task, &question.best, EVENT_OPEN, SERVICE_NONE, true);
	return 0;
}

static __always_inline void service_left(struct thread_state *thread, s64 result)
{
	if (likely(!books[header.book & 1].asked[EVENT_OPEN]))
		return;
	if (result >= 0 && opens(thread->call))
		service_opened(thread->slot, result);
}

#endif
