/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Work that moves by messages. What a thread sends has its service; who receives it over a connection that its own side
 * accepted asks the rules; an answer over a connection that it opened puts it back to the service for which it asked.
 */
#ifndef TOLLGATE_SERVICE_SOCKETS_BPF_H
#define TOLLGATE_SERVICE_SOCKETS_BPF_H

#include "service.bpf.h"

HASH_MAP(directions, 2 * CONNECTIONS, struct service_route, struct service_direction);

/* include/linux/socket.h, include/linux/net.h, include/uapi/linux/in.h, include/net/tcp_states.h, include/linux/if.h */
#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10
#define SOCK_STREAM 1
#define SOCK_SEQPACKET 5
#define IPPROTO_UDP 17
#define TCP_ESTABLISHED 1
#define TCP_SYN_SENT 2
#define TCP_SYN_RECV 3
#define TCP_CLOSE 7
#define IFF_LOOPBACK 8
#define MSG_PEEK 2

/* Documentation/networking/ip-sysctl.rst, ip_local_port_range: from here on the kernel gives out ports by itself. */
#define EPHEMERAL_PORTS 32768

static __always_inline struct service_socket *socket_of(struct sock *sk, u64 flags)
{
	struct service_socket *socket = bpf_sk_storage_get(&service_sockets, sk, NULL, flags);

	/* Where both ends make it at once, one of them gets nothing the first time (v6.18 net/core/bpf_sk_storage.c). */
	return socket || !flags ? socket : bpf_sk_storage_get(&service_sockets, sk, NULL, flags);
}

static __always_inline bool is_tcp(const struct sock *sk)
{
	u16 family = sk->__sk_common.skc_family;

	return (family == AF_INET || family == AF_INET6) && sk->sk_protocol == IPPROTO_TCP;
}

static __always_inline bool is_udp(const struct sock *sk)
{
	u16 family = sk->__sk_common.skc_family;

	return (family == AF_INET || family == AF_INET6) && sk->sk_protocol == IPPROTO_UDP;
}

static __always_inline void ipv4_address(u64 address[2], u32 ipv4)
{
	address[0] = 0;
	/* ::ffff:0:0/96, in network order. */
	address[1] = 0xffff0000ULL | (u64)ipv4 << 32;
}

static __always_inline void ipv6_address(u64 address[2], const struct in6_addr *ipv6)
{
	address[0] = ipv6->in6_u.u6_addr32[0] | (u64)ipv6->in6_u.u6_addr32[1] << 32;
	address[1] = ipv6->in6_u.u6_addr32[2] | (u64)ipv6->in6_u.u6_addr32[3] << 32;
}

static __always_inline bool is_ipv4(const u64 address[2])
{
	return !address[0] && (u32)address[1] == 0xffff0000U;
}

/* What the socket's owner sends, goes this way. */
static __always_inline void route_of(struct service_route *route, const struct sock *sk)
{
	const struct sock_common *common = &sk->__sk_common;

	if (common->skc_family == AF_INET6) {
		ipv6_address(route->from, &common->skc_v6_rcv_saddr);
		ipv6_address(route->to, &common->skc_v6_daddr);
	} else {
		ipv4_address(route->from, common->skc_rcv_saddr);
		ipv4_address(route->to, common->skc_daddr);
	}
	route->from_port = common->skc_num;
	route->to_port = __builtin_bswap16(common->skc_dport);
	route->net = common->skc_net.net->ns.inum;
}

static __always_inline void turn(struct service_route *back, const struct service_route *route)
{
	__builtin_memcpy(back->from, route->to, sizeof(back->from));
	__builtin_memcpy(back->to, route->from, sizeof(back->to));
	back->from_port = route->to_port;
	back->to_port = route->from_port;
	back->net = route->net;
}

/* Its packets stay on this machine. */
static __always_inline bool is_local(struct sock *sk)
{
	struct dst_entry *route = sk->sk_dst_cache;
	struct net_device *device;

	if (!route)
		return false;
	device = route->dev;
	return device && device->flags & IFF_LOOPBACK;
}

