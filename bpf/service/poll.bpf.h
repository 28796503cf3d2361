/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Messages to a thread, which it finds at its next call or switch: an assignment by hand, new
 * rules, or the sender of what it has received.
 */
#ifndef TOLLGATE_SERVICE_POLL_BPF_H
#define TOLLGATE_SERVICE_POLL_BPF_H

#include "service/classify.bpf.h"

/* include/vdso/time64.h */
#define NSEC_PER_MSEC 1000000ULL

/* When the service was assigned: the message has the lower 32 bits of the time in milliseconds. */
static __always_inline u64 assigned_ns(u64 message, u64 now)
{
	u32 ago_ms = (u32)(now / NSEC_PER_MSEC) - (u32)(message >> MESSAGE_VALUE_SHIFT);

	return now - ago_ms * NSEC_PER_MSEC;
}

static __always_inline void service_take_message(struct thread_state *thread,
						 struct task_struct *task, bool is_running)
{
	struct service_member *member = member_of(thread);
	u64 message = __sync_lock_test_and_set(&member->message, 0);
	u32 service = message >> MESSAGE_SERVICE_SHIFT & 0xffff,
	    value = message >> MESSAGE_VALUE_SHIFT;
	u32 kind = message & 0xffff;

	if (kind == MESSAGE_ASSIGN || kind == MESSAGE_RECLASSIFIED) {
		service_rebind(thread, successor_of(service),
			       kind == MESSAGE_ASSIGN ? WHY_ASSIGNED : WHY_ATTACHED,
			       kind == MESSAGE_ASSIGN ? BINDING_EXPLICIT : BINDING_OWN,
			       kind == MESSAGE_ASSIGN ? 0 : value, is_running);
		if (kind == MESSAGE_ASSIGN)
			member->bound_ns = assigned_ns(message, bpf_ktime_get_ns());
	} else if (kind == MESSAGE_PEER && value == member->receives) {
		service_classify(thread->slot, EVENT_RECEIVE, service, is_running);
	}
}

/* Handles a message to the thread that runs here, and a change of its user since its last call. */
__noinline int service_poll(u32 slot, u32 is_running)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread = thread_at(slot);
	struct service_member *member = member_of(thread);
	u32 user;

	if (!(config.enabled & SERVICE))
		return 0;
	if (member->message)
		service_take_message(thread, task, is_running);
	user = BPF_CORE_READ(task, cred, euid.val);
	if (user != member->user) {
		member->user = user;
		service_classify(thread->slot, EVENT_USER, SERVICE_NONE, is_running);
	}
	return 0;
}

/* Matches newly active rules for a thread that may be running on another processor meanwhile. */
static __noinline void service_reclassify(struct thread_state *thread, struct task_struct *task)
{
	struct service_member *member = member_of(thread);
	struct rule_query query = {};
	u64 before, message;
	u32 service;

	service_read_identity(member, task);
	fill_query(&query, member, EVENT_ATTACH, SERVICE_NONE);
	match_rules(&query, task);
	service = SERVICE_NONE;
	if (query.rule.action == ACTION_BELONGS)
		service = query.rule.service;
	else if (query.rule.action == ACTION_CREATES)
		service = dynamic_service_of(member, &query.rule, task);
	before = READ_ONCE(member->message);
	/* An assignment by hand takes precedence. */
	if ((before & 0xffff) == MESSAGE_ASSIGN)
		return;
	/* No rule matches, so a message of older rules does not apply any more. */
	if (service == SERVICE_NONE) {
		__sync_val_compare_and_swap(&member->message, before, 0);
		return;
	}
	service = successor_of(service);
	message = MESSAGE_RECLASSIFIED | service << MESSAGE_SERVICE_SHIFT |
		  (u64)(query.rule.precedence + 1) << MESSAGE_VALUE_SHIFT;
	__sync_val_compare_and_swap(&member->message, before, message);
}

#endif
