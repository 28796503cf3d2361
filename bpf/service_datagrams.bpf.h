/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Work that moves by UDP. A datagram's sender is noted before it is on its way, by the addresses that are in it, and its
 * receiver is told by the kernel from where it came. Who sent first is the client.
 */
#ifndef TOLLGATE_SERVICE_DATAGRAMS_BPF_H
#define TOLLGATE_SERVICE_DATAGRAMS_BPF_H

#include "service_sockets.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FLOWS);
	__type(key, struct service_flow);
	__type(value, struct service_flow_sender);
} flows SEC(".maps");

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

/* include/uapi/linux/udp.h: how it begins. */
struct udp_ports {
	__be16 from;
	__be16 to;
};

/* The flow of an IPv4 datagram, and from where its answers come. */
static __always_inline bool ipv4_flow(struct service_flow *flow, struct service_flow *back, const void *at)
{
	struct ipv4_header header;

	if (bpf_probe_read_kernel(&header, sizeof(header), at) || header.protocol != IPPROTO_UDP)
		return false;
	/* Only a datagram's first part has ports. */
	if (header.fragment & __builtin_bswap16(FRAGMENT_OFFSET))
		return false;
	ipv4_address(flow->from, header.from);
	ipv4_address(back->from, header.to);
	return true;
}

static __always_inline bool ipv6_flow(struct service_flow *flow, struct service_flow *back, const void *at)
{
	struct ipv6_header header;

	if (bpf_probe_read_kernel(&header, sizeof(header), at) || header.protocol != IPPROTO_UDP)
		return false;
	ipv6_address(flow->from, &header.from);
	ipv6_address(back->from, &header.to);
	return true;
}

static __always_inline bool flow_of(struct service_flow *flow, struct service_flow *back, struct sk_buff *packet)
{
	const void *head = packet->head;
	__be16 protocol = packet->protocol;
	struct net_device *device;
	struct udp_ports ports;
	bool is_udp = false;

	if (protocol == __builtin_bswap16(ETH_P_IP))
		is_udp = ipv4_flow(flow, back, head + packet->network_header);
	else if (protocol == __builtin_bswap16(ETH_P_IPV6))
		is_udp = ipv6_flow(flow, back, head + packet->network_header);
	if (likely(!is_udp) || bpf_probe_read_kernel(&ports, sizeof(ports), head + packet->transport_header))
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

/* A loopback device is handed a datagram by the thread that sends it, in its call. */
static __always_inline void datagram_sent(struct sk_buff *packet)
{
	struct service_flow flow = {}, back = {};
	struct service_flow_sender *known, *other, sender = {};
	struct thread_state *thread;
	u32 slot;

	if (!books[READ_ONCE(header.book) & 1].asked[EVENT_RECEIVE] || retired() || !flow_of(&flow, &back, packet))
		return;
	slot = running_slot(bpf_get_current_task_btf());
	thread = thread_at(slot);
	/* Whoever has used these ports before is not who does now. */
	if (!slot || !has(thread, SERVICE)) {
		bpf_map_delete_elem(&flows, &flow);
		return;
	}
	sender.service = member_of(thread)->service;
	known = bpf_map_lookup_elem(&flows, &flow);
	if (known) {
		known->service = sender.service;
		return;
	}
	other = bpf_map_lookup_elem(&flows, &back);
	sender.is_answer = other && !other->is_answer;
	if (bpf_map_update_elem(&flows, &flow, &sender, BPF_ANY))
		lose(READ_ONCE(header.services), LOSS_CONNECTIONS);
}

/* Whoever receives here is told where the datagram is from. */
static __always_inline void datagram_arrived(struct bpf_sock_addr *from, u32 family)
{
	u32 slot = running_slot(bpf_get_current_task_btf());
	struct thread_state *thread = thread_at(slot);
	struct service_member *member = member_of(thread);

	if (!slot || !has(thread, SERVICE) || retired())
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
 * It has received one. From whom a socket that is not connected has received is known if the thread has asked the kernel
 * for that, as it must to answer.
 */
static __noinline void service_received_datagram(struct thread_state *thread, struct task_struct *task, struct sock *sk)
{
	struct service_member *member = member_of(thread);
	struct service_socket *socket = socket_of(sk, BPF_SK_STORAGE_GET_F_CREATE);
	struct service_route route = {};
	struct service_flow flow = {};
	struct service_flow_sender *sender = NULL;
	bool is_client;
	u32 service;

	if (!socket) {
		lose(READ_ONCE(header.services), LOSS_CONNECTIONS);
		return;
	}
	route_of(&route, sk);
	is_client = route.to_port;
	if (!is_client) {
		__builtin_memcpy(route.to, member->datagram_from, sizeof(route.to));
		route.to_port = member->datagram_port;
	}
	member->datagram_port = 0;
	if (route.to_port) {
		__builtin_memcpy(flow.from, route.to, sizeof(flow.from));
		flow.from_port = route.to_port;
		flow.to_port = route.from_port;
		flow.net = route.net;
		sender = bpf_map_lookup_elem(&flows, &flow);
		is_client = sender ? sender->is_answer : is_client || role_by_ports(&route) == ROLE_OPENED;
	}
	if (is_client) {
		service_resume(thread, task, &socket->direction);
		return;
	}
	connection_of_tcp(&member->connection, &route);
	if (is_unspecified(route.from))
		member->connection.listen_address = 0;
	if (!route.to_port)
		member->connection.client_family = 0;
	member->receipts++;
	service = sender ? heir_of(sender->service) : SERVICE_NONE;
	service_receive(thread->slot, socket, service, FIELDS_THAT_CHANGE | FIELD_CLIENT);
	/* It was asked for, and noted by nobody, or not kept so long. */
	if (!sender && socket->answer.then == THEN_ADOPTS_PEER && (!route.to_port || is_loopback(route.to)))
		lose(READ_ONCE(header.services), LOSS_CONNECTIONS);
}

#endif
