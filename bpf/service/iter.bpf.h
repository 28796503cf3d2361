/* SPDX-License-Identifier: GPL-2.0 */
/* Writes connections for user space to read. */
#ifndef TOLLGATE_SERVICE_ITER_BPF_H
#define TOLLGATE_SERVICE_ITER_BPF_H

#include "service/sockets.bpf.h"

/* 0: no process has it open. */
static __always_inline u64 inode_of(struct sock *sk)
{
	struct socket *socket = BPF_CORE_READ(sk, sk_socket);
	struct socket_alloc *both = (void *)socket - bpf_core_field_offset(struct socket_alloc, socket);

	return socket ? BPF_CORE_READ(both, vfs_inode.i_ino) : 0;
}

static __always_inline void write_unix_socket(struct service_socket_record *record, struct unix_sock *own)
{
	struct unix_address *name = BPF_CORE_READ(own, addr);
	struct sock *peer = BPF_CORE_READ(own, peer);
	u32 length;

	record->is_unix = 1;
	record->peer_inode = peer ? inode_of(peer) : 0;
	/* A client's socket usually has no name: the connection has that of the other end. */
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

static __always_inline void service_write_socket(struct seq_file *seq, struct sock *sk, struct service_socket *socket)
{
	struct service_direction *direction = &socket->direction;
	struct service_socket_record record;
	struct thread_state *sender = thread_at(direction->sender);
	/* As the reader sees it. */
	u32 level = BPF_CORE_READ(bpf_get_current_task_btf(), thread_pid, level);

	__builtin_memset(&record, 0, sizeof(record));
	record.inode = inode_of(sk);
	record.role = socket->role;
	if (direction->sender && member_of(sender)->epoch == direction->epoch)
		record.sender = visible_pid((struct task_struct *)sender->task, level);
	record.service = direction->sender ? successor_of(direction->service) : SERVICE_NONE;
	record.binding = direction->binding;
	if (socket->cached_rule.then != ACTION_NONE)
		record.rule_number = socket->cached_rule.precedence + 1;
	record.book = socket->cached_ruleset;
	if (sk->__sk_common.skc_family == AF_UNIX)
		write_unix_socket(&record, (struct unix_sock *)sk);
	else if (is_tcp(sk) || is_udp(sk))
		flow_key_of(&record.route, sk);
	bpf_seq_write(seq, &record, sizeof(record));
}

#endif
