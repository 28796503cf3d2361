/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Work that moves by messages. What a thread sends carries its service. When a thread receives over
 * a connection that its own side accepted, the rules are matched. A reply over a connection that
 * its own side opened returns it to the service for which it sent the request.
 */
#ifndef TOLLGATE_SERVICE_SOCKETS_BPF_H
#define TOLLGATE_SERVICE_SOCKETS_BPF_H

#include "service/service.bpf.h"

HASH_MAP(tcp_directions, 2 * CONNECTIONS, struct service_flow_key, struct service_direction);

/*
 * include/linux/socket.h, include/linux/net.h, include/uapi/linux/in.h, include/net/tcp_states.h,
 * include/linux/if.h
 */
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

/*
 * Documentation/networking/ip-sysctl.rst, ip_local_port_range: from here on the kernel assigns
 * ports itself.
 */
#define EPHEMERAL_PORTS 32768

static __always_inline struct service_socket *socket_of(struct sock *sk, u64 flags)
{
	struct service_socket *socket = bpf_sk_storage_get(&service_sockets, sk, NULL, flags);

	/*
	 * If both ends create it at the same time, one of them gets nothing the first time (v6.18
	 * net/core/bpf_sk_storage.c).
	 */
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

/* The flow key of what the socket's owner sends. */
static __always_inline void flow_key_of(struct service_flow_key *route, const struct sock *sk)
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

static __always_inline void reverse_flow(struct service_flow_key *back, const struct service_flow_key *route)
{
	__builtin_memcpy(back->from, route->to, sizeof(back->from));
	__builtin_memcpy(back->to, route->from, sizeof(back->to));
	back->from_port = route->to_port;
	back->to_port = route->from_port;
	back->net = route->net;
}

/* Whether its packets stay on this machine. */
static __always_inline bool is_local(struct sock *sk)
{
	struct dst_entry *route = sk->sk_dst_cache;
	struct net_device *device;

	if (!route)
		return false;
	device = route->dev;
	return device && device->flags & IFF_LOOPBACK;
}

static __always_inline u32 role_by_ports(const struct service_flow_key *route)
{
	bool is_server = route->from_port < EPHEMERAL_PORTS, has_server = route->to_port < EPHEMERAL_PORTS;

	if (is_server == has_server)
		return ROLE_NEITHER;
	return is_server ? ROLE_ACCEPTED : ROLE_OPENED;
}

/* An accepted socket has the name of the listening one; a client's usually has none. */
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
	/* A path ends with a NUL; an abstract name begins with one. */
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

static __always_inline void connection_of_tcp(struct service_connection *connection, const struct service_flow_key *route)
{
	u64 address = header.salt;

	connection->listen_path = 0;
	address = hash_mix(address, route->from[0]);
	connection->listen_address = hash_mix(address, route->from[1]);
	connection->listen_port = route->from_port;
	connection->client[0] = route->to[0];
	connection->client[1] = route->to[1];
	connection->client_family = is_ipv4(route->to) ? 4 : 6;
}

/* Whether a call sends. */
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
 * The service of the message that is being received. A sender's service is recorded when its send
 * ends, and the message may be here before that. If the sender has another service than recorded,
 * and its latest call is a send by the same descriptor, then it is still in that send. If the
 * descriptor is another one, it is sending elsewhere, and this message has waited here for long.
 */
static __always_inline u32 sender_service(struct service_direction *direction)
{
	struct thread_state *sender;
	u32 service = direction->service;

	if (!direction->sender)
		return SERVICE_NONE;
	sender = thread_at(direction->sender);
	if (likely(member_of(sender)->service == service) || member_of(sender)->epoch != direction->epoch)
		return successor_of(service);
	/* The first message is for the service that opened the connection. */
	if (direction->is_opening && direction->binding)
		return successor_of(service);
	if (sends(sender->call) && member_of(sender)->descriptor == direction->descriptor)
		service = member_of(sender)->service;
	return successor_of(service);
}

/* Besides the numbers of services and SERVICE_NONE. */
#define NO_REQUEST 0x10000

/*
 * If it is not known which side accepted a connection, a message of another process for another
 * service may be a request or a reply. A thread that adopts its sender's service then works for all
 * of them.
 */
static __always_inline u32 message_service(struct thread_state *thread, struct service_socket *socket,
					      struct service_direction *direction)
{
	u32 service = direction ? sender_service(direction) : SERVICE_NONE;

	if (likely(socket->role == ROLE_ACCEPTED))
		return service;
	if (!direction || service == SERVICE_NONE || service == successor_of(member_of(thread)->service) ||
	    thread_at(direction->sender)->tgid == thread->tgid)
		return NO_REQUEST;
	return SERVICE_SHARED;
}

/* Conditions whose values may change between two messages. */
#define FIELDS_THAT_CHANGE (FIELD_SERVICE | FIELD_CGROUP | FIELD_UNIT)

/*
 * Matches the rules, unless this socket has matched the same values before. The conditions
 * `that_change` are matched each time.
 */
__noinline int service_classify_message(u32 slot, struct service_socket *socket, u32 peer, u32 that_change)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread = thread_at(slot);
	struct service_member *member = member_of(thread);
	u32 number = READ_ONCE(header.ruleset), fields = rulesets[number & 1].fields;
	struct rule_query question = {};
	bool is_known;

	if (!(config.enabled & SERVICE) || !socket || !rulesets[number & 1].tuple_count[EVENT_RECEIVE])
		return 0;
	is_known = socket->cached_ruleset == number && socket->cached_peer == peer && socket->cached_exe == member->exe &&
		   socket->cached_user == member->user;
	if (!is_known || (fields & that_change)) {
		fill_query(&question, member, EVENT_RECEIVE, peer);
		match_rules(&question, task);
		socket->cached_rule = question.rule;
		socket->cached_peer = peer;
		socket->cached_exe = member->exe;
		socket->cached_user = member->user;
		socket->cached_ruleset = question.book;
	}
	if (socket->role == ROLE_NEITHER && socket->cached_rule.then != ACTION_ADOPTS_PEER)
		return 0;
	service_apply_rule(thread, task, &socket->cached_rule, EVENT_RECEIVE, peer, true);
	socket->receiver = slot;
	socket->receiver_epoch = member->epoch;
	socket->receiver_service = member->service;
	return 0;
}