static __always_inline u32 role_by_ports(const struct service_route *route)
{
	bool is_server = route->from_port < EPHEMERAL_PORTS, has_server = route->to_port < EPHEMERAL_PORTS;

	if (is_server == has_server)
		return ROLE_NEITHER;
	return is_server ? ROLE_ACCEPTED : ROLE_OPENED;
}

/* An accepted socket has the name of the one that listens; who connects has none as a rule. */
static __always_inline void name_unix_socket(struct service_socket *socket, struct unix_sock *own, struct unix_sock *peer)
{
	struct unix_address *name = own->addr;
	struct service_scratch *room = scratch();
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
	if (!room || length == 0 || length >= NAME_LEN)
		return;
	if (bpf_probe_read_kernel(room->text, length, &name->name[0].sun_path))
		return;
	/* A path ends with a NUL, an abstract name begins with one. */
	if (!room->text[0]) {
		room->text[0] = '@';
		socket->listen_path = hash_text(length);
	} else {
		socket->listen_path = hash_text(length - 1);
	}
}

static __always_inline void connection_of_unix(struct service_connection *connection, struct service_socket *socket)
{
	__builtin_memset(connection, 0, sizeof(*connection));
	connection->listen_path = socket->listen_path;
}

static __always_inline void connection_of_tcp(struct service_connection *connection, const struct service_route *route)
{
	u64 address = header.salt;

	connection->listen_path = 0;
	address = mix(address, route->from[0]);
	connection->listen_address = mix(address, route->from[1]);
	connection->listen_port = route->from_port;
	connection->client[0] = route->to[0];
	connection->client[1] = route->to[1];
	connection->client_family = is_ipv4(route->to) ? 4 : 6;
}

/* Calls that send. */
static __always_inline bool sends(u32 call)
{
	switch (call) {
	case 1: /* write */
	case 20: /* writev */
	case 40: /* sendfile */
	case 44: /* sendto */
	case 46: /* sendmsg */
	case SPLICE_64:
	case 307: /* sendmmsg */
	case ABI_I386 * CALLS_PER_ABI + 4: /* write */
	case ABI_I386 * CALLS_PER_ABI + 102: /* socketcall */
	case ABI_I386 * CALLS_PER_ABI + 146: /* writev */
	case ABI_I386 * CALLS_PER_ABI + 187: /* sendfile */
	case ABI_I386 * CALLS_PER_ABI + 239: /* sendfile64 */
	case ABI_I386 * CALLS_PER_ABI + SPLICE_32:
	case ABI_I386 * CALLS_PER_ABI + 345: /* sendmmsg */
	case ABI_I386 * CALLS_PER_ABI + 369: /* sendto */
	case ABI_I386 * CALLS_PER_ABI + 370: /* sendmsg */
	case ABI_X32 * CALLS_PER_ABI + 1: /* write */
	case ABI_X32 * CALLS_PER_ABI + 40: /* sendfile */
	case ABI_X32 * CALLS_PER_ABI + 44: /* sendto */
	case ABI_X32 * CALLS_PER_ABI + SPLICE_64:
	case ABI_X32 * CALLS_PER_ABI + 516: /* writev */
	case ABI_X32 * CALLS_PER_ABI + 518: /* sendmsg */
	case ABI_X32 * CALLS_PER_ABI + 538: /* sendmmsg */
		return true;
	default:
		return false;
	}
}

/*
 * For whom the message came that is being received. What a sender works for is noted when its send is over, and the
 * message may be here before: a sender that has another service than noted, and whose latest call is a send by the same
 * descriptor, is in it. By another one, it is in a send to somebody else, and this message was waiting here for long.
 */
static __always_inline u32 service_of_sender(struct service_direction *direction)
{
	struct thread_state *sender;
	u32 service = direction->service;

	if (!direction->sender)
		return SERVICE_NONE;
	sender = thread_at(direction->sender);
	if (likely(member_of(sender)->service == service) || member_of(sender)->epoch != direction->epoch)
		return heir_of(service);
	/* The first one is for whom the connection was opened. */
	if (direction->is_opening && direction->borrowed)
		return heir_of(service);
	if (sends(sender->call) && member_of(sender)->descriptor == direction->descriptor)
		service = member_of(sender)->service;
	return heir_of(service);
}

/* Beside the services and SERVICE_NONE. */
#define NOT_A_REQUEST 0x10000

