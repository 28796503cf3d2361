/* SPDX-License-Identifier: GPL-2.0 */
/* Sockets: what is recorded of each, and the addresses of a connection. */
#ifndef TOLLGATE_SERVICE_SOCKETS_BPF_H
#define TOLLGATE_SERVICE_SOCKETS_BPF_H

#include "lib/hash.bpf.h"
#include "service/state.bpf.h"

/*
 * include/linux/socket.h, include/linux/net.h, include/uapi/linux/in.h, include/net/tcp_states.h,
 * include/linux/if.h
 */
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
 * Documentation/networking/ip-sysctl.rst, ip_local_port_range: the kernel itself assigns ports from
 * this number on.
 */
#define EPHEMERAL_PORTS 32768

/* One direction of a connection, and the service that uses it. */
struct service_direction {
	/* The service for which the latest sender sent. */
	u16 service;
	/* The latest sender: its `epoch` when it sent, and its slot; 0: nothing was sent. */
	u16 epoch;
	u32 sender;
	/*
	 * A thread that received before the sender was known: its slot, and the number of the
	 * receive.
	 */
	u32 receiver;
	u32 receive_number;
	/* enum service_binding of the latest sender. */
	u8 binding;
	/* Nothing was sent yet: the sender is the thread that opened the connection. */
	u8 is_opening;
	u16 unused;
	/* The descriptor of the latest send. */
	u32 descriptor;
};

/* One end of a connection. */
struct service_socket {
	/* enum service_role */
	u16 role;
	/* `cached_rule` holds for this peer, program, user and ruleset. */
	u16 cached_peer;
	u32 cached_user;
	u64 cached_exe;
	u32 cached_ruleset;
	struct service_rule cached_rule;
	u64 listen_path;
	/*
	 * The thread that received last, its `epoch` at that time, and the service that it worked
	 * for after that. 0: there is none, or the sender was not known.
	 */
	u32 receiver;
	u16 receiver_epoch;
	u16 receiver_service;
	u32 unused;
	/* What its owner sends. */
	struct service_direction direction;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct service_socket);
} service_sockets SEC(".maps");

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

static __always_inline bool is_followed(struct sock *sk)
{
	u16 family = sk->__sk_common.skc_family;

	if (family == AF_UNIX)
		return sk->sk_type == SOCK_STREAM || sk->sk_type == SOCK_SEQPACKET;
	return is_tcp(sk) || is_udp(sk);
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
static __always_inline void flow_key_of(struct service_flow_key *flow, const struct sock *sk)
{
	const struct sock_common *common = &sk->__sk_common;

	if (common->skc_family == AF_INET6) {
		ipv6_address(flow->from, &common->skc_v6_rcv_saddr);
		ipv6_address(flow->to, &common->skc_v6_daddr);
	} else {
		ipv4_address(flow->from, common->skc_rcv_saddr);
		ipv4_address(flow->to, common->skc_daddr);
	}
	flow->from_port = common->skc_num;
	flow->to_port = __builtin_bswap16(common->skc_dport);
	flow->net = common->skc_net.net->ns.inum;
}

static __always_inline void reverse_flow(struct service_flow_key *back,
					 const struct service_flow_key *flow)
{
	__builtin_memcpy(back->from, flow->to, sizeof(back->from));
	__builtin_memcpy(back->to, flow->from, sizeof(back->to));
	back->from_port = flow->to_port;
	back->to_port = flow->from_port;
	back->net = flow->net;
}

/* Whether the socket's packets stay on this machine. */
static __always_inline bool is_local(struct sock *sk)
{
	struct dst_entry *route = sk->sk_dst_cache;
	struct net_device *device;

	if (!route)
		return false;
	device = route->dev;
	return device && device->flags & IFF_LOOPBACK;
}

static __always_inline u32 role_by_ports(const struct service_flow_key *flow)
{
	bool is_server = flow->from_port < EPHEMERAL_PORTS,
	     has_server = flow->to_port < EPHEMERAL_PORTS;

	if (is_server == has_server)
		return ROLE_NEITHER;
	return is_server ? ROLE_ACCEPTED : ROLE_OPENED;
}

static __always_inline void connection_of_unix(struct service_connection *connection,
					       struct service_socket *socket)
{
	__builtin_memset(connection, 0, sizeof(*connection));
	connection->listen_path = socket->listen_path;
}

static __always_inline void connection_of_tcp(struct service_connection *connection,
					      const struct service_flow_key *flow)
{
	u64 address = header.salt;

	connection->listen_path = 0;
	address = hash_mix(address, flow->from[0]);
	connection->listen_address = hash_mix(address, flow->from[1]);
	connection->listen_port = flow->from_port;
	connection->client[0] = flow->to[0];
	connection->client[1] = flow->to[1];
	connection->client_family = is_ipv4(flow->to) ? 4 : 6;
}

#endif