/*
 * A reply by a thread that has received for another service since: it serves several at once. What
 * it did in between may have been for either service, and nothing says for which, so this is
 * counted. Until it receives again, it works for SERVICE_SHARED.
 */
static __noinline void service_reply(struct thread_state *thread, struct task_struct *task,
					struct service_socket *socket)
{
	struct service_member *member = member_of(thread);
	struct service_account *account;
	u32 service = successor_of(member->service);

	if (socket->receiver != thread->slot || socket->receiver_epoch != member->epoch ||
	    successor_of(socket->receiver_service) == service)
		return;
	if (member->why != WHY_RECEIVED && member->why != WHY_RESUMED)
		return;
	account = bpf_map_lookup_elem(&accounts, &service);
	if (account)
		__sync_fetch_and_add(&account->shared_replies, 1);
	service_rebind(thread, SERVICE_SHARED, WHY_SHARED_REPLY, BINDING_REQUEST, 0, true);
}

/* A reply over a connection that its side opened: work continues for the requesting service. */
static __always_inline void service_restore(struct thread_state *thread, struct task_struct *task,
					   struct service_direction *request)
{
	if (request->sender && members[request->sender & (THREADS - 1)].epoch == request->epoch)
		service_rebind(thread, successor_of(request->service), WHY_RESUMED, request->binding,
				member_of(thread)->rule_number, true);
}

/*
 * A thread has received from a sender that is not known yet: it gets a message later, and what it
 * uses from here on is charged then.
 */
static __always_inline void service_await_sender(struct thread_state *thread, struct task_struct *task,
					 struct service_direction *direction, u32 slot)
{
	struct service_member *member = member_of(thread);