/*
 * Over a connection of which nobody knows who accepted it, a message of another process, for another service, may be a
 * request or an answer: whoever adopts its sender's service works for all of them then.
 */
static __always_inline u32 service_of_message(struct thread_state *thread, struct service_socket *socket,
					      struct service_direction *direction)
{
	u32 service = direction ? service_of_sender(direction) : SERVICE_NONE;

	if (likely(socket->role == ROLE_ACCEPTED))
		return service;
	if (!direction || service == SERVICE_NONE || service == heir_of(member_of(thread)->service) ||
	    thread_at(direction->sender)->tgid == thread->tgid)
		return NOT_A_REQUEST;
	return SERVICE_SHARED;
}

/* These may change between two messages. */
#define FIELDS_THAT_CHANGE (FIELD_SERVICE | FIELD_CGROUP | FIELD_UNIT)

/* The rules are asked, unless they were asked the same by this socket before: of other conditions than those `that_change`. */
__noinline int service_receive(u32 slot, struct service_socket *socket, u32 peer, u32 that_change)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread = thread_at(slot);
	struct service_member *member = member_of(thread);
	u32 number = READ_ONCE(header.book), fields = books[number & 1].fields;
	struct service_question question = {};
	bool is_known;

	if (!(config.enabled & SERVICE) || !socket || !books[number & 1].asked[EVENT_RECEIVE])
		return 0;
	is_known = socket->asked_book == number && socket->asked_peer == peer && socket->asked_exe == member->exe &&
		   socket->asked_user == member->user;
	if (!is_known || (fields & that_change)) {
		question_of(&question, member, EVENT_RECEIVE, peer);
		ask_rules(&question, task);
		socket->answer = question.best;
		socket->asked_peer = peer;
		socket->asked_exe = member->exe;
		socket->asked_user = member->user;
		socket->asked_book = question.book;
	}
	if (socket->role == ROLE_NEITHER && socket->answer.then != THEN_ADOPTS_PEER)
		return 0;
	service_obey(thread, task, &socket->answer, EVENT_RECEIVE, peer, true);
	socket->reader = slot;
	socket->reader_epoch = member->epoch;
	socket->reader_service = member->service;
	return 0;
}

/*
 * An answer by a thread that has received for somebody else since: it serves several at once. What it did in between may
 * have been for either of them, which is counted, as nothing says for which; until it receives again, it is shared.
 */
static __noinline void service_answered(struct thread_state *thread, struct task_struct *task,
					struct service_socket *socket)
{
	struct service_member *member = member_of(thread);
	struct service_account *account;
	u32 service = heir_of(member->service);

	if (socket->reader != thread->slot || socket->reader_epoch != member->epoch ||
	    heir_of(socket->reader_service) == service)
		return;
	if (member->why != WHY_RECEIVED && member->why != WHY_RESUMED)
		return;
	account = bpf_map_lookup_elem(&accounts, &service);
	if (account)
		__sync_fetch_and_add(&account->overlaps, 1);
	service_relabel(thread, SERVICE_SHARED, WHY_SEVERAL, BORROWED_FOR_WORK, 0, true);
}

/* An answer to what was asked over a connection that its own side opened: the work goes on for whom it was asked. */
static __always_inline void service_resume(struct thread_state *thread, struct task_struct *task,
					   struct service_direction *asked)
{
	if (asked->sender && members[asked->sender & (THREADS - 1)].epoch == asked->epoch)
		service_relabel(thread, heir_of(asked->service), WHY_RESUMED, asked->borrowed,
				member_of(thread)->rule, true);
}

/* Who has received before it is known from whom: told when it is, and charged for that from here on. */
static __always_inline void service_wait(struct thread_state *thread, struct task_struct *task,
					 struct service_direction *direction, u32 slot)
{
	struct service_member *member = member_of(thread);

	member->version++;
	service_charge(thread, task, bpf_ktime_get_ns(), true);
	member->version++;
	direction->receipt = member->receipts;
	WRITE_ONCE(direction->reader, slot);
}

