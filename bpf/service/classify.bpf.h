/* SPDX-License-Identifier: GPL-2.0 */
/* Matches the rules for a thread at an event, and applies the rule that decides. */
#ifndef TOLLGATE_SERVICE_CLASSIFY_BPF_H
#define TOLLGATE_SERVICE_CLASSIFY_BPF_H

#include "service/binding.bpf.h"
#include "service/dynamic.bpf.h"
#include "service/rules.bpf.h"

/* Does what a rule says. At messages and files, the binding is by request. */
static __always_inline void service_apply_rule(struct thread_state *thread,
					       struct task_struct *task, struct service_rule *rule,
					       u32 event, u32 peer, bool is_running)
{
	u32 binding = event >= EVENT_RECEIVE ? BINDING_REQUEST : BINDING_OWN;
	u32 service, why = event + WHY_FORK;

	if (rule->action == ACTION_BELONGS)
		service = rule->service;
	else if (rule->action == ACTION_ADOPTS_PEER && peer != SERVICE_NONE)
		service = peer;
	else if (rule->action == ACTION_CREATES)
		service = dynamic_service_of(member_of(thread), rule, task);
	else
		return;
	if (service == SERVICE_NONE)
		return;
	if (event == EVENT_FORK && rule->action == ACTION_ADOPTS_PEER) {
		binding = BINDING_REQUEST;
		why = WHY_SIGNALLED;
	}
	if (binding && member_of(thread)->has_io_uring) {
		service = SERVICE_SHARED;
		why = WHY_IO_URING;
	}
	service_rebind(thread, successor_of(service), why, binding, rule->precedence + 1,
		       is_running);
}

static __always_inline void fill_query(struct rule_query *query, struct service_member *member,
				       u32 event, u32 peer)
{
	query->event = event;
	query->peer = peer == SERVICE_NONE ? peer : services[peer & (SERVICES - 1)].rule_service;
	query->exe = member->exe;
	query->unit = member->unit;
	query->user = member->user;
	query->binding = member->binding;
	query->service = services[member->service & (SERVICES - 1)].rule_service;
	if (event == EVENT_RECEIVE)
		query->connection = member->connection;
}

static __always_inline void service_classify_task(struct thread_state *thread,
						  struct task_struct *task, u32 event, u32 peer,
						  bool is_running)
{
	struct rule_query query = {};

	fill_query(&query, member_of(thread), event, peer);
	match_rules(&query, task);
	service_apply_rule(thread, task, &query.rule, event, peer, is_running);
}

/* Matches the rules for the thread in this slot, by the identity of the current task. */
__noinline int service_classify(u32 slot, u32 event, u32 peer, u32 is_running)
{
	if (!(config.enabled & SERVICE))
		return 0;
	service_classify_task(thread_at(slot), bpf_get_current_task_btf(), event, peer, is_running);
	return 0;
}

/* Reads what a process is, as far as rules have conditions on it. */
static __always_inline void service_read_identity(struct service_member *member,
						  struct task_struct *task)
{
	u32 fields = rulesets[header.ruleset & 1].fields;

	member->user = BPF_CORE_READ(task, cred, euid.val);
	member->exe = fields & FIELD_EXE ? hash_of_program(task) : 0;
	member->unit = fields & FIELD_UNIT ? service_unit_of(task) : 0;
}

#endif
