/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Work that follows messages. A message carries the service of the thread that sent it. When a
 * thread receives a message over a connection that its own side accepted, the rules are matched.
 * After a reply over a connection that its own side opened, the thread works again for the service
 * for which it sent the request.
 */
#ifndef TOLLGATE_SERVICE_REQUESTS_BPF_H
#define TOLLGATE_SERVICE_REQUESTS_BPF_H

#include "gate/calls.bpf.h"
#include "service/classify.bpf.h"
#include "service/sockets.bpf.h"

/*
 * The service of the message that is being received. A sender's service is recorded when its send
 * ends, and the message may be received before that. The sender is still in that send if its
 * service is not the recorded one, and its latest call is a send by the same descriptor. If the
 * descriptor is another one, the sender is already sending elsewhere, and the record is right.
 */
static __always_inline u32 sender_service(struct service_direction *direction)
{
	struct thread_state *sender;
	u32 service = direction->service;

	if (!direction->sender)
		return SERVICE_NONE;
	sender = thread_at(direction->sender);
	if (likely(member_of(sender)->service == service) ||
	    member_of(sender)->epoch != direction->epoch)
		return successor_of(service);
	/* The first message is for the service that opened the connection. */
	if (direction->is_opening && direction->binding)
		return successor_of(service);
	if (call_flags(sender->call) & CALL_SENDS &&
	    member_of(sender)->descriptor == direction->descriptor)
		service = member_of(sender)->service;
	return successor_of(service);
}

/* A value besides the numbers of services and SERVICE_NONE. */
#define NO_REQUEST 0x10000

/*
 * If it is not known which side accepted a connection, a message of another process for another
 * service may be a request or a reply. If the thread's rule adopts the sender's service, the thread
 * then works for SERVICE_SHARED.
 */
static __always_inline u32 message_service(struct thread_state *thread,
					   struct service_socket *socket,
					   struct service_direction *direction)
{
	u32 service = direction ? sender_service(direction) : SERVICE_NONE;

	if (likely(socket->role == ROLE_ACCEPTED))
		return service;
	if (!direction || service == SERVICE_NONE ||
	    service == successor_of(member_of(thread)->service) ||
	    thread_at(direction->sender)->tgid == thread->tgid)
		return NO_REQUEST;
	return SERVICE_SHARED;
}

/* Conditions whose values may change between two messages. */
#define FIELDS_THAT_CHANGE (FIELD_SERVICE | FIELD_CGROUP | FIELD_UNIT)

/*
 * Matches the rules, unless this socket has matched the same values before. If any rule has one of
 * the conditions `that_change`, the rules are matched each time.
 */
__noinline int service_classify_message(u32 slot, struct service_socket *socket, u32 peer,
					u32 that_change)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread = thread_at(slot);
	struct service_member *member = member_of(thread);
	u32 number = READ_ONCE(header.ruleset), fields = rulesets[number & 1].fields;
	struct rule_query query = {};
	bool is_known;

	if (!(config.enabled & SERVICE) || !socket ||
	    !rulesets[number & 1].tuple_count[EVENT_RECEIVE])
		return 0;
	is_known = socket->cached_ruleset == number && socket->cached_peer == peer &&
		   socket->cached_exe == member->exe && socket->cached_user == member->user;
	if (!is_known || (fields & that_change)) {
		fill_query(&query, member, EVENT_RECEIVE, peer);
		match_rules(&query, task);
		socket->cached_rule = query.rule;
		socket->cached_peer = peer;
		socket->cached_exe = member->exe;
		socket->cached_user = member->user;
		socket->cached_ruleset = query.ruleset;
	}
	if (socket->role == ROLE_NEITHER && socket->cached_rule.action != ACTION_ADOPTS_PEER)
		return 0;
	service_apply_rule(thread, task, &socket->cached_rule, EVENT_RECEIVE, peer, true);
	socket->receiver = slot;
	socket->receiver_epoch = member->epoch;
	socket->receiver_service = member->service;
	return 0;
}

/*
 * A thread replies to a client after it has received for another service: it serves several at
 * once. What it did in between may have been for either service, and nothing says for which, so the
 * reply is counted (`shared_replies`). Until it receives again, it works for SERVICE_SHARED.
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
	account = bpf_map_lookup_elem(&service_accounts, &service);
	if (account)
		__sync_fetch_and_add(&account->shared_replies, 1);
	service_rebind(thread, SERVICE_SHARED, WHY_SHARED_REPLY, BINDING_REQUEST, 0, true);
}

/*
 * The thread has received a reply over a connection that its own side opened. It works again for
 * the service for which it sent the request.
 */
static __always_inline void service_restore(struct thread_state *thread, struct task_struct *task,
					    struct service_direction *request)
{
	if (request->sender && members[request->sender & (THREADS - 1)].epoch == request->epoch)
		service_rebind(thread, successor_of(request->service), WHY_RESUMED,
			       request->binding, member_of(thread)->rule_number, true);
}

/*
 * A thread has received from a sender that is not known yet. Its usage until now is charged here.
 * Once the sender is known, the thread gets a message, and its usage since then is charged.
 */
static __always_inline void service_await_sender(struct thread_state *thread,
						 struct task_struct *task,
						 struct service_direction *direction, u32 slot)
{
	struct service_member *member = member_of(thread);

	member->version++;
	service_charge(thread, task, bpf_ktime_get_ns(), true);
	member->version++;
	direction->receive_number = member->receives;
	WRITE_ONCE(direction->receiver, slot);
}

/*
 * The thread in this slot uses the direction for its service from now on. A thread that received
 * before the sender was known gets a message.
 */
static __always_inline void record_sender(struct service_direction *direction, u32 slot,
					  u32 service, bool is_opening)
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
	message = MESSAGE_PEER | service << MESSAGE_SERVICE_SHIFT |
		  (u64)direction->receive_number << MESSAGE_VALUE_SHIFT;
	direction->receiver = 0;
	/* An assignment by hand takes precedence. */
	__sync_val_compare_and_swap(&members[reader & (THREADS - 1)].message, 0, message);
}

/* The thread has sent something: a reply, if its side accepted the connection. */
static __always_inline void note_reply(struct service_member *member, struct service_socket *socket)
{
	if (socket && socket->role == ROLE_ACCEPTED && member->binding == BINDING_REQUEST)
		member->has_replied = 1;
}

#endif
