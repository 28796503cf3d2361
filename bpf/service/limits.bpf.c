// SPDX-License-Identifier: GPL-2.0
/*
 * Limits of services that control groups do not have: sockets, connections, and bytes sent in a
 * second. The programs are attached to the root of the hierarchy of control groups, so every
 * process passes them. They use the gate's maps.
 */
#include "service/binding.bpf.h"
#include "service/sockets.bpf.h"

char LICENSE[] SEC("license") = "GPL";

/* The maximum depth of a service: the service itself and its ancestors, without the root. */
#define SERVICE_DEPTH 8

/* The services for which a socket or its connection is counted; 0: no further ones. */
struct socket_counted_by {
	u16 socket[SERVICE_DEPTH];
	u16 connection[SERVICE_DEPTH];
};

struct service_limit limits[SERVICES] SEC(".bss.limits");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct socket_counted_by);
} socket_counts SEC(".maps");

/* What is limited in number. */
enum limited {
	LIMIT_SOCKETS,
	LIMIT_CONNECTIONS,
};

static __always_inline struct service_limit *limit_of(u32 service)
{
	return &limits[service & (SERVICES - 1)];
}

/*
 * The gate records the parent of a dynamic service, because user space knows of the service only
 * after its next poll.
 */
static __always_inline u32 parent_service(u32 service)
{
	return service >= SERVICES_DYNAMIC ? services[service & (SERVICES - 1)].rule_service :
					     limit_of(service)->parent;
}

static __always_inline void count_one(struct service_limit *limit, enum limited what, s64 change)
{
	__sync_fetch_and_add(what == LIMIT_SOCKETS ? &limit->sockets : &limit->connections, change);
}

static __always_inline bool is_full(struct service_limit *limit, enum limited what)
{
	if (what == LIMIT_SOCKETS)
		return limit->sockets >= limit->sockets_max;
	return limit->connections >= limit->connections_max;
}

/* The first of the service and its ancestors that is at its limit; SERVICE_ROOT: none is. */
static __noinline u32 full_ancestor(u32 service, enum limited what)
{
	for (int i = 0; i < SERVICE_DEPTH && service != SERVICE_ROOT; i++) {
		if (is_full(limit_of(service), what))
			return service;
		service = parent_service(service);
	}
	return SERVICE_ROOT;
}

static __always_inline void count_socket(u16 *chain, u32 service, enum limited what)
{
	for (int i = 0; i < SERVICE_DEPTH && service != SERVICE_ROOT; i++) {
		count_one(limit_of(service), what, 1);
		chain[i] = service;
		service = parent_service(service);
	}
}

static __always_inline void uncount_socket(u16 *chain, enum limited what)
{
	for (int i = 0; i < SERVICE_DEPTH && chain[i]; i++) {
		count_one(limit_of(chain[i]), what, -1);
		chain[i] = 0;
	}
}

/*
 * Counts one more socket or connection for the service that the thread works for. Returns 0 or a
 * negative errno. Two threads at the same time may both get the last one that the limit allows.
 */
static __always_inline int count_or_refuse(struct socket_counted_by *own, enum limited what)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 slot = slot_of(task), service, full, fallback;
	struct thread_state *thread = thread_at(slot);

	if (!slot || !(thread->mask & SERVICE))
		return 0;
	service = successor_of(member_of(thread)->service);
	full = full_ancestor(service, what);
	if (unlikely(full != SERVICE_ROOT)) {
		fallback = limit_of(full)->fallback;
		if (fallback == SERVICE_NONE || full_ancestor(fallback, what) != SERVICE_ROOT) {
			__sync_fetch_and_add(&limit_of(full)->refused, 1);
			return limit_of(full)->error;
		}
		__sync_fetch_and_add(&limit_of(full)->rebound, 1);
		service_rebind(thread, fallback, WHY_LIMITED, BINDING_REQUEST, 0, true);
		service = fallback;
	}
	count_socket(what == LIMIT_SOCKETS ? own->socket : own->connection, service, what);
	return 0;
}

static __always_inline int refuse(int error)
{
	if (error)
		bpf_set_retval(error);
	return !error;
}