static __noinline void service_received_unix(struct thread_state *thread, struct task_struct *task, struct sock *sk, u32 slot)
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
		service_resume(thread, task, &socket->direction);
		return;
	}
	peer = socket_of(peer_sk, BPF_SK_STORAGE_GET_F_CREATE);
	if (!peer) {
		lose(READ_ONCE(header.services), LOSS_CONNECTIONS);
		return;
	}
	service = service_of_message(thread, socket, &peer->direction);
	if (service == NOT_A_REQUEST)
		return;
	connection_of_unix(&member_of(thread)->connection, socket);
	member_of(thread)->receipts++;
	if (service == SERVICE_NONE)
		service_wait(thread, task, &peer->direction, slot);
	service_receive(thread->slot, socket, service, FIELDS_THAT_CHANGE);
	if (service == SERVICE_NONE)
		socket->reader = 0;
}

static __noinline void service_received_tcp(struct thread_state *thread, struct task_struct *task, struct sock *sk, u32 slot)
{
	struct service_socket *socket = socket_of(sk, BPF_SK_STORAGE_GET_F_CREATE);
	struct service_route route = {}, back = {};
	struct service_direction *direction;
	u32 service;

	if (!socket) {
		lose(READ_ONCE(header.services), LOSS_CONNECTIONS);
		return;
	}
	route_of(&route, sk);
	if (socket->role == ROLE_UNKNOWN)
		socket->role = role_by_ports(&route);
	if (socket->role == ROLE_OPENED) {
		service_resume(thread, task, &socket->direction);
		return;
	}
	turn(&back, &route);
	direction = bpf_map_lookup_elem(&directions, &back);
	service = service_of_message(thread, socket, direction);
	if (service == NOT_A_REQUEST)
		return;
	connection_of_tcp(&member_of(thread)->connection, &route);
	member_of(thread)->receipts++;
	if (direction && service == SERVICE_NONE)
		service_wait(thread, task, direction, slot);
	service_receive(thread->slot, socket, service, FIELDS_THAT_CHANGE);
	if (direction && service == SERVICE_NONE)
		socket->reader = 0;
}

/* The direction is used by this thread for its service from now on; who has received before it was known is told. */
static __always_inline void note_sender(struct service_direction *direction, u32 slot, u32 service, bool is_opening)
{
	u32 reader;
	u64 message;

	direction->service = service;
	direction->epoch = members[slot & (THREADS - 1)].epoch;
	direction->borrowed = members[slot & (THREADS - 1)].borrowed;
	direction->is_opening = is_opening;
	direction->descriptor = members[slot & (THREADS - 1)].descriptor;
	WRITE_ONCE(direction->sender, slot);
	reader = READ_ONCE(direction->reader);
	if (likely(!reader))
		return;
	message = MESSAGE_PEER | service << MESSAGE_SERVICE_SHIFT | (u64)direction->receipt << MESSAGE_VALUE_SHIFT;
	direction->reader = 0;
	/* What somebody has assigned meanwhile counts for more. */
	__sync_val_compare_and_swap(&members[reader & (THREADS - 1)].message, 0, message);
}

static __noinline void note_route(struct sock *sk, u32 slot, u32 service, bool is_open, bool is_opening)
{
	struct service_route route = {};
	struct service_direction *direction, fresh = {};

	route_of(&route, sk);
	direction = bpf_map_lookup_elem(&directions, &route);
	if (!direction) {
		/* Whoever closes its end first forgets the other's: nothing is noted after that. */
		if (!is_open || !is_local(sk))
			return;
		/* Where a processor's stock of memory was used up, an interrupt has filled it by the second time. */
		for (int times = 0; times < 2 && !direction; times++) {
			bpf_map_update_elem(&directions, &route, &fresh, BPF_NOEXIST);
			direction = bpf_map_lookup_elem(&directions, &route);
		}
		if (!direction) {
			lose(READ_ONCE(header.services), LOSS_CONNECTIONS);
			return;
		}
	}
	note_sender(direction, slot, service, is_opening);
}

