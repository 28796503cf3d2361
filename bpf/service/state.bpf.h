/* SPDX-License-Identifier: GPL-2.0 */
/* The tables of services: their members, the services themselves, and the rulesets. */
#ifndef TOLLGATE_SERVICE_STATE_BPF_H
#define TOLLGATE_SERVICE_STATE_BPF_H

#include "gate/threads.bpf.h"
#include "wire/service.h"

struct service_member members[THREADS] SEC(".bss.members");
struct service services[SERVICES] SEC(".bss.services");
struct service_ruleset rulesets[2] SEC(".bss.rulesets");

static __always_inline struct service_member *member_of(struct thread_state *thread)
{
	return &members[thread->slot & (THREADS - 1)];
}

static __always_inline u32 successor_of(u32 service)
{
	return services[service & (SERVICES - 1)].successor;
}

static __always_inline u32 cgroup_service_of(u32 service)
{
	return services[service & (SERVICES - 1)].cgroup_of;
}

static __always_inline u32 migrate_flags_of(u32 service)
{
	return services[service & (SERVICES - 1)].migrate_flags;
}

#endif
