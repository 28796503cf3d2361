/* SPDX-License-Identifier: GPL-2.0 */
/* Messages over TCP and Unix sockets. */
#ifndef TOLLGATE_SERVICE_STREAMS_BPF_H
#define TOLLGATE_SERVICE_STREAMS_BPF_H

#include "service/requests.bpf.h"

/* The maximum number of connections over loopback at a time. Each has two directions. */
#define CONNECTIONS 131072

HASH_MAP(service_tcp_directions, 2 * CONNECTIONS, struct service_flow_key,
	 struct service_direction);

/* An accepted socket has the name of the listening one; a client's usually has none. */
static __always_inline void name_unix_socket(struct service_socket *socket, struct unix_sock *own,
					     struct unix_sock *peer)
{
	struct unix_address *name = own->addr;
	struct name_scratch *scratch = this_scratch();
	u32 length;

	if (!name == !peer->addr) {
		socket->role = ROLE_NEITHER;
		return;
	}
	if (!name) {
		socket->role = ROLE_OPENED;
		return;
	}
	socket->role = ROLE_ACCEPTED;
	length = BPF_CORE_READ(name, len) - bpf_core_field_offset(struct sockaddr_un, sun_path);
	if (!scratch || length == 0 || length >= NAME_LEN)
		return;
	if (bpf_probe_read_kernel(scratch->text, length, &name->name[0].sun_path))
		return;
	/* A path ends with a NUL; an abstract name begins with one. */
	if (!scratch->text[0]) {
		scratch->text[0] = '@';
		socket->listen_path = hash_text(length);
	} else {
		socket->listen_path = hash_text(length - 1);
	}
}

static __noinline void service_received_unix(struct thread_state *thread, struct task_struct *task,
					     struct sock *sk, u32 slot)
{
	struct unix_sock *own = bpf_skc_to_unix_sock(sk), *other;
	struct service_socket *socket, *peer;
	struct sock *peer_sk;
	u32 service;

	if (!own)
		return;
	socket = socket_of(sk, BPF_SK_STORAGE_GET_F_CREATE);
	peer_sk = own->peer;
	if (!socket || !peer_sk)
		return;
	other = bpf_skc_to_unix_sock(peer_sk);
	if (!other)
		return;
	if (socket->role == ROLE_UNKNOWN)
		name_unix_socket(socket, own, other);
	if (socket->role == ROLE_OPENED) {
		service_restore(thread, task, &socket->direction);
		return;
	}
	peer = socket_of(peer_sk, BPF_SK_STORAGE_GET_F_CREATE);
	if (!peer) {
		count_loss(READ_ONCE(header.services_session), LOSS_CONNECTIONS);
		return;
	}
	service = message_service(thread, socket, &peer->direction);
	if (service == NO_REQUEST)
		return;
	connection_of_unix(&member_of(thread)->connection, socket);
	member_of(thread)->receives++;
	if (service == SERVICE_NONE)
		service_await_sender(thread, task, &peer->direction, slot);
	service_classify_message(thread->slot, socket, service, FIELDS_THAT_CHANGE);
	if (service == SERVICE_NONE)
		socket->receiver = 0;
}

static __noinline void service_received_tcp(struct thread_state *thread, struct task_struct *task,
					    struct sock *sk, u32 slot)
{
	struct service_socket *socket = socket_of(sk, BPF_SK_STORAGE_GET_F_CREATE);
	struct service_flow_key flow = {}, back = {};
	struct service_direction *direction;
	u32 service;

	if (!socket) {
		count_loss(READ_ONCE(header.services_session), LOSS_CONNECTIONS);
		return;
	}
	flow_key_of(&flow, sk);
	if (socket->role == ROLE_UNKNOWN)
		socket->role = role_by_ports(&flow);
	if (socket->role == ROLE_OPENED) {
		service_restore(thread, task, &socket->direction);
		return;
	}
	reverse_flow(&back, &flow);
	direction = bpf_map_lookup_elem(&service_tcp_directions, &back);
	service = message_service(thread, socket, direction);
	if (service == NO_REQUEST)
		return;
	connection_of_tcp(&member_of(thread)->connection, &flow);
	member_of(thread)->receives++;
	if (direction && service == SERVICE_NONE)
		service_await_sender(thread, task, direction, slot);
	service_classify_message(thread->slot, socket, service, FIELDS_THAT_CHANGE);
	if (direction && service == SERVICE_NONE)
		socket->receiver = 0;
}