static __always_inline void service_sent(struct thread_state *thread, struct task_struct *task, struct sock *sk, u32 slot)
{
	struct service_socket *socket = socket_of(sk, BPF_SK_STORAGE_GET_F_CREATE);
	u32 service;

	if (!socket) {
		lose(READ_ONCE(header.services), LOSS_CONNECTIONS);
		return;
	}
	if (socket->role == ROLE_ACCEPTED && socket->reader_service != member_of(thread)->service)
		service_answered(thread, task, socket);
	/* An event loop may have received for others until the connection was there. */
	if (socket->direction.is_opening && socket->direction.borrowed && socket->direction.sender == slot)
		service_resume(thread, task, &socket->direction);
	service = member_of(thread)->service;
	if (likely(!socket->direction.is_opening && socket->direction.sender == slot && socket->direction.service == service &&
		   socket->direction.epoch == member_of(thread)->epoch &&
		   socket->direction.borrowed == member_of(thread)->borrowed))
		return;
	note_sender(&socket->direction, slot, service, false);
	if (is_tcp(sk))
		note_route(sk, slot, service, sk->__sk_common.skc_state == TCP_ESTABLISHED, false);
}

static __always_inline bool is_followed(struct sock *sk)
{
	u16 family = sk->__sk_common.skc_family;

	if (family == AF_UNIX)
		return sk->sk_type == SOCK_STREAM || sk->sk_type == SOCK_SEQPACKET;
	return is_tcp(sk) || is_udp(sk);
}

/* The thread that runs here, with its slot: a switch to it may not have been reported. */
static __always_inline u32 running_slot(struct task_struct *task)
{
	struct cpu_state *cpu = this_cpu();

	return likely(cpu->task == (u64)task) ? cpu->slot : slot_of(task);
}

static void service_received_datagram(struct thread_state *thread, struct task_struct *task, struct sock *sk);

static __always_inline void message_received(struct sock *sk, int length, int flags)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 slot = running_slot(task);
	struct thread_state *thread = thread_at(slot);

	if (!slot || !sk || !has(thread, SERVICE) || retired())
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
	/* For whom it works now: the message is the beginning of that. */
	if (!(flags & MSG_PEEK))
		member_of(thread)->received_bytes += length;
}

static __always_inline void message_sent(struct sock *sk, int length)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 slot = running_slot(task);
	struct thread_state *thread = thread_at(slot);

	if (!slot || length <= 0 || !sk || !has(thread, SERVICE) || retired())
		return;
	member_of(thread)->sent_bytes += length;
	if (is_followed(sk))
		service_sent(thread, task, sk, slot);
	if (unlikely(place_of(member_of(thread)->service)))
		place_answered(member_of(thread), socket_of(sk, 0));
}

/* Who opened a connection, and who accepted it; and nothing stays of one that is closed. */
static __always_inline void tcp_changed(struct sock *sk, int before, int now)
{
	struct service_route route = {}, back = {};
	struct service_socket *socket;
	u32 slot;

	if (!is_tcp(sk) || !READ_ONCE(header.services) || retired())
		return;
	if (now == TCP_SYN_SENT) {
		slot = running_slot(bpf_get_current_task_btf());
		socket = socket_of(sk, BPF_SK_STORAGE_GET_F_CREATE);
		if (!socket)
			return;
		socket->role = ROLE_OPENED;
		if (slot && has(thread_at(slot), SERVICE))
			note_sender(&socket->direction, slot, members[slot & (THREADS - 1)].service, true);
	} else if (now == TCP_ESTABLISHED && before == TCP_SYN_SENT) {
		socket = socket_of(sk, 0);
		route_of(&route, sk);
		/* Of an earlier connection between the same ports. */
		bpf_map_delete_elem(&directions, &route);
		if (socket && socket->direction.sender)
			note_route(sk, socket->direction.sender,
				   socket->direction.service, true, socket->direction.is_opening);
	} else if (now == TCP_ESTABLISHED && before == TCP_SYN_RECV) {
		socket = socket_of(sk, BPF_SK_STORAGE_GET_F_CREATE);
		if (socket)
			socket->role = ROLE_ACCEPTED;
	} else if (now == TCP_CLOSE) {
		route_of(&route, sk);
		/* Its port was given back before this is told (v6.18 net/ipv4/tcp.c, tcp_set_state). */
		route.from_port = __builtin_bswap16(BPF_CORE_READ((struct inet_sock *)sk, inet_sport));
		turn(&back, &route);
		bpf_map_delete_elem(&directions, &back);
	}
}

#endif
