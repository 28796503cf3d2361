/* SPDX-License-Identifier: GPL-2.0 */
/*
 * guard: pH's lookahead pairs and stide's sequences, learned and tested at each call. The reference
 * is crates/guard: both must give the same result for every call (docs/decisions/0003-guard.md).
 */
#ifndef TOLLGATE_GUARD_MODEL_BPF_H
#define TOLLGATE_GUARD_MODEL_BPF_H

#include "gate/calls.bpf.h"
#include "guard/signals.bpf.h"
#include "guard/state.bpf.h"
#include "guard/tables.bpf.h"

/* The latest `length` calls of the window; 0: it has fewer. */
static __always_inline u64 latest(u64 window, u32 length)
{
	u64 calls = window & ((1ULL << (GUARD_SYMBOL_BITS * length)) - 1);

	return calls >> (GUARD_SYMBOL_BITS * (length - 1)) ? calls : 0;
}

/* The key of the current call and the call that was `distance` calls before the previous one. */
static __always_inline u32 pair_key(u64 window, u32 distance)
{
	u32 earlier = window >> (GUARD_SYMBOL_BITS * (distance + 1)) & GUARD_SYMBOL_OTHER;

	return (window & GUARD_SYMBOL_OTHER) << GUARD_SYMBOL_BITS | earlier;
}

#define for_each_pair(distance, key, window, lookahead)                                            \
	for (distance = 0; distance < GUARD_LOOKAHEAD_MAX - 1 && distance + 1 < (lookahead) &&     \
			   ((key) = pair_key(window, distance)) & GUARD_SYMBOL_OTHER;              \
	     distance++)

/*
 * Counts the mismatches of a window. The low half of the result has the mismatches with the
 * training data, the high half those with the normal data.
 */
static __always_inline u32 mismatches(struct guard_profile *profile, u32 lookahead, u32 length,
				      u64 window)
{
	u64 sequence = latest(window, length & 15);
	u32 learned = 0, normal = 0, distance, bits, key;

	for_each_pair(distance, key, window, lookahead) {
		bits = ~guard_find_pair(profile, key) >> distance;
		learned += bits & 1;
		normal += bits >> GUARD_PAIR_NORMAL_SHIFT & 1;
	}
	if (sequence) {
		bits = ~guard_find_window(profile, sequence);
		learned += bits & GUARD_WINDOW_LEARNED;
		normal += bits >> 1 & 1;
	}
	return normal << 16 | learned;
}

/* Adds a window to the training data. Returns whether there was room for all of it. */
static __always_inline bool learn(struct guard_profile *profile, u32 lookahead, u32 length,
				  u64 window)
{
	u64 sequence = latest(window, length & 15);
	u32 distance, key, fits = 1;

	for_each_pair(distance, key, window, lookahead)
		fits &= guard_learn_pair(profile, key, distance);
	if (sequence)
		fits &= guard_learn_window(profile, sequence);
	if (!fits)
		__sync_fetch_and_add(&profile->unlearned, 1);
	return fits;
}

struct wipe_context {
	struct guard_profile *profile;
	struct guard_overflow *more[GUARD_OVERFLOW_MAX];
};

static long wipe_entry(u32 i, struct wipe_context *what)
{
	struct guard_profile *profile = what->profile;
	u32 k;

	/* Never true, but the verifier must see the bound. */
	if (i >= GUARD_OVERFLOW)
		return 1;
	if (i < GUARD_PAIRS)
		profile->pairs[i] &= ~GUARD_PAIR_LEARNED;
	if (i < GUARD_WINDOWS)
		profile->windows[i] &= ~(u64)GUARD_WINDOW_LEARNED;
	if (i < GUARD_CACHE)
		WRITE_ONCE(profile->known_cache[i], 0);
	for (k = 0; k < GUARD_OVERFLOW_MAX; k++) {
		if (what->more[k])
			what->more[k]->windows[i] &= ~(u64)GUARD_WINDOW_LEARNED;
	}
	return 0;
}

/*
 * Discards the training data: what was learned since the profile was made or became normal. Uses
 * bpf_loop(), because the verifier follows a plain loop iteration by iteration. Before Linux 6.8 it
 * would do so even in a gate without guard, because it checks functions that nothing calls, too.
 */
static __always_inline void guard_wipe_training(struct guard_profile *profile)
{
	struct wipe_context what = { .profile = profile };
	u32 k;

	__sync_fetch_and_add(&profile->wipes, 1);
	for (k = 0; k < GUARD_OVERFLOW_MAX; k++)
		what.more[k] = overflow_at(profile->overflow[k]);
	/* GUARD_OVERFLOW is the size of the largest table. */
	bpf_loop(GUARD_OVERFLOW, wipe_entry, &what, 0);
	profile->trained = 0;
	profile->changed_at = 0;
	profile->anomalies = 0;
}

/* Appends the call to the locality frame. */
static __always_inline void frame_push(struct thread_state *thread, struct guard_cold *cold,
				       bool anomalous)
{
	u32 lfc = thread->guard.lfc;

	lfc += anomalous;
	lfc -= cold->frame[1] >> 63;
	cold->frame[1] = cold->frame[1] << 1 | cold->frame[0] >> 63;
	cold->frame[0] = cold->frame[0] << 1 | anomalous;
	thread->guard.lfc = lfc;
	if (lfc > cold->max_lfc)
		cold->max_lfc = lfc;
}

static __always_inline void frame_reset(struct thread_state *thread, struct guard_cold *cold)
{
	cold->frame[0] = 0;
	cold->frame[1] = 0;
	thread->guard.lfc = 0;
}

/*
 * Freezes a profile whose latest change was long enough ago (normal_factor). Returns the number of
 * calls until the next check.
 */
