/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Bindings. A thread is bound to the service that it works for. When the binding changes, the usage
 * until then is charged to the previous service.
 */
#ifndef TOLLGATE_SERVICE_BINDING_BPF_H
#define TOLLGATE_SERVICE_BINDING_BPF_H

#include "service/charge.bpf.h"
#include "service/migrate.bpf.h"

/*
 * `how` has the reason (enum service_why) in bits 0 to 7, then the binding, then whether the thread
 * runs. They are in one argument, because a BPF function takes five arguments at most.
 */
#define BIND_KIND_SHIFT 8
#define BIND_IS_RUNNING (1 << 16)

/*
 * Gives a thread another binding, or the same one with another rule or control group. This is a
 * global function, so that the verifier checks it once and not at each of its dozens of calls. It
 * charges the usage of the current task. So the thread must be the current task, or must not have
 * used anything yet (service_member.is_new).
 */
__noinline int service_bind(u32 slot, u32 service, u32 how, u32 rule)
{
	struct thread_state *thread = thread_at(slot);
	struct service_member *member = member_of(thread);
	u32 why = how & 0xff, binding = how >> BIND_KIND_SHIFT & 0xff;
	bool is_running = how & BIND_IS_RUNNING;
	u64 now;

	if (!(config.enabled & SERVICE))
		return 0;
	if (member->service == service && member->binding == binding) {
		/* Rule numbers of another ruleset mean nothing. */
		if (rule && why != WHY_RESUMED && member->ruleset != header.ruleset) {
			member->why = why;
			member->rule_number = rule;
			member->ruleset = header.ruleset;
		}
		if (cgroup_service_of(service) != member->in_cgroup_of)
			migrate_on_bind(thread, member);
		return 0;
	}
	now = bpf_ktime_get_ns();
	member->version++;
	if (member->service != service) {
		service_charge(thread, bpf_get_current_task_btf(), now, is_running);
		if (is_running) {
			member->tracks_switch_in = 1;
			member->switched_in_ns = now;
			member->switched_in_cpu_ns = member->charged_at.cpu_ns;
			member->switched_in_switches = member->charged_at.switches +
						       member->charged_at.preemptions;
		}
	}
	if (why < WHY_RECEIVED || why == WHY_ASSIGNED)
		member->epoch++;
	member->service = service;
	member->binding = binding;
	member->why = why;
	member->rule_number = rule;
	/* A thread that resumes keeps its rule, which may be of an earlier ruleset. */
	if (why != WHY_RESUMED)
		member->ruleset = header.ruleset;
	member->bound_ns = now;
	member->version++;
	migrate_on_bind(thread, member);
	return 0;
}

static __always_inline void service_rebind(struct thread_state *thread, u32 service, u32 why,
					   u32 binding, u32 rule, bool is_running)
{
	struct service_member *member = member_of(thread);

	/*
	 * If the thread receives a reply and keeps its binding, it continues the same work. Any
	 * other event begins new work, to which the thread has not replied yet.
	 */
	if (why != WHY_RESUMED || member->service != service || member->binding != binding)
		member->has_replied = 0;
	if (likely(member->service == service && member->binding == binding &&
		   (!rule || member->ruleset == header.ruleset) &&
		   cgroup_service_of(service) == member->in_cgroup_of))
		return;
	service_bind(thread->slot, service,
		     why | binding << BIND_KIND_SHIFT | (is_running ? BIND_IS_RUNNING : 0), rule);
}

#endif
