/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Messages over UDP. Before a datagram is delivered, its sender is recorded under the addresses in
 * the datagram. The receiver learns the source address from the kernel. The end that sent first is
 * the client.
 */
#ifndef TOLLGATE_SERVICE_DATAGRAMS_BPF_H
#define TOLLGATE_SERVICE_DATAGRAMS_BPF_H

#include "service/requests.bpf.h"

/* Datagrams from one socket to one port. */
struct datagram_key {
	u64 from[2];
	u16 from_port;
	u16 to_port;
	u32 net;
};

struct datagram_sender {
	/* The service for which the latest sender sent. */
	u16 service;
	/* The other end had already sent when this end sent for the first time. */
	u16 is_reply;
};

/* The maximum number of recorded senders (3 MiB). The least recently used ones are dropped. */
#define DATAGRAM_SENDERS 32768

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, DATAGRAM_SENDERS);
	__type(key, struct datagram_key);
	__type(value, struct datagram_sender);
} service_datagram_senders SEC(".maps");

/* include/uapi/linux/if_ether.h */
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd

/* include/uapi/linux/ip.h */
struct ipv4_header {
	u8 version_and_length;
	u8 service;
	u16 length;
	u16 id;
	__be16 fragment;
	u8 hops;
	u8 protocol;
	u16 sum;
	u32 from;
	u32 to;
};

#define FRAGMENT_OFFSET 0x1fff

/* include/uapi/linux/ipv6.h */
struct ipv6_header {
	u32 version_and_flow;
	u16 length;
	u8 protocol;
	u8 hops;
	struct in6_addr from;
	struct in6_addr to;
};

/* include/uapi/linux/udp.h: the beginning of the header. */
struct udp_ports {
	__be16 from;
	__be16 to;
};

/* The flow of an IPv4 datagram, and that of its replies. */
static __always_inline bool ipv4_datagram_key(struct datagram_key *flow, struct datagram_key *back,
					      const void *at)
{
	struct ipv4_header header;

	if (bpf_probe_read_kernel(&header, sizeof(header), at) || header.protocol != IPPROTO_UDP)
		return false;
	/* Only a datagram's first fragment has ports. */
	if (header.fragment & __builtin_bswap16(FRAGMENT_OFFSET))
		return false;
	ipv4_address(flow->from, header.from);
	ipv4_address(back->from, header.to);
	return true;
}

static __always_inline bool ipv6_datagram_key(struct datagram_key *flow, struct datagram_key *back,
					      const void *at)
{
	struct ipv6_header header;

	if (bpf_probe_read_kernel(&header, sizeof(header), at) || header.protocol != IPPROTO_UDP)
		return false;
	ipv6_address(flow->from, &header.from);
	ipv6_address(back->from, &header.to);
	return true;
}

static __always_inline bool datagram_key_of(struct datagram_key *flow, struct datagram_key *back,
					    struct sk_buff *packet)
{
	const void *head = packet->head;
	__be16 protocol = packet->protocol;
	struct net_device *device;
	struct udp_ports ports;
	bool is_udp = false;

	if (protocol == __builtin_bswap16(ETH_P_IP))
		is_udp = ipv4_datagram_key(flow, back, head + packet->network_header);
	else if (protocol == __builtin_bswap16(ETH_P_IPV6))
		is_udp = ipv6_datagram_key(flow, back, head + packet->network_header);
	if (likely(!is_udp) ||
	    bpf_probe_read_kernel(&ports, sizeof(ports), head + packet->transport_header))
		return false;
	device = packet->dev;
	if (!device || !(device->flags & IFF_LOOPBACK))
		return false;
	flow->from_port = __builtin_bswap16(ports.from);
	flow->to_port = __builtin_bswap16(ports.to);
	flow->net = device->nd_net.net->ns.inum;
	back->from_port = flow->to_port;
	back->to_port = flow->from_port;
	back->net = flow->net;
	return true;
}

