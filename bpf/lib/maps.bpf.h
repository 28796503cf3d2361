/* SPDX-License-Identifier: GPL-2.0 */
/* How maps are declared, and how entries of a fixed table are allocated. */
#ifndef TOLLGATE_LIB_MAPS_BPF_H
#define TOLLGATE_LIB_MAPS_BPF_H

#include "lib/kernel.h"
#include <bpf/bpf_helpers.h>

#define ARRAY_MAP(name, entries, type_of_value, flags)                                             \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                  \
		__uint(max_entries, entries);                                                      \
		__uint(map_flags, flags);                                                          \
		__type(key, u32);                                                                  \
		__type(value, type_of_value);                                                      \
	} name SEC(".maps")

#define HASH_MAP(name, entries, type_of_key, type_of_value)                                        \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_HASH);                                                   \
		__uint(max_entries, entries);                                                      \
		__uint(map_flags, BPF_F_NO_PREALLOC);                                              \
		__type(key, type_of_key);                                                          \
		__type(value, type_of_value);                                                      \
	} name SEC(".maps")

#define FREE_LIST(name, entries)                                                                   \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_QUEUE);                                                  \
		__uint(max_entries, entries);                                                      \
		__type(value, u32);                                                                \
	} name SEC(".maps")

#define PERCPU_MAP(name, entries, type_of_value)                                                   \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);                                           \
		__uint(max_entries, entries);                                                      \
		__type(key, u32);                                                                  \
		__type(value, type_of_value);                                                      \
	} name SEC(".maps")

/* Allocates a number below `limit` that was never used or was freed; 0: none is left. */
#define alloc_index(next, limit, free_list)                                                        \
	({                                                                                         \
		u32 __taken = 0;                                                                   \
		if (READ_ONCE(*(next)) < (limit))                                                  \
			__taken = __sync_fetch_and_add(next, 1);                                   \
		if ((!__taken || __taken >= (limit)) && bpf_map_pop_elem(&free_list, &__taken))    \
			__taken = 0;                                                               \
		__taken;                                                                           \
	})

#endif
