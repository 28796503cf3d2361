/* SPDX-License-Identifier: GPL-2.0 */
/* Services that rules start: one for each user, unit, program or client. */
#ifndef TOLLGATE_SERVICE_DYNAMIC_BPF_H
#define TOLLGATE_SERVICE_DYNAMIC_BPF_H

#include "service/charge.bpf.h"
#include "service/rules.bpf.h"

HASH_MAP(service_dynamic, SERVICES, struct dynamic_service_key, struct dynamic_service);
/* Numbers of dynamic services that were freed. */
FREE_LIST(service_free_numbers, SERVICES);

/* A service that a rule starts: too large for the stack. */
struct dynamic_scratch {
	/* Hash of the unit that it is named after, or 0. */
	u64 unit;
	struct dynamic_service start;
};
PERCPU_MAP(service_dynamic_scratch, 1, struct dynamic_scratch);

static __always_inline struct dynamic_scratch *this_dynamic_scratch(void)
{
	u32 first = 0;

	return bpf_map_lookup_elem(&service_dynamic_scratch, &first);
}

/* Hash of the process's unit. The unit's name stays in the scratch, to name a service after it. */
static __noinline u64 service_unit_of(struct task_struct *task)
{
	struct dynamic_scratch *scratch = this_dynamic_scratch();
	struct identity_name *name = identity_name();
	u64 unit;

	if (!scratch || !name)
		return 0;
	unit = hash_of_unit(task);
	if (unit) {
		scratch->unit = unit;
		bpf_probe_read_kernel_str(scratch->start.name, sizeof(scratch->start.name),
					  name->text);
	}
	return unit;
}

/* Allocates a number and an account for a dynamic service; 0: none is left. */
static __always_inline u32 alloc_service(u32 parent)
{
	static const struct service_account nothing;
	u32 number = alloc_index(&header.next_service, SERVICES, service_free_numbers);

	if (!number)
		return 0;
	if (bpf_map_update_elem(&service_accounts, &number, &nothing, BPF_ANY)) {
		bpf_map_push_elem(&service_free_numbers, &number, BPF_ANY);
		return 0;
	}
	services[number & (SERVICES - 1)].successor = number;
	services[number & (SERVICES - 1)].rule_service = parent;
	services[number & (SERVICES - 1)].cgroup_of = services[parent & (SERVICES - 1)].cgroup_of;
	services[number & (SERVICES - 1)].migrate_flags =
		services[parent & (SERVICES - 1)].migrate_flags;
	return number;
}

/*
 * Names a service that is started for a unit or a program. A unit's name is already in the scratch,
 * if the unit was found just now. If it was not, the service of a unit gets no name, because there
 * is not enough stack left to look up the unit.
 */
static __always_inline void name_dynamic_service(struct dynamic_scratch *scratch,
						 struct dynamic_service_key *key,
						 struct task_struct *task)
{
	if (key->split == SPLIT_UNIT && scratch->unit == key->value[0])
		return;
	scratch->unit = 0;
	__builtin_memset(scratch->start.name, 0, sizeof(scratch->start.name));
	if (key->split == SPLIT_EXE)
		bpf_probe_read_kernel_str(
			scratch->start.name, sizeof(scratch->start.name),
			BPF_CORE_READ(task, mm, exe_file, f_path.dentry, d_name.name));
}

/*
 * The service of this user, unit, program or client, below the rule's service; SERVICE_NONE: the
 * member has no such value.
 */
static __noinline u32 dynamic_service_of(struct service_member *member, struct service_rule *rule,
					 struct task_struct *task)
{
	struct dynamic_service_key key = { .parent = successor_of(rule->service),
					   .split = rule->split };
	struct dynamic_scratch *scratch = this_dynamic_scratch();
	struct dynamic_service *known;
	u32 number;

	switch (rule->split) {
	case SPLIT_USER:
		key.value[0] = member->user;
		break;
	case SPLIT_UNIT:
		key.value[0] = member->unit;
		break;
	case SPLIT_EXE:
		key.value[0] = member->exe;
		break;
	default:
		key.value[0] = member->connection.client[0];
		key.value[1] = member->connection.client[1];
	}
	if (rule->split != SPLIT_USER && !key.value[0] && !key.value[1])
		return SERVICE_NONE;
	known = bpf_map_lookup_elem(&service_dynamic, &key);
	if (known)
		return known->number;
	number = alloc_service(key.parent);
	if (!number || !scratch)
		goto lost;
	name_dynamic_service(scratch, &key, task);
	scratch->start.number = number;
	/*
	 * Tries twice: if the processor's reserve of memory was empty the first time, an interrupt
	 * has refilled it by the second time.
	 */
	for (int times = 0; times < 2; times++) {
		if (!bpf_map_update_elem(&service_dynamic, &key, &scratch->start, BPF_NOEXIST))
			return number;
		/* Another processor was faster. */
		known = bpf_map_lookup_elem(&service_dynamic, &key);
		if (known)
			break;
	}
	bpf_map_push_elem(&service_free_numbers, &number, BPF_ANY);
	if (known)
		return known->number;
lost:
	count_loss(READ_ONCE(header.services_session), LOSS_DYNAMIC_SERVICES);
	return key.parent;
}

#endif
