/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The tables of a profile: the symbols of calls, lookahead pairs, windows, and the cache of known
 * windows.
 */
#ifndef TOLLGATE_GUARD_TABLES_BPF_H
#define TOLLGATE_GUARD_TABLES_BPF_H

#include "guard/profiles.bpf.h"
#include "lib/hash.bpf.h"
#include "wire/guard.h"

/* Fibonacci hashing: lib/hash.bpf.h. */
static __always_inline u64 *known_cache_entry(struct guard_profile *profile, u64 window)
{
	return &profile->known_cache[(window * GOLDEN_64) >> (64 - GUARD_CACHE_LOG2)];
}

/*
 * The symbol of the call in this program, assigned at its first use. Four symbols share a word,
 * because compare-and-swap handles no less than 32 bits.
 */
static __always_inline u32 take_symbol(struct guard_profile *profile, u32 call)
{
	u32 shift = call % 4 * 8, symbol, old, i;
	u32 *word;

	if (call >= CALL_INDICES)
		return GUARD_SYMBOL_OTHER;
	word = (u32 *)profile->symbol_of + call / 4;
	symbol = READ_ONCE(profile->symbols) >= GUARD_SYMBOL_OTHER - 1 ?
			 GUARD_SYMBOL_OTHER :
			 __sync_fetch_and_add(&profile->symbols, 1) + 1;
	if (symbol > GUARD_SYMBOL_OTHER)
		symbol = GUARD_SYMBOL_OTHER;
	for (i = 0; i < 8; i++) {
		old = READ_ONCE(*word);
		if (old >> shift & 0xff)
			return old >> shift & 0xff;
		if (__sync_val_compare_and_swap(word, old, old | symbol << shift) == old)
			return symbol;
	}
	return GUARD_SYMBOL_OTHER;
}

/*
 * The searches are global functions, which the verifier checks one by one: it would not accept the
 * loops of nine inlined copies. Global functions return numbers, not pointers.
 */

/* The entry of a pair, or NULL. A wiped entry keeps its key, so that it does not end a search. */
static __always_inline u32 *find_pair(struct guard_profile *profile, u32 key)
{
	u32 index = (key * GOLDEN_32) >> (32 - GUARD_PAIRS_LOG2), entry, i, *at;

	for (i = 0; i < GUARD_PROBES; i++) {
		at = &profile->pairs[(index + i) & (GUARD_PAIRS - 1)];
		entry = READ_ONCE(*at);
		if (entry >> GUARD_PAIR_KEY_SHIFT == key)
			return at;
		if (!entry)
			break;
	}
	return NULL;
}

/* Claims the first empty or wiped entry for a pair. NULL: there is no room. */
static __always_inline u32 *claim_pair(struct guard_profile *profile, u32 key)
{
	u32 index = (key * GOLDEN_32) >> (32 - GUARD_PAIRS_LOG2), entry, seen, i, *at;

	for (i = 0; i < GUARD_PROBES; i++) {
		at = &profile->pairs[(index + i) & (GUARD_PAIRS - 1)];
		entry = READ_ONCE(*at);
		if (entry & (GUARD_PAIR_LEARNED | GUARD_PAIR_LEARNED << GUARD_PAIR_NORMAL_SHIFT))
			continue;
		seen = __sync_val_compare_and_swap(at, entry, key << GUARD_PAIR_KEY_SHIFT);
		/* Another processor may have claimed the entry for the same pair meanwhile. */
		if (seen == entry || seen >> GUARD_PAIR_KEY_SHIFT == key)
			return at;
	}
	return NULL;
}

/*
 * Sets bits in an entry. An atomic OR would not do: another processor may have claimed the entry
 * for another key. In that case, the pair or window is learned the next time.
 */
#define learn_entry(at, key, key_shift, bits)                                                      \
	({                                                                                         \
		typeof(*(at)) __old = READ_ONCE(*(at));                                            \
		int __tries;                                                                       \
		for (__tries = 0; __tries < 4 && __old >> (key_shift) == (key); __tries++) {       \
			typeof(*(at)) __seen = __sync_val_compare_and_swap(at, __old,              \
									   __old | (bits));        \
			if (__seen == __old)                                                       \
				break;                                                             \
			__old = __seen;                                                            \
		}                                                                                  \
	})

