/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The hash of names and of conditions, word by word. User space makes the same hashes. The hash
 * does not withstand a search for two texts with the same hash, unless it begins with a salt.
 */
#ifndef TOLLGATE_LIB_HASH_BPF_H
#define TOLLGATE_LIB_HASH_BPF_H

#include "lib/kernel.h"
#include <bpf/bpf_helpers.h>

/* The golden ratio as a fraction: Knuth, The Art of Computer Programming 3, section 6.4. */
#define GOLDEN_64 0x9e3779b97f4a7c15ULL
#define GOLDEN_32 0x9e3779b1U

#define HASH_MIX(hash, word) (((hash) ^ (hash) >> 32 ^ (word)) * GOLDEN_64)

static __always_inline u64 hash_mix(u64 hash, u64 word)
{
	return HASH_MIX(hash, word);
}

/*
 * A test vector: the hash of three words, beginning from 0. User space's tests have the same
 * vector.
 */
#define HASH_VECTOR 0xee092c1c927aa8e0ULL
_Static_assert(HASH_MIX(HASH_MIX(HASH_MIX(0ULL, 1ULL), 2ULL), 0xdeadbeefcafef00dULL) == HASH_VECTOR,
	       "the hash is not user space's");

#endif
