/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * What the kernel side could not record, by reason. The losses that user space counts itself are in
 * crates/tollgate/src/extension.rs. A reason is one line in the table of its extension:
 *
 *	X(NAME, REACH, TEXT)
 *
 * The line makes LOSS_NAME, and TEXT is its name in reports. A loss with the reach SESSION concerns
 * one session. A SHARED loss also concerns the statistics of the sessions that the tasks came from,
 * and a LENS loss those of them that have a lens. build.rs makes the table in
 * crates/kernel/src/losses.rs from the same lines.
 */
#ifndef TOLLGATE_WIRE_LOSSES_H
#define TOLLGATE_WIRE_LOSSES_H

#include "wire/guard.h"
#include "wire/lens.h"
#include "wire/pace.h"
#include "wire/service.h"

/*
 * RECONFIGURED: one generation saw the call begin, and the next one saw it end. The next generation
 * cannot distinguish this call from a denied one. ROW_NOTICES: without the notice, the row is read
 * only when the session ends. CGROUP_NOTICES: without the notice, further threads of a process that
 * has entered a control group are found by the next search.
 */
#define GATE_LOSSES(X)                                                                             \
	X(THREADS_FULL, SHARED, "threads not gated (table full)")                                  \
	X(ROWS_FULL, LENS, "groups merged into another (table full)")                              \
	X(RECONFIGURED, SHARED, "calls not attributable at a change of the gate's generation")     \
	X(ROW_NOTICES, SESSION, "group notices not sent (buffer full)")                            \
	X(CGROUP_NOTICES, SESSION, "processes in a control group found late (buffer full)")

#define ALL_LOSSES(X)                                                                              \
	GATE_LOSSES(X)                                                                             \
	LENS_LOSSES(X)                                                                             \
	GUARD_LOSSES(X)                                                                            \
	PACE_LOSSES(X)                                                                             \
	SERVICE_LOSSES(X)

#define AS_LOSS(NAME, REACH, TEXT) LOSS_##NAME,
enum loss { ALL_LOSSES(AS_LOSS) LOSSES };
#undef AS_LOSS

#endif
