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

/* include/net/sock.h: the program has chosen the port. */
#define SOCK_BINDPORT_LOCK 8

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

/* include/uapi/linux/input-event-codes.h */
#define EV_KEY 1
#define EV_REL 2
#define EV_ABS 3

/* include/uapi/linux/input.h, of a program for x86-64 */
struct input_event {
	u64 seconds;
	u64 microseconds;
	u16 type;
	u16 code;
	s32 value;
};

/* How many events of a read are searched for a key or a motion. A key press is two or three. */
#define EVENTS_READ 4

/* The call has no descriptor. */
#define PACE_NO_FD (~0U)

/* What a rule and a type of tasks depend on. */
struct pace_key {
	/* enum pace_descriptor */
	u32 descriptor;
	/*
	 * The local port of an internet socket, unless it was chosen for a client; the event of an
	 * input device: type << 16 | code; 0: there is none.
	 */
	u32 detail;
};

/*
 * The local port of an internet socket, unless the kernel has chosen one for a client: each
 * connection of a client would be a type of its own. A socket of TCP shares the bucket of its port
 * with the socket that has accepted it. connect() makes a bucket that cannot be shared
 * (net/ipv4/inet_hashtables.c, __inet_hash_connect).
 */
static __always_inline u32 pace_port(struct sock *sk)
{
	u32 port = BPF_CORE_READ(sk, __sk_common.skc_num);
	struct inet_bind_bucket *bucket;

	if (BPF_CORE_READ_BITFIELD_PROBED(sk, sk_userlocks) & SOCK_BINDPORT_LOCK)
		return port;
	if (BPF_CORE_READ(sk, sk_protocol) != IPPROTO_TCP)
		return 0;
	bucket = BPF_CORE_READ((struct inet_connection_sock *)sk, icsk_bind_hash);
	return bucket && BPF_CORE_READ(bucket, fastreuse) >= 0 ? port : 0;
}

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

/* Finds the kind of a descriptor of the current process, and the local port of a socket. */
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
			key->detail = pace_port(sk);
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
	if (rule->program[0] && !pace_is_same_program(rule->program, of->program))
		return false;
	if (rule->descriptors && !(rule->descriptors & 1U << (key->descriptor & 31)))
		return false;
	return !rule->port ||
	       (key->descriptor == PACE_SOCKET && rule->port == key->detail);
}

/*
 * The key or the motion that a thread has read from an input device. Other events, such as scan
 * codes, precede it.
 */
static __always_inline u32 pace_input_event(u64 buffer, u64 bytes)
{
	struct input_event event;
	u32 i;

	for (i = 0; i < EVENTS_READ; i++, buffer += sizeof(event)) {
		if ((i + 1) * sizeof(event) > bytes ||
		    bpf_probe_read_user(&event, sizeof(event), (void *)buffer))
			return 0;
		if (event.type == EV_KEY)
			return EV_KEY << 16 | event.code;
		if (event.type == EV_REL || event.type == EV_ABS)
			return (u32)event.type << 16;
	}
	return 0;
}

/*
 * A call of the current thread has returned, and tasks of these rules may begin. The first rule
 * that matches decides. `fd`: the call's descriptor, or PACE_NO_FD. `buffer`: what `read` has read,
 * or 0. This is a global function, so that the verifier checks it once.
 */
__noinline int pace_infer(u32 slot, u32 candidates, u32 fd, u64 buffer, u64 bytes)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct thread_state *thread = thread_at(slot);
	struct pace_thread *of = pace_of(slot);
	struct pace_rules *rules;
	u64 now, begin;
	struct pace_key key = {};
	struct pace_task *task;
	u32 i;

	if (!(config.enabled & PACE) || pace_is_exempt(slot))
		return 0;
	rules = pace_rules_of(of->session);
	if (fd != PACE_NO_FD)
		pace_find_key(current, fd, &key);
	if (buffer && key.descriptor == PACE_INPUT)
		key.detail = pace_input_event(buffer, bytes);
	for (i = 0; i < PACE_RULES; i++) {
		if (candidates & 1U << i && pace_rule_matches(&rules->rule[i], of, &key))
			break;
	}
	begin = of->woken_in == thread->call + 1 ? of->woken_ns : 0;
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
	task = pace_new(thread, pace_take_entry(), 0, now);
	if (!task)
		return 0;
	if (begin)
		task->begin_ns = begin;
	task->rule = i;
	task->descriptor = key.descriptor;
	task->detail = key.detail;
	pace_begin(thread, task, now);
	return 0;
}

#endif
