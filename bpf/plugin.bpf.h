/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Plugins at the gate's hooks.
 */
#ifndef TOLLGATE_PLUGIN_BPF_H
#define TOLLGATE_PLUGIN_BPF_H

#include "state.bpf.h"
#include "plugin_chain.bpf.h"

struct plugin_chain plugin_chains[PLUGIN_HOOKS] SEC(".bss.plugins");

PLUGIN_MAP(plugin_enters);
PLUGIN_MAP(plugin_exits);
PLUGIN_MAP(plugin_forks);
PLUGIN_MAP(plugin_execs);
PLUGIN_MAP(plugin_ends);
PLUGIN_MAP(plugin_guards);
PLUGIN_MAP(plugin_verdicts);

static __noinline int plugins_judge(void *ctx, u32 session)
{
	plugins_run(ctx, &plugin_chains[PLUGIN_VERDICTS], session, &plugin_verdicts);
	return 0;
}

/* Comes back, which costs a call: whether a plugin says that this one is an anomaly. */
static __noinline int plugins_denounce(void *ctx, u32 session)
{
	struct plugin_chain *chain = &plugin_chains[PLUGIN_GUARDS];

	plugins_run(ctx, chain, session, &plugin_guards);
	/*
	 * 0, as nobody is in place 0. Neither the compiler nor the verifier before v6.13 knows that what is gone over to
	 * returns for this one: with a constant here, they would leave out what comes of another answer.
	 */
	return READ_ONCE(chain->next[0]);
}

#endif
