/* SPDX-License-Identifier: GPL-2.0 */
/* A thread has received or sends a message over a socket. */
#ifndef TOLLGATE_SERVICE_MESSAGES_BPF_H
#define TOLLGATE_SERVICE_MESSAGES_BPF_H

#include "service/datagrams.bpf.h"
#include "service/streams.bpf.h"

static __always_inline void service_sock_recv(struct sock *sk, int length, int flags)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 slot = running_slot(task);
	struct thread_state *thread = thread_at(slot);

	if (!slot || !sk || !has(thread, SERVICE) || is_retired())
		return;
	/* A datagram may be empty. */
	if (length < 0 || (!length && !is_udp(sk)))
		return;
	if (is_followed(sk)) {
		if (sk->__sk_common.skc_family == AF_UNIX)
			service_received_unix(thread, task, sk, slot);
		else if (is_tcp(sk))
			service_received_tcp(thread, task, sk, slot);
		else
			service_received_datagram(thread, task, sk);
	}
	/*
	 * The bytes count for the service that the thread works for now, because the message begins
	 * that work.
	 */
	if (!(flags & MSG_PEEK))
		member_of(thread)->received_bytes += length;
}

static __always_inline void service_sock_send(struct sock *sk, int length)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 slot = running_slot(task);
	struct thread_state *thread = thread_at(slot);

	if (!slot || length <= 0 || !sk || !has(thread, SERVICE) || is_retired())
		return;
	member_of(thread)->sent_bytes += length;
	if (is_followed(sk))
		service_sent(thread, task, sk, slot);
	if (unlikely(cgroup_service_of(member_of(thread)->service)))
		note_reply(member_of(thread), socket_of(sk, 0));
}

#endif