/* The sending thread passes a datagram to the loopback device in its own call. */
static __always_inline void service_netif_rx(struct sk_buff *packet)
{
	struct datagram_key flow = {}, back = {};
	struct datagram_sender *known, *other, sender = {};
	struct thread_state *thread;
	u32 slot;

	if (!rulesets[READ_ONCE(header.ruleset) & 1].tuple_count[EVENT_RECEIVE] || is_retired() ||
	    !datagram_key_of(&flow, &back, packet))
		return;
	slot = running_slot(bpf_get_current_task_btf());
	thread = thread_at(slot);
	/* The thread that uses these ports now is no member of a service. */
	if (!slot || !has(thread, SERVICE)) {
		bpf_map_delete_elem(&service_datagram_senders, &flow);
		return;
	}
	sender.service = member_of(thread)->service;
	known = bpf_map_lookup_elem(&service_datagram_senders, &flow);
	if (known) {
		known->service = sender.service;
		return;
	}
	other = bpf_map_lookup_elem(&service_datagram_senders, &back);
	sender.is_reply = other && !other->is_reply;
	if (bpf_map_update_elem(&service_datagram_senders, &flow, &sender, BPF_ANY))
		count_loss(READ_ONCE(header.services_session), LOSS_CONNECTIONS);
}

/* The source of the datagram that the thread is about to receive. */
static __always_inline void service_recvmsg(struct bpf_sock_addr *from, u32 family)
{
	u32 slot = running_slot(bpf_get_current_task_btf());
	struct thread_state *thread = thread_at(slot);
	struct service_member *member = member_of(thread);

	if (!slot || !has(thread, SERVICE) || is_retired())
		return;
	if (family == AF_INET) {
		ipv4_address(member->datagram_from, from->user_ip4);
	} else {
		member->datagram_from[0] = from->user_ip6[0] | (u64)from->user_ip6[1] << 32;
		member->datagram_from[1] = from->user_ip6[2] | (u64)from->user_ip6[3] << 32;
	}
	member->datagram_port = __builtin_bswap16(from->user_port);
}

static __always_inline bool is_unspecified(const u64 address[2])
{
	return !address[0] && (!address[1] || address[1] == 0xffff0000ULL);
}

/* 127.0.0.0/8, ::1 */
static __always_inline bool is_loopback(const u64 address[2])
{
	if (is_ipv4(address))
		return (address[1] >> 32 & 0xff) == 127;
	return !address[0] && address[1] == 1ULL << 56;
}

/*
 * The thread has received a datagram. If the socket is not connected, the sender is known only if
 * the thread's call returns the sender's address. A thread that is to reply needs that address
 * anyway.
 */
static __noinline void service_received_datagram(struct thread_state *thread,
						 struct task_struct *task, struct sock *sk)
{
	struct service_member *member = member_of(thread);
	struct service_socket *socket = socket_of(sk, BPF_SK_STORAGE_GET_F_CREATE);
	struct service_flow_key flow = {};
	struct datagram_key key = {};
	struct datagram_sender *sender = NULL;
	bool is_client;
	u32 service;

	if (!socket) {
		count_loss(READ_ONCE(header.services_session), LOSS_CONNECTIONS);
		return;
	}
	flow_key_of(&flow, sk);
	is_client = flow.to_port;
	if (!is_client) {
		__builtin_memcpy(flow.to, member->datagram_from, sizeof(flow.to));
		flow.to_port = member->datagram_port;
	}
	member->datagram_port = 0;
	if (flow.to_port) {
		__builtin_memcpy(key.from, flow.to, sizeof(key.from));
		key.from_port = flow.to_port;
		key.to_port = flow.from_port;
		key.net = flow.net;
		sender = bpf_map_lookup_elem(&service_datagram_senders, &key);
		is_client = sender ? sender->is_reply :
				     is_client || role_by_ports(&flow) == ROLE_OPENED;
	}
	if (is_client) {
		service_restore(thread, task, &socket->direction);
		return;
	}
	connection_of_tcp(&member->connection, &flow);
	if (is_unspecified(flow.from))
		member->connection.listen_address = 0;
	if (!flow.to_port)
		member->connection.client_family = 0;
	member->receives++;
	service = sender ? successor_of(sender->service) : SERVICE_NONE;
	service_classify_message(thread->slot, socket, service, FIELDS_THAT_CHANGE | FIELD_CLIENT);
	/* A rule needs the sender, which was not recorded or was dropped. */
	if (!sender && socket->cached_rule.action == ACTION_ADOPTS_PEER &&
	    (!flow.to_port || is_loopback(flow.to)))
		count_loss(READ_ONCE(header.services_session), LOSS_CONNECTIONS);
}

#endif
