/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Work that follows files. The rules are matched when a thread opens a file. The thread then works
 * for the service that the rules select, until it opens another file or receives a message.
 */
#ifndef TOLLGATE_SERVICE_FILES_BPF_H
#define TOLLGATE_SERVICE_FILES_BPF_H

#include "gate/calls.bpf.h"
#include "gate/events.bpf.h"
#include "service/classify.bpf.h"

/* include/linux/fs.h: opened with O_PATH, by which nothing can be read or written. */
#define FMODE_PATH 0x4000

/*
 * Leaves the hashes of the first `depth` names of an opened file's path in the scratch, and returns
 * their number. They are computed at each open: a cached result would be wrong once a folder above
 * is renamed, and no hook reports that.
 */
static __noinline u32 hash_file(struct task_struct *task, struct file *file, u32 depth)
{
	struct name_scratch *scratch = this_scratch();
	u32 names;

	if (!scratch)
		return 0;
	if (!collect_names(scratch, task, file)) {
		count_loss(READ_ONCE(header.services_session), LOSS_FILES);
		return 0;
	}
	names = scratch->names < depth ? scratch->names : depth;
	hash_names(scratch, PATH_OF_FILE, names);
	return names;
}

/* The thread that runs here, in this slot, has opened a file and got this descriptor. */
__noinline int service_classify_open(u32 slot, u32 descriptor)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread = thread_at(slot);
	struct rule_query query = {};
	struct file *file;
	u32 depth;

	if (!(config.enabled & SERVICE_FILES))
		return 0;
	file = file_of_fd(task, descriptor);
	if (!file || READ_FIELD(struct file, file, f_mode) & FMODE_PATH)
		return 0;
	fill_query(&query, member_of(thread), EVENT_OPEN, SERVICE_NONE);
	/* Enough for either ruleset: match_rules() reads only later which one is active. */
	depth = rulesets[0].file_depth > rulesets[1].file_depth ? rulesets[0].file_depth :
								  rulesets[1].file_depth;
	query.file_names = depth ? hash_file(task, file, depth) : 0;
	match_rules(&query, task);
	service_apply_rule(thread, task, &query.rule, EVENT_OPEN, SERVICE_NONE, true);
	return 0;
}

static __always_inline void service_sys_exit(struct crossing *at)
{
	if (!(config.enabled & SERVICE_FILES) ||
	    likely(!rulesets[header.ruleset & 1].tuple_count[EVENT_OPEN]))
		return;
	if (at->result >= 0 && call_flags(at->thread->call) & CALL_OPENS)
		service_classify_open(at->thread->slot, at->result);
}

#endif
