/* SPDX-License-Identifier: GPL-2.0 */
/* Infers tasks of unmodified programs: a task begins when a call returns that a rule names. */
#ifndef TOLLGATE_PACE_INFER_BPF_H
#define TOLLGATE_PACE_INFER_BPF_H

#include "lib/path.bpf.h"
#include "pace/tasks.bpf.h"

/* include/uapi/linux/stat.h */
#define S_IFMT 0170000
#define S_IFSOCK 0140000
#define S_IFCHR 0020000
#define S_IFIFO 0010000

/* include/linux/kdev_t.h; Documentation/admin-guide/devices.txt */
#define MINOR_BITS 20
#define MAJOR_TTY 4
#define MAJOR_TTYAUX 5
#define MAJOR_INPUT 13
#define MAJOR_PTS_FIRST 136
#define MAJOR_PTS_LAST 143

/* The first eight bytes of the names "[eventpoll]", "[timerfd]" and "[eventfd]", little-endian. */
#define NAME_EVENTPOLL 0x6f70746e6576655bULL
#define NAME_TIMERFD 0x646672656d69745bULL
#define NAME_EVENTFD 0x6466746e6576655bULL

/* The call has no descriptor. */
#define PACE_NO_FD (~0U)

/* What a rule and a type of tasks depend on. */
struct pace_key {
	/* enum pace_descriptor */
	u32 descriptor;
	/* The local port of an internet socket, or 0. */
	u32 port;
};

static __always_inline u32 pace_device(u32 device)
{
	u32 major = device >> MINOR_BITS;

	if (major == MAJOR_INPUT)
		return PACE_INPUT;
	if (major == MAJOR_TTY || major == MAJOR_TTYAUX ||
	    (major >= MAJOR_PTS_FIRST && major <= MAJOR_PTS_LAST))
		return PACE_TERMINAL;
	return PACE_OTHER;
}

/* The kind of a descriptor of the current process. */
static __always_inline void pace_find_key(struct task_struct *task, u32 fd, struct pace_key *key)
{
	struct file *file = file_of_fd(task, fd);
	struct inode *inode;
	struct sock *sk;
	u32 type;
	u64 name;

	if (!file)
		return;
	inode = BPF_CORE_READ(file, f_inode);
	type = BPF_CORE_READ(inode, i_mode) & S_IFMT;
	if (type == S_IFSOCK) {
		key->descriptor = PACE_SOCKET;
		sk = BPF_CORE_READ((struct socket_alloc *)((void *)inode -
					   bpf_core_field_offset(struct socket_alloc, vfs_inode)),
				   socket.sk);
		type = BPF_CORE_READ(sk, __sk_common.skc_family);
		if (type == AF_INET || type == AF_INET6)
			key->port = BPF_CORE_READ(sk, __sk_common.skc_num);
	} else if (type == S_IFIFO) {
		key->descriptor = PACE_PIPE;
	} else if (type == S_IFCHR) {
		key->descriptor = pace_device(BPF_CORE_READ(inode, i_rdev));
	} else {
		name = 0;
		bpf_probe_read_kernel(&name, sizeof(name),
				      BPF_CORE_READ(file, f_path.dentry, d_name.name));
		if (name == NAME_EVENTPOLL)
			key->descriptor = PACE_EPOLL;
		else if (name == NAME_TIMERFD)
			key->descriptor = PACE_TIMER;
		else if (name == NAME_EVENTFD)
			key->descriptor = PACE_EVENT;
	}
}

static __always_inline bool pace_rule_matches(struct pace_rule *rule, struct pace_thread *of,
					      struct pace_key *key)
{
	const u64 *wanted = (const u64 *)rule->program, *program = (const u64 *)of->program;

	if (rule->program[0] && (wanted[0] != program[0] || wanted[1] != program[1]))
		return false;
	if (rule->descriptors && !(rule->descriptors & 1U << (key->descriptor & 31)))
		return false;
	return !rule->port || rule->port == key->port;
}

/*
 * A call of the current thread has returned, and tasks of these rules may begin. The first rule
 * that matches decides. `fd`: the call's descriptor, or PACE_NO_FD. This is a global function, so
 * that the verifier checks it once.
 */
__noinline int pace_infer(u32 slot, u32 candidates, u32 fd)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct thread_state *thread = thread_at(slot);
	struct pace_thread *of = pace_of(slot);
	struct pace_rules *rules = &pace_rules[thread->session & (SESSIONS - 1)];
	u64 now, begin;
	struct pace_key key = {};
	struct pace_task *task;
	u32 i;

	if (!(config.enabled & PACE) || pace_is_exempt(slot))
		return 0;
	if (fd != PACE_NO_FD)
		pace_find_key(current, fd, &key);
	for (i = 0; i < PACE_RULES; i++) {
		if (candidates & 1U << i && pace_rule_matches(&rules->rule[i], of, &key))
			break;
	}
	begin = of->woken_in == thread->call ? of->woken_ns : 0;
	of->woken_ns = 0;
	if (i == PACE_RULES)
		return 0;
	now = bpf_ktime_get_ns();
	task = pace_live(of);
	/* A task that the program itself has begun continues. */
	if (task && task->id)
		return 0;
	if (task)
		pace_replace(of, task, slot, now);
	task = pace_new(thread, now);
	if (!task)
		return 0;
	if (begin)
		task->begin_ns = begin;
	task->rule = i;
	task->descriptor = key.descriptor;
	task->port = key.port;
	pace_begin(thread, task, now);
	return 0;
}

#endif
