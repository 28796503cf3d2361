// SPDX-License-Identifier: GPL-2.0
/*
 * Limits of services that control groups do not have: sockets, connections, and what is sent in a second. Programs of
 * control groups' hooks, over the gate's maps, at the root of the hierarchy: every process is asked there.
 */
/* The gate has use for all of them. */
#pragma clang diagnostic ignored "-Wunused-function"
#include "service.bpf.h"

char LICENSE[] SEC("license") = "GPL";

struct service_limit limits[SERVICES] SEC(".bss.limits");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct service_counted);
} counted SEC(".maps");

/* What limits are on: offsets in a service's counts. */
enum limited {
	LIMIT_SOCKETS,
	LIMIT_CONNECTIONS,
};

static __always_inline struct service_limit *limit_of(u32 service)
{
	return &limits[service & (SERVICES - 1)];
}

/* User space knows of those that rules start when it looks. */
static __always_inline u32 above(u32 service)
{
	return service >= SERVICES_STARTED ? services[service & (SERVICES - 1)].known_as : limit_of(service)->parent;
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

/* Of the service and those above it, one that can have no more; SERVICE_ROOT: there is none. */
static __noinline u32 full_service(u32 service, enum limited what)
{
	for (int i = 0; i < SERVICE_DEPTH && service != SERVICE_ROOT; i++) {
		if (is_full(limit_of(service), what))
			return service;
		service = above(service);
	}
	return SERVICE_ROOT;
}

static __always_inline void count_up(u16 *chain, u32 service, enum limited what)
{
	for (int i = 0; i < SERVICE_DEPTH && service != SERVICE_ROOT; i++) {
		count_one(limit_of(service), what, 1);
		chain[i] = service;
		service = above(service);
	}
}

static __always_inline void count_down(u16 *chain, enum limited what)
{
	for (int i = 0; i < SERVICE_DEPTH && chain[i]; i++) {
		count_one(limit_of(chain[i]), what, -1);
		chain[i] = 0;
	}
}

/*
 * One more for the service that the thread works for; 0, or an errno. Two that come at the same time may both be the
 * last one.
 */
static __always_inline int take(struct service_counted *own, enum limited what)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 slot = slot_of(task), service, full, fallback;
	struct thread_state *thread = thread_at(slot);

	if (!slot || !(thread->mask & SERVICE))
		return 0;
	service = heir_of(member_of(thread)->service);
	full = full_service(service, what);
	if (unlikely(full != SERVICE_ROOT)) {
		fallback = limit_of(full)->fallback;
		if (fallback == SERVICE_NONE || full_service(fallback, what) != SERVICE_ROOT) {
			__sync_fetch_and_add(&limit_of(full)->refused, 1);
			return limit_of(full)->error;
		}
		__sync_fetch_and_add(&limit_of(full)->moved, 1);
		service_relabel(thread, fallback, WHY_LIMITED, true, 0, true);
		service = fallback;
	}
	count_up(what == LIMIT_SOCKETS ? own->socket : own->connection, service, what);
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
	struct service_counted *own = bpf_sk_storage_get(&counted, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);

	/* One that another program has refused has no end that would be told of. */
	return own && bpf_get_retval() >= 0 ? refuse(take(own, LIMIT_SOCKETS)) : 1;
}

SEC("cgroup/sock_release")
int limit_release(struct bpf_sock *sk)
{
	struct service_counted *own = bpf_sk_storage_get(&counted, sk, NULL, 0);

	if (own) {
		count_down(own->socket, LIMIT_SOCKETS);
		count_down(own->connection, LIMIT_CONNECTIONS);
	}
	return 1;
}

static __always_inline int limit_connect(struct bpf_sock_addr *address)
{
	struct bpf_sock *sk = address->sk;
	struct service_counted *own;

	if (!sk || address->protocol != IPPROTO_TCP)
		return 1;
	own = bpf_sk_storage_get(&counted, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	/* It tries another address. */
	if (!own || own->connection[0])
		return 1;
	return refuse(take(own, LIMIT_CONNECTIONS));
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

/* include/linux/bpf-cgroup-defs.h and v6.18 net/core/filter.c: of an egress program. */
/* Not sent; TCP tries again later, and sends less. */
#define DROP 2
#define PASS 1
/* Passed, and the sender is told that there is congestion: TCP sends less. */
#define PASS_CONGESTED 3

/*
 * So far may a service be ahead of its rate, first without, and then at all: a tenth of a second of sending, or a packet
 * of the greatest length, as the kernel hands them over in one piece (64 KiB).
 */
#define AHEAD_NS 100000000ULL
#define LARGEST_PACKET 65536

/* Generic cell rate algorithm (ITU-T I.371): one word has all of its state. */
static __always_inline int send_one(struct service_limit *limit, u32 bytes, u64 now)
{
	u64 takes_ns = bytes * 1000000000ULL / limit->rate_max;
	u64 ahead_most = LARGEST_PACKET * 1000000000ULL / limit->rate_max;
	u64 until = READ_ONCE(limit->sent_until_ns), next;

	if (ahead_most < AHEAD_NS)
		ahead_most = AHEAD_NS;
	if (until < now)
		until = now;
	if (until - now > 2 * ahead_most) {
		__sync_fetch_and_add(&limit->dropped, 1);
		return DROP;
	}
	next = until + takes_ns;
	/* Of two processors at the same time one counts, the other is for free. */
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
	service = heir_of(socket->direction.service);
	for (int i = 0; i < SERVICE_DEPTH && service != SERVICE_ROOT; i++) {
		struct service_limit *limit = limit_of(service);

		if (limit->rate_max != NO_LIMIT) {
			one = send_one(limit, packet->len, now);
			if (one == DROP)
				return DROP;
			if (one != PASS)
				decision = one;
		}
		service = above(service);
	}
	return decision;
}
