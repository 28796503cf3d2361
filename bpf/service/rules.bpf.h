/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Finds the rule that decides, by tuple space search: one look-up for each tuple, by the hash of
 * its conditions' values, however many rules it has. crates/service/src/hashed_ruleset.rs makes the
 * same hashes.
 */
#ifndef TOLLGATE_SERVICE_RULES_BPF_H
#define TOLLGATE_SERVICE_RULES_BPF_H

#include "gate/names.bpf.h"
#include "lib/hash.bpf.h"
#include "service/state.bpf.h"

HASH_MAP(service_rules, 2 * SERVICE_RULES, struct service_key, struct service_rule);

/* What is known of a thread at an event, and the rule that decides so far. */
struct rule_query {
	u32 event;
	u32 ruleset;
	u64 exe;
	u64 unit;
	u32 user;
	u16 service;
	u16 peer;
	u32 binding;
	/*
	 * The numbers of hashed names of the control group's path and of the file's path in
	 * `struct name_scratch`.
	 */
	u32 names;
	u32 file_names;
	u32 unused;
	struct service_connection connection;
	struct service_rule rule;
};

static __always_inline u64 masked(u64 half, u32 bits)
{
	u64 value = __builtin_bswap64(half);

	if (!bits)
		return 0;
	return bits >= 64 ? value : value & ~0ULL << (64 - bits);
}

static __always_inline u64 hash_client(u64 hash, struct service_connection *connection, u32 family,
				       u32 bits)
{
	/* In IPv4-mapped IPv6, 96 bits come before the address. */
	if (family == 4)
		bits += 96;
	hash = hash_mix(hash, masked(connection->client[0], bits));
	return hash_mix(hash, masked(connection->client[1], bits > 64 ? bits - 64 : 0));
}

static long match_tuple(u32 i, struct rule_query *query)
{
	struct service_connection *connection = &query->connection;
	struct service_key key = { .ruleset = query->ruleset };
	struct name_scratch *scratch = this_scratch();
	const struct service_tuple *tuple;
	struct service_rule *rule;
	u32 fields, depth, at;
	u64 hash;

	at = query->event * SERVICE_TUPLES + i;
	if (at >= SERVICE_TUPLES_ALL || !scratch)
		return 1;
	key.tuple = rulesets[query->ruleset & 1].tuples_of_event[at];
	if (key.tuple >= SERVICE_TUPLES_ALL)
		return 1;
	tuple = &rulesets[query->ruleset & 1].tuple[key.tuple];
	fields = tuple->fields;
	if ((fields & FIELD_EXE && !query->exe) || (fields & FIELD_UNIT && !query->unit) ||
	    (fields & FIELD_LISTEN_PATH && !connection->listen_path) ||
	    (fields & FIELD_LISTEN_ADDRESS && !connection->listen_address) ||
	    (fields & FIELD_LISTEN_PORT && !connection->listen_port) ||
	    (fields & FIELD_CLIENT && connection->client_family != tuple->client_family) ||
	    (fields & FIELD_PEER && query->peer == SERVICE_NONE))
		return 0;
	/*
	 * Makes the compiler test `fields` again. Otherwise it would use the results of the tests
	 * above, and the verifier would follow all combinations of these results.
	 */
	barrier_var(fields);
	hash = header.salt;
	if (fields & FIELD_EXE)
		hash = hash_mix(hash, query->exe);
	if (fields & FIELD_USER)
		hash = hash_mix(hash, query->user);
	if (fields & FIELD_UNIT)
		hash = hash_mix(hash, query->unit);
	if (fields & FIELD_SERVICE)
		hash = hash_mix(hash, query->service);
	if (fields & FIELD_LISTEN_PATH)
		hash = hash_mix(hash, connection->listen_path);
	if (fields & FIELD_LISTEN_ADDRESS)
		hash = hash_mix(hash, connection->listen_address);
	if (fields & FIELD_LISTEN_PORT)
		hash = hash_mix(hash, connection->listen_port);
	if (fields & FIELD_CLIENT)
		hash = hash_client(hash, connection, tuple->client_family, tuple->client_bits);
	if (fields & FIELD_PEER)
		hash = hash_mix(hash, query->peer);
	if (fields & FIELD_CGROUP) {
		depth = tuple->cgroup_depth;
		if (depth > query->names || depth >= NAMES)
			return 0;
		hash = hash_mix(hash, scratch->prefix[PATH_OF_THREAD * NAMES + depth]);
	}
	if (fields & FIELD_FILE) {
		depth = tuple->file_depth;
		if (depth > query->file_names || depth >= NAMES)
			return 0;
		hash = hash_mix(hash, scratch->prefix[PATH_OF_FILE * NAMES + depth]);
	}
	key.hash = hash;
	rule = bpf_map_lookup_elem(&service_rules, &key);
	if (!rule || !(rule->events >> query->event & 1))
		return 0;
	if (query->binding && query->event < EVENT_RECEIVE && !rule->has_explicit_events)
		return 0;
	/* Of the rules that match, the first one in the ruleset's order decides. */
	if (query->rule.action == ACTION_NONE || rule->precedence < query->rule.precedence)
		query->rule = *rule;
	return 0;
}

/* Finds the rule that decides, `query->rule`; its action is ACTION_NONE if no rule matches. */
static __noinline void match_rules(struct rule_query *query, struct task_struct *task)
{
	struct name_scratch *scratch;
	const struct service_ruleset *ruleset;
	u32 tuples;

	query->ruleset = READ_ONCE(header.ruleset);
	ruleset = &rulesets[query->ruleset & 1];
	query->rule.action = ACTION_NONE + unknown_zero();
	query->rule.precedence = unknown_zero();
	if (query->event >= SERVICE_EVENTS)
		return;
	tuples = ruleset->tuple_count[query->event];
	if (!tuples)
		return;
	query->names = 0;
	if (ruleset->fields & FIELD_CGROUP) {
		hash_cgroup(task);
		scratch = this_scratch();
		query->names = scratch ? scratch->names : 0;
	}
	bpf_loop(tuples, match_tuple, query, 0);
}

#endif