SEC("cgroup/sock_create")
int limit_socket(struct bpf_sock *sk)
{
	struct socket_counted_by *own = bpf_sk_storage_get(&socket_counts, sk, NULL,
							   BPF_SK_STORAGE_GET_F_CREATE);

	/* If another program has refused the socket, its release is not reported. */
	return own && bpf_get_retval() >= 0 ? refuse(count_or_refuse(own, LIMIT_SOCKETS)) : 1;
}

SEC("cgroup/sock_release")
int limit_release(struct bpf_sock *sk)
{
	struct socket_counted_by *own = bpf_sk_storage_get(&socket_counts, sk, NULL, 0);

	if (own) {
		uncount_socket(own->socket, LIMIT_SOCKETS);
		uncount_socket(own->connection, LIMIT_CONNECTIONS);
	}
	return 1;
}

static __always_inline int limit_connect(struct bpf_sock_addr *address)
{
	struct bpf_sock *sk = address->sk;
	struct socket_counted_by *own;

	if (!sk || address->protocol != IPPROTO_TCP)
		return 1;
	own = bpf_sk_storage_get(&socket_counts, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	/* The connection is counted already, and the socket tries another address. */
	if (!own || own->connection[0])
		return 1;
	return refuse(count_or_refuse(own, LIMIT_CONNECTIONS));
}

SEC("cgroup/connect4")
int limit_connect4(struct bpf_sock_addr *address)
{
	return limit_connect(address);
}

SEC("cgroup/connect6")
int limit_connect6(struct bpf_sock_addr *address)
{
	return limit_connect(address);
}

/* include/linux/bpf-cgroup-defs.h and v6.18 net/core/filter.c: results of an egress program. */
/* Not sent; TCP tries again later, and sends less. */
#define DROP 2
#define PASS 1
/* Sent, and the sender is notified of congestion: TCP sends less. */
#define PASS_CONGESTED 3

/*
 * How far a service may be ahead of its rate. Up to this, packets pass. Up to about twice this,
 * they pass with a notification of congestion. Above that, they are dropped. The bound is a tenth
 * of a second, or the time to send a packet of the maximum length (64 KiB) if that is longer,
 * because the kernel passes such a packet on in one piece.
 */
#define MAX_AHEAD_NS 100000000ULL
#define MAX_PACKET 65536

/* Generic cell rate algorithm (ITU-T I.371). Its whole state is one word. */
static __always_inline int send_one(struct service_limit *limit, u32 bytes, u64 now)
{
	u64 takes_ns = bytes * 1000000000ULL / limit->rate_max;
	u64 ahead_most = MAX_PACKET * 1000000000ULL / limit->rate_max;
	u64 until = READ_ONCE(limit->sent_until_ns), next;

	if (ahead_most < MAX_AHEAD_NS)
		ahead_most = MAX_AHEAD_NS;
	if (until < now)
		until = now;
	if (until - now > 2 * ahead_most) {
		__sync_fetch_and_add(&limit->dropped, 1);
		return DROP;
	}
	next = until + takes_ns;
	/* If two processors send at the same time, only one packet counts. */
	limit->sent_until_ns = next;
	if (next - now <= ahead_most)
		return PASS;
	__sync_fetch_and_add(&limit->slowed, 1);
	return PASS_CONGESTED;
}

SEC("?cgroup_skb/egress")
int limit_sent(struct __sk_buff *packet)
{
	struct bpf_sock *sk = packet->sk;
	struct service_socket *socket;
	u64 now = bpf_ktime_get_ns();
	int decision = PASS, one;
	u32 service;

	sk = sk ? bpf_sk_fullsock(sk) : NULL;
	socket = sk ? bpf_sk_storage_get(&service_sockets, sk, NULL, 0) : NULL;
	if (!socket || !socket->direction.sender)
		return PASS;
	service = successor_of(socket->direction.service);
	for (int i = 0; i < SERVICE_DEPTH && service != SERVICE_ROOT; i++) {
		struct service_limit *limit = limit_of(service);

		if (limit->rate_max != NO_LIMIT) {
			one = send_one(limit, packet->len, now);
			if (one == DROP)
				return DROP;
			if (one != PASS)
				decision = one;
		}
		service = parent_service(service);
	}
	return decision;
}
