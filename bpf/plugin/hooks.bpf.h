/* SPDX-License-Identifier: GPL-2.0 */
/* Plugins at the hooks of the gate. */
#ifndef TOLLGATE_PLUGIN_HOOKS_BPF_H
#define TOLLGATE_PLUGIN_HOOKS_BPF_H

#include "gate/events.bpf.h"
#include "plugin/chain.bpf.h"

struct plugin_chain plugin_chains[PLUGIN_HOOKS] SEC(".bss.plugins");

#define AS_PLUGIN_MAP(NAME, MAP, SECTION, TRACEPOINT) PLUGIN_MAP(MAP);
ALL_PLUGIN_HOOKS(AS_PLUGIN_MAP)
#undef AS_PLUGIN_MAP

static __noinline int plugins_verdict(void *ctx, u32 session)
{
	plugins_run(ctx, &plugin_chains[PLUGIN_HOOK_VERDICT], session, &plugin_verdicts);
	return 0;
}

/*
 * Returns whether a plugin denounces the call. The chain is entered from a function, because the
 * last plugin's return has to be the function's result.
 */
static __noinline int plugins_guard(void *ctx, u32 session)
{
	struct plugin_chain *chain = &plugin_chains[PLUGIN_HOOK_GUARD];

	plugins_run(ctx, chain, session, &plugin_guard);
	/*
	 * This is 0, because no plugin has slot 0. A plugin that is entered by a tail call returns
	 * in place of this function. Neither the compiler nor the verifier before v6.13 knows that:
	 * with a constant here, they would remove the caller's code for other results.
	 */
	return READ_ONCE(chain->next[0]);
}

static __noinline int plugins_enter(void *ctx, u32 session)
{
	plugins_run(ctx, &plugin_chains[PLUGIN_HOOK_ENTER], session, &plugin_enter);
	return 0;
}

/*
 * Whether a thread keeps its plugins when a session takes it over. `assign_plugins` in
 * crates/kernel/src/plugin/session_plugins.rs does the same.
 */
static __always_inline bool inherits_plugins(struct session *session, struct thread_state *before)
{
	struct session *current;

	if (!before || !before->plugin_session)
		return false;
	if (!session->has_own_plugins)
		return true;
	current = session_at(before->plugin_session);
	return current && current->has_own_plugins && current->number > session->number;
}

/*
 * Sets the session whose plugins the thread has. A session's chain continues with that of the whole
 * machine.
 */
static __always_inline void plugin_join(struct joining *at)
{
	at->thread->plugin_session = inherits_plugins(at->session, at->before) ?
					     at->before->plugin_session :
					     at->session_index;
}

/* Runs the plugins at GUARD, before the guard tests a call. */
static __always_inline void plugin_guard_sys_enter(struct crossing *at)
{
	u32 session = at->thread->plugin_session;

	if (at->ctx && (config.enabled & GUARD) &&
	    plugin_chains[PLUGIN_HOOK_GUARD].first[session & (SESSIONS - 1)] &&
	    has(at->thread, GUARD))
		at->is_denounced = plugins_guard(at->ctx, session);
}

/* Runs the plugins at VERDICT, after the guard has applied its policy to a call. */
static __always_inline void plugin_verdict_sys_enter(struct crossing *at)
{
	if (at->ctx && at->has_verdict)
		plugins_verdict(at->ctx, at->thread->plugin_session);
}

/*
 * Runs the plugins at enter before the lens reads the clock, so that their time is not the call's.
 * A function enters the chain, and the last plugin returns to it. Without the lens, the gate's
 * program enters the chain itself, which saves this call and return.
 */
static __always_inline void plugin_timed_sys_enter(struct crossing *at)
{
	u32 session = at->thread->plugin_session;

	at->has_run_plugins = true;
	if (at->ctx && plugin_chains[PLUGIN_HOOK_ENTER].first[session & (SESSIONS - 1)])
		plugins_enter(at->ctx, session);
}

#endif