	member->version++;
	service_charge(thread, task, bpf_ktime_get_ns(), true);
	member->version++;
	direction->receive_number = member->receives;
	WRITE_ONCE(direction->receiver, slot);
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

static __noinline void service_received_tcp(struct thread_state *thread, struct task_struct *task, struct sock *sk, u32 slot)
{
	struct service_socket *socket = socket_of(sk, BPF_SK_STORAGE_GET_F_CREATE);
	struct service_flow_key route = {}, back = {};
	struct service_direction *direction;
	u32 service;

	if (!socket) {
		count_loss(READ_ONCE(header.services_session), LOSS_CONNECTIONS);
		return;
	}
	flow_key_of(&route, sk);
	if (socket->role == ROLE_UNKNOWN)
		socket->role = role_by_ports(&route);
	if (socket->role == ROLE_OPENED) {
		service_restore(thread, task, &socket->direction);
		return;
	}
	reverse_flow(&back, &route);
	direction = bpf_map_lookup_elem(&tcp_directions, &back);
	service = message_service(thread, socket, direction);
	if (service == NO_REQUEST)
		return;
	connection_of_tcp(&member_of(thread)->connection, &route);
	member_of(thread)->receives++;
	if (direction && service == SERVICE_NONE)
		service_await_sender(thread, task, direction, slot);
	service_classify_message(thread->slot, socket, service, FIELDS_THAT_CHANGE);
	if (direction && service == SERVICE_NONE)
		socket->receiver = 0;
}

/*
 * The thread in this slot uses the direction for its service from now on. A thread that has
 * received before this was known gets a message.
 */
static __always_inline void record_sender(struct service_direction *direction, u32 slot, u32 service, bool is_opening)
{
	u32 reader;
	u64 message;

	direction->service = service;
	direction->epoch = members[slot & (THREADS - 1)].epoch;
	direction->binding = members[slot & (THREADS - 1)].binding;
	direction->is_opening = is_opening;
	direction->descriptor = members[slot & (THREADS - 1)].descriptor;
	WRITE_ONCE(direction->sender, slot);
	reader = READ_ONCE(direction->receiver);
	if (likely(!reader))
		return;
	message = MESSAGE_PEER | service << MESSAGE_SERVICE_SHIFT | (u64)direction->receive_number << MESSAGE_VALUE_SHIFT;
	direction->receiver = 0;
	/* An assignment by hand takes precedence. */
	__sync_val_compare_and_swap(&members[reader & (THREADS - 1)].message, 0, message);
}

static __noinline void record_tcp_direction(struct sock *sk, u32 slot, u32 service, bool is_open, bool is_opening)
{
	struct service_flow_key route = {};
	struct service_direction *direction, fresh = {};

	flow_key_of(&route, sk);
	direction = bpf_map_lookup_elem(&tcp_directions, &route);
	if (!direction) {
		/*
		 * The end that closes first removes the other's direction: nothing is recorded
		 * then.
		 */
		if (!is_open || !is_local(sk))
			return;
		/*
		 * If the processor's reserve of memory was empty, an interrupt has refilled it by
		 * the second time.
		 */
		for (int times = 0; times < 2 && !direction; times++) {
			bpf_map_update_elem(&tcp_directions, &route, &fresh, BPF_NOEXIST);
			direction = bpf_map_lookup_elem(&tcp_directions, &route);
		}
		if (!direction) {
			count_loss(READ_ONCE(header.services_session), LOSS_CONNECTIONS);
			return;
		}
	}
	record_sender(direction, slot, service, is_opening);
}

static __always_inline void service_sent(struct thread_state *thread, struct task_struct *task, struct sock *sk, u32 slot)
{
	struct service_socket *socket = socket_of(sk, BPF_SK_STORAGE_GET_F_CREATE);
	u32 service;

	if (!socket) {
		count_loss(READ_ONCE(header.services_session), LOSS_CONNECTIONS);
		return;
	}
	if (socket->role == ROLE_ACCEPTED && socket->receiver_service != member_of(thread)->service)
		service_reply(thread, task, socket);
	/* An event loop may have received for others until the connection was established. */
	if (socket->direction.is_opening && socket->direction.binding && socket->direction.sender == slot)
		service_restore(thread, task, &socket->direction);
	service = member_of(thread)->service;
	if (likely(!socket->direction.is_opening && socket->direction.sender == slot && socket->direction.service == service &&
		   socket->direction.epoch == member_of(thread)->epoch &&
		   socket->direction.binding == member_of(thread)->binding))
		return;
	record_sender(&socket->direction, slot, service, false);
	if (is_tcp(sk))
		record_tcp_direction(sk, slot, service, sk->__sk_common.skc_state == TCP_ESTABLISHED, false);
}

static __always_inline bool is_followed(struct sock *sk)
{
	u16 family = sk->__sk_common.skc_family;

	if (family == AF_UNIX)
		return sk->sk_type == SOCK_STREAM || sk->sk_type == SOCK_SEQPACKET;
	return is_tcp(sk) || is_udp(sk);
}

/* The slot of the thread that runs here, also if the switch to it was not reported. */
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
	/* For the service that it works for now: the message begins that work. */
	if (!(flags & MSG_PEEK))
		member_of(thread)->received_bytes += length;
}

static __always_inline void message_sent(struct sock *sk, int length)
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

/* Records which side opened and which accepted a connection; removes what a closed one left. */
static __always_inline void tcp_state_changed(struct sock *sk, int before, int now)
{
	struct service_flow_key route = {}, back = {};
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
			record_sender(&socket->direction, slot, members[slot & (THREADS - 1)].service, true);
	} else if (now == TCP_ESTABLISHED && before == TCP_SYN_SENT) {
		socket = socket_of(sk, 0);
		flow_key_of(&route, sk);
		/* Left over from an earlier connection between the same ports. */
		bpf_map_delete_elem(&tcp_directions, &route);
		if (socket && socket->direction.sender)
			record_tcp_direction(sk, socket->direction.sender,
				   socket->direction.service, true, socket->direction.is_opening);
	} else if (now == TCP_ESTABLISHED && before == TCP_SYN_RECV) {
		socket = socket_of(sk, BPF_SK_STORAGE_GET_F_CREATE);
		if (socket)
			socket->role = ROLE_ACCEPTED;
	} else if (now == TCP_CLOSE) {
		flow_key_of(&route, sk);
		/* Its port is released before this event (v6.18 net/ipv4/tcp.c, tcp_set_state). */
		route.from_port = __builtin_bswap16(BPF_CORE_READ((struct inet_sock *)sk, inet_sport));
		reverse_flow(&back, &route);
		bpf_map_delete_elem(&tcp_directions, &back);
	}
}

#endif