static __always_inline u32 guard_freeze(struct guard_profile *profile,
					struct guard_parameters *parameters, u64 trained)
{
	u64 changed_at = READ_ONCE(profile->changed_at), freezes_at;

	if (profile->state != GUARD_TRAINING || !changed_at || !parameters->normal_factor_den)
		return GUARD_BATCH;
	freezes_at = changed_at * parameters->normal_factor / parameters->normal_factor_den + 1;
	if (trained < freezes_at)
		return freezes_at - trained < GUARD_BATCH ? freezes_at - trained : GUARD_BATCH;
	if (__sync_val_compare_and_swap(&profile->state, GUARD_TRAINING, GUARD_FROZEN) ==
	    GUARD_TRAINING)
		__sync_fetch_and_add(&profile->freezes_count, 1);
	return GUARD_BATCH;
}

/* pH's process_syscall, step by step. Returns the mismatches with the normal data. */
static __always_inline u32 guard_process_syscall(struct thread_state *thread,
						 struct guard_profile *profile,
						 struct guard_parameters *parameters, u32 call,
						 u64 window, u64 calls, bool is_denounced)
{
	u32 unknown, anomalous = 0, wipes = READ_ONCE(profile->wipes);
	u64 trained = __sync_fetch_and_add(&profile->trained, calls) + calls, *cache;
	bool is_known = true;

	__sync_fetch_and_add(&profile->calls, calls);
	unknown = mismatches(profile, parameters->lookahead, parameters->sequence, window);
	if (unknown & 0xffff) {
		is_known = learn(profile, parameters->lookahead, parameters->sequence, window);
		profile->changed_at = trained;
		if (profile->state == GUARD_FROZEN)
			profile->state = GUARD_TRAINING;
	}
	thread->guard.batch_size = guard_freeze(profile, parameters, trained);
	thread->guard.batch_left = thread->guard.batch_size;
	if (profile->state == GUARD_NORMAL)
		anomalous = unknown >> 16;
	if (anomalous)
		__sync_fetch_and_add(&profile->anomalies, 1);
	if (anomalous || is_denounced || thread->guard.lfc)
		frame_push(thread, guard_cold_of(thread), anomalous || is_denounced);
	if (thread->guard.lfc > parameters->tolerize_limit) {
		guard_wipe_training(profile);
	} else if (!anomalous && is_known && !(parameters->suspend_execve && is_execve(call))) {
		cache = known_cache_entry(profile, window);
		*cache = window | GUARD_CACHED;
		/* Another processor may have wiped the data of this entry meanwhile. */
		if (READ_ONCE(profile->wipes) != wipes)
			*cache = 0;
	}
	return anomalous;
}

/* Returned in place of a number of mismatches, if the call is a sigreturn or a restarted call. */
#define NOT_TESTED (~0U)

/*
 * Tests a call that the fast path does not know. Returns the mismatches with the normal data, or
 * NOT_TESTED. Like guard_respond(), this is a global function, so that the verifier checks each of
 * them separately.
 */
__noinline u32 guard_slow_path(struct thread_state *thread, struct guard_profile *profile,
			       struct guard_parameters *parameters, u32 call, u32 is_denounced)
{
	u32 symbol, flags;
	bool is_same = false;
	u64 window;
	u16 calls;

	if (!thread || !profile || !parameters || call >= CALL_INDICES)
		return 0;
	calls = thread->guard.batch_size - thread->guard.batch_left;
	flags = call_flags(call);
	if (unlikely(thread->guard.restart & GUARD_RESTART_EXPECTED || flags & CALL_RESTART)) {
		thread->guard.restart &= ~GUARD_RESTART_EXPECTED;
		symbol = profile->symbol_of[call];
		is_same = flags & CALL_RESTART ||
			  (symbol && symbol == (thread->guard.window & GUARD_SYMBOL_OTHER));
		/* A handler may have given the restarted call other arguments. */
		if (is_same && (!is_denounced || thread->guard.restart & GUARD_CALL_DENOUNCED)) {
			thread->guard.batch_left++;
			return NOT_TESTED;
		}
	}
	if (unlikely(thread->guard.handlers) && flags & CALL_SIGRETURN) {
		handler_return(thread);
		thread->guard.batch_left++;
		return NOT_TESTED;
	}
	thread->guard.restart &= ~GUARD_CALL_DENOUNCED;
	symbol = profile->symbol_of[call];
	if (!symbol)
		symbol = take_symbol(profile, call);
	window = thread->guard.window;
	/* A restarted call is in the window already. */
	if (!is_same)
		window = (window << GUARD_SYMBOL_BITS | symbol) & GUARD_WINDOW_MASK;
	thread->guard.window = window;
	return guard_process_syscall(thread, profile, parameters, call, window, calls,
				     is_denounced);
}

/* Whether a normal call of the thread may need the slow path: one test of four bytes. */
static __always_inline bool needs_slow_path(const struct guard_hot *guard)
{
	return *(const u32 *)&guard->lfc;
}

/* Whether the window is in the known cache. Nothing more is done for such a call. */
static __always_inline bool guard_fast_path(struct thread_state *thread,
					    struct guard_profile *profile, u32 call)
{
	u64 window = (thread->guard.window << GUARD_SYMBOL_BITS | profile->symbol_of[call]) &
		     GUARD_WINDOW_MASK;

	thread->guard.batch_left--;
	if (unlikely(needs_slow_path(&thread->guard) || !thread->guard.batch_left ||
		     *known_cache_entry(profile, window) != (window | GUARD_CACHED)))
		return false;
	thread->guard.window = window;
	return true;
}

#endif