/*
 * The distances at which a pair was learned, and those at which it is normal: the pair's entry
 * without the key.
 */
__noinline u32 guard_find_pair(struct guard_profile *profile, u32 key)
{
	u32 *at = profile ? find_pair(profile, key) : NULL;

	return at ? READ_ONCE(*at) & 0xffff : 0;
}

/* Returns whether there was room. */
__noinline u32 guard_learn_pair(struct guard_profile *profile, u32 key, u32 distance)
{
	u32 *at = profile ? find_pair(profile, key) : NULL;

	if (profile && !at)
		at = claim_pair(profile, key);
	if (!at)
		return false;
	learn_entry(at, key, GUARD_PAIR_KEY_SHIFT, 1U << (distance & 7));
	return true;
}

enum window_search {
	/* Find the entry, if it exists. */
	PROBE_FIND,
	/* Claim the first empty or wiped entry. */
	PROBE_CLAIM,
};

/*
 * A window's entry in one table. If the search ends at an entry that was never used, the window is
 * not in the next tables either, so `goes_on` is cleared.
 */
static __always_inline u64 *probe_window(u64 *table, u32 log2, u32 shift, u64 key,
					 enum window_search what, bool *goes_on)
{
	u32 index = (key * GOLDEN_64) >> shift, i;
	u64 entry, seen, *at;

	for (i = 0; i < GUARD_PROBES; i++) {
		at = &table[(index + i) & ((1 << log2) - 1)];
		entry = READ_ONCE(*at);
		if (what == PROBE_FIND && entry >> GUARD_WINDOW_KEY_SHIFT == key)
			return at;
		if (what == PROBE_FIND && !entry) {
			*goes_on = false;
			break;
		}
		if (what == PROBE_FIND || entry & (GUARD_WINDOW_LEARNED | GUARD_WINDOW_NORMAL))
			continue;
		seen = __sync_val_compare_and_swap(at, entry, key << GUARD_WINDOW_KEY_SHIFT);
		/* Another processor may have claimed the entry for the same window meanwhile. */
		if (seen == entry || seen >> GUARD_WINDOW_KEY_SHIFT == key)
			return at;
	}
	return NULL;
}

static __always_inline u64 *window_entry(struct guard_profile *profile, u64 key,
					 enum window_search what)
{
	u32 i, shift = 64 - GUARD_WINDOWS_LOG2;
	bool goes_on = true;
	u64 *at = probe_window(profile->windows, GUARD_WINDOWS_LOG2, shift, key, what, &goes_on);
	struct guard_overflow *more;

	for (i = 0; i < GUARD_OVERFLOW_MAX; i++) {
		if (at || !goes_on)
			break;
		more = overflow_at(profile->overflow[i]);
		if (!more)
			break;
		/*
		 * Uses other bits of the product, so that windows that crowd one table are spread
		 * over the next.
		 */
		shift -= GUARD_OVERFLOW_LOG2;
		at = probe_window(more->windows, GUARD_OVERFLOW_LOG2, shift, key, what, &goes_on);
	}
	return at;
}

/* Whether a window was learned (GUARD_WINDOW_LEARNED) and is normal (GUARD_WINDOW_NORMAL). */
__noinline u32 guard_find_window(struct guard_profile *profile, u64 key)
{
	u64 *at = profile ? window_entry(profile, key, PROBE_FIND) : NULL;

	return at ? READ_ONCE(*at) & (GUARD_WINDOW_LEARNED | GUARD_WINDOW_NORMAL) : 0;
}

/* Returns whether there was room. */
__noinline u32 guard_learn_window(struct guard_profile *profile, u64 key)
{
	u64 *at = profile ? window_entry(profile, key, PROBE_FIND) : NULL;

	if (profile && !at)
		at = window_entry(profile, key, PROBE_CLAIM);
	if (!at)
		return false;
	learn_entry(at, key, GUARD_WINDOW_KEY_SHIFT, GUARD_WINDOW_LEARNED);
	return true;
}

#endif
