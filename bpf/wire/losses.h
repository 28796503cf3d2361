/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * What could not be recorded, by reason. A reason is one line of the table of its extension:
 *
 *	X(NAME, REACH, TEXT)
 *
 * makes LOSS_NAME, and reports call it TEXT. SHARED losses also concern the statistics of the
 * sessions that the tasks came from, those of a SESSION do not. build.rs makes the table in
 * crates/kernel/src/losses.rs of the same lines.
 */
#ifndef TOLLGATE_WIRE_LOSSES_H
#define TOLLGATE_WIRE_LOSSES_H

#include "wire/guard.h"
#include "wire/lens.h"
#include "wire/service.h"

/*
 * RECONFIGURED: during a change of generations, a call's end looked like that of a denied call. In
 * place of a notice of a row's end, the row is read at the end of the session.
 */
#define GATE_LOSSES(X)                                                                             \
	X(THREADS_FULL, SHARED, "threads not gated (table full)")                                  \
	X(ROWS_FULL, SHARED, "groups merged into another (table full)")                            \
	X(RECONFIGURED, SHARED, "calls not attributable at a change of the gate's generation")     \
	X(ROW_NOTICES, SESSION, "group notices not sent (buffer full)")

#define ALL_LOSSES(X)                                                                              \
	GATE_LOSSES(X)                                                                             \
	LENS_LOSSES(X)                                                                             \
	GUARD_LOSSES(X)                                                                            \
	SERVICE_LOSSES(X)

#define AS_LOSS(NAME, REACH, TEXT) LOSS_##NAME,
enum loss { ALL_LOSSES(AS_LOSS) LOSSES };
#undef AS_LOSS

#endif
