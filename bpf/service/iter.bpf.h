/* SPDX-License-Identifier: GPL-2.0 */
/* Writes members and sockets for user space to read. */
#ifndef TOLLGATE_SERVICE_ITER_BPF_H
#define TOLLGATE_SERVICE_ITER_BPF_H

#include "service/poll.bpf.h"
#include "service/sockets.bpf.h"

/* Writes a gated thread for the iterator over members. */
static __always_inline void service_write_member(struct seq_file *seq, struct thread_state *thread,
						 struct task_struct *task)
{
	struct service_member *member = member_of(thread);
	struct service_member_record record;
	struct task_counters counters = {};
	u64 now = bpf_ktime_get_ns();
	u64 message = READ_ONCE(member->message);
	u32 version = READ_ONCE(member->version), kind = message & 0xffff;
	u32 level = BPF_CORE_READ(bpf_get_current_task_btf(), thread_pid, level);

	__builtin_memset(&record, 0, sizeof(record));
	/* The numbers in the reader's PID namespace. */
	record.pid = visible_pid(task, level);
	record.tgid = visible_pid(task->group_leader, level);
	record.slot = thread->slot;
	record.epoch = member->epoch;
	record.began_ns = task->start_boottime;
	record.used_for = member->service;
	record.service = member->service;
	record.why = member->why;
	record.binding = member->binding;
	record.rule = member->rule_number;
	record.ruleset = member->ruleset;
	record.user = member->user;
	record.bound_ns = member->bound_ns;
	counters_now(member, task, now, false, &counters);
#define COPY_USAGE(field, value) record.since.field = value
	FOR_EACH_USAGE(COPY_USAGE);
	if (kind == MESSAGE_ASSIGN || kind == MESSAGE_RECLASSIFIED) {
		/* The thread will have this binding before it makes another call. */
		record.service = successor_of(message >> MESSAGE_SERVICE_SHIFT & 0xffff);
		record.why = kind == MESSAGE_ASSIGN ? WHY_ASSIGNED : WHY_ATTACHED;
		record.rule = kind == MESSAGE_ASSIGN ? 0 : message >> MESSAGE_VALUE_SHIFT;
		record.ruleset = header.ruleset;
		record.binding = kind == MESSAGE_ASSIGN ? BINDING_EXPLICIT : BINDING_OWN;
		record.bound_ns = kind == MESSAGE_ASSIGN ? assigned_ns(message, now) : 0;
	}
	/* If the member has changed meanwhile, its usage was charged to the accounts. */
	if ((version & 1) || version != READ_ONCE(member->version))
		__builtin_memset(&record.since, 0, sizeof(record.since));
	bpf_probe_read_kernel(record.comm, sizeof(record.comm), &task->comm);
	bpf_seq_write(seq, &record, sizeof(record));
}

/* The number of the socket's inode; 0: no process has it open. */
static __always_inline u64 inode_of(struct sock *sk)
{
	struct socket *socket = BPF_CORE_READ(sk, sk_socket);
	struct socket_alloc *both = (void *)socket -
				    bpf_core_field_offset(struct socket_alloc, socket);

	return socket ? BPF_CORE_READ(both, vfs_inode.i_ino) : 0;
}

static __always_inline void write_unix_socket(struct service_socket_record *record,
					      struct unix_sock *own)
{
	struct unix_address *name = BPF_CORE_READ(own, addr);
	struct sock *peer = BPF_CORE_READ(own, peer);
	u32 length;

	record->is_unix = 1;
	record->peer_inode = peer ? inode_of(peer) : 0;
	/* A client's socket usually has no name, so the other end's name is taken. */
	if (!name && peer)
		name = BPF_CORE_READ((struct unix_sock *)peer, addr);
	if (!name)
		return;
	length = BPF_CORE_READ(name, len) - bpf_core_field_offset(struct sockaddr_un, sun_path);
	barrier_var(length);
	if (length == 0 || length >= UNIX_NAME_LEN)
		return;
	bpf_probe_read_kernel(record->name, length, &name->name[0].sun_path);
	if (!record->name[0])
		record->name[0] = '@';
}

static __always_inline void service_write_socket(struct seq_file *seq, struct sock *sk,
						 struct service_socket *socket)
{
	struct service_direction *direction = &socket->direction;
	struct service_socket_record record;
	struct thread_state *sender = thread_at(direction->sender);
	/* The sender's number is reported as the reader's PID namespace has it. */
	u32 level = BPF_CORE_READ(bpf_get_current_task_btf(), thread_pid, level);

	__builtin_memset(&record, 0, sizeof(record));
	record.inode = inode_of(sk);
	record.role = socket->role;
	if (direction->sender && member_of(sender)->epoch == direction->epoch)
		record.sender = visible_pid((struct task_struct *)sender->task, level);
	record.service = direction->sender ? successor_of(direction->service) : SERVICE_NONE;
	record.binding = direction->binding;
	if (socket->cached_rule.action != ACTION_NONE)
		record.rule_number = socket->cached_rule.precedence + 1;
	record.ruleset = socket->cached_ruleset;
	if (sk->__sk_common.skc_family == AF_UNIX)
		write_unix_socket(&record, (struct unix_sock *)sk);
	else if (is_tcp(sk) || is_udp(sk))
		flow_key_of(&record.flow, sk);
	bpf_seq_write(seq, &record, sizeof(record));
}

#endif