static __noinline void record_tcp_direction(struct sock *sk, u32 slot, u32 service, bool is_open,
					    bool is_opening)
{
	struct service_flow_key flow = {};
	struct service_direction *direction, fresh = {};

	flow_key_of(&flow, sk);
	direction = bpf_map_lookup_elem(&service_tcp_directions, &flow);
	if (!direction) {
		/*
		 * The end that closes first removes the other end's direction. A removed direction
		 * is not recorded again.
		 */
		if (!is_open || !is_local(sk))
			return;
		/*
		 * Tries twice: if the processor's reserve of memory was empty the first time, an
		 * interrupt has refilled it by the second time.
		 */
		for (int times = 0; times < 2 && !direction; times++) {
			bpf_map_update_elem(&service_tcp_directions, &flow, &fresh, BPF_NOEXIST);
			direction = bpf_map_lookup_elem(&service_tcp_directions, &flow);
		}
		if (!direction) {
			count_loss(READ_ONCE(header.services_session), LOSS_CONNECTIONS);
			return;
		}
	}
	record_sender(direction, slot, service, is_opening);
}

static __always_inline void service_sent(struct thread_state *thread, struct task_struct *task,
					 struct sock *sk, u32 slot)
{
	struct service_socket *socket = socket_of(sk, BPF_SK_STORAGE_GET_F_CREATE);
	u32 service;

	if (!socket) {
		count_loss(READ_ONCE(header.services_session), LOSS_CONNECTIONS);
		return;
	}
	if (socket->role == ROLE_ACCEPTED && socket->receiver_service != member_of(thread)->service)
		service_reply(thread, task, socket);
	/*
	 * While the connection was being established, an event loop may have received requests of
	 * other services. The binding with which it opened the connection is restored.
	 */
	if (socket->direction.is_opening && socket->direction.binding &&
	    socket->direction.sender == slot)
		service_restore(thread, task, &socket->direction);
	service = member_of(thread)->service;
	if (likely(!socket->direction.is_opening && socket->direction.sender == slot &&
		   socket->direction.service == service &&
		   socket->direction.epoch == member_of(thread)->epoch &&
		   socket->direction.binding == member_of(thread)->binding))
		return;
	record_sender(&socket->direction, slot, service, false);
	if (is_tcp(sk))
		record_tcp_direction(sk, slot, service,
				     sk->__sk_common.skc_state == TCP_ESTABLISHED, false);
}

/* Records which side opened and which accepted a connection; removes what a closed one left. */
static __always_inline void service_tcp_state(struct sock *sk, int before, int now)
{
	struct service_flow_key flow = {}, back = {};
	struct service_socket *socket;
	u32 slot;

	if (!is_tcp(sk) || !READ_ONCE(header.services_session) || is_retired())
		return;
	if (now == TCP_SYN_SENT) {
		slot = running_slot(bpf_get_current_task_btf());
		socket = socket_of(sk, BPF_SK_STORAGE_GET_F_CREATE);
		if (!socket)
			return;
		socket->role = ROLE_OPENED;
		if (slot && has(thread_at(slot), SERVICE))
			record_sender(&socket->direction, slot,
				      members[slot & (THREADS - 1)].service, true);
	} else if (now == TCP_ESTABLISHED && before == TCP_SYN_SENT) {
		socket = socket_of(sk, 0);
		flow_key_of(&flow, sk);
		/* Left over from an earlier connection between the same ports. */
		bpf_map_delete_elem(&service_tcp_directions, &flow);
		if (socket && socket->direction.sender)
			record_tcp_direction(sk, socket->direction.sender,
					     socket->direction.service, true,
					     socket->direction.is_opening);
	} else if (now == TCP_ESTABLISHED && before == TCP_SYN_RECV) {
		socket = socket_of(sk, BPF_SK_STORAGE_GET_F_CREATE);
		if (socket)
			socket->role = ROLE_ACCEPTED;
	} else if (now == TCP_CLOSE) {
		flow_key_of(&flow, sk);
		/*
		 * The socket's port is released before this event (v6.18 net/ipv4/tcp.c,
		 * tcp_set_state).
		 */
		flow.from_port =
			__builtin_bswap16(BPF_CORE_READ((struct inet_sock *)sk, inet_sport));
		reverse_flow(&back, &flow);
		bpf_map_delete_elem(&service_tcp_directions, &back);
	}
}

#endif
