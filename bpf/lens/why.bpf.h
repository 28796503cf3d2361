/* SPDX-License-Identifier: GPL-2.0 */
/* LENS_WHY: the causes of sleeps in calls are added up, and followed from slow calls. */
#ifndef TOLLGATE_LENS_WHY_BPF_H
#define TOLLGATE_LENS_WHY_BPF_H

#include "lens/why_locks.bpf.h"
#include "lens/why_wakers.bpf.h"

/* An entry for each combination of blocking site and cause, made when it is first seen. */
HASH_MAP(why_causes, WHY_CAUSES, struct why_key, struct why_value);

struct why_scratch {
	struct why_key key;
	struct why_value fresh;
};

PERCPU_MAP(why_scratch, 1, struct why_scratch);

/* Of a sleep or wait that is looked at, one of at least 1/WHY_SHARE is worth mentioning. */
#define WHY_SHARE 8

/* Adds a sleep of the thread to one of its causes. */
static __always_inline void why_add(struct thread_state *thread, struct why_party *party,
				    struct why_lock *lock, bool is_holder, u64 blocked_ns)
{
	u32 zero = 0;
	struct why_scratch *scratch = bpf_map_lookup_elem(&why_scratch, &zero);
	struct why_value *value;
	struct why_key *key;

	if (!scratch)
		return;
	key = &scratch->key;
	key->site = lens_cold_of(thread)->site;
	key->function = is_holder ? 0 : party->function;
	key->lock = 0;
	key->lock_flags = 0;
	if (is_holder) {
		key->lock_flags = lock->flags;
		if (is_within(lock->address, &config.why.variables))
			key->lock = lock->address;
	}
	key->row = thread->row;
	key->call = lens_call_of(thread);
	key->party_call = party->kind == WHY_CALL ? party->call : 0;
	key->kind = party->kind;
	key->is_holder = is_holder;
	key->is_asleep = is_holder && party->kind ? party->is_asleep : 0;
	__builtin_memcpy(key->program, party->program, COMM_LEN);
	__builtin_memcpy(key->thread, party->thread, COMM_LEN);
	if (!party->kind) {
		__builtin_memset(key->program, 0, COMM_LEN);
		__builtin_memset(key->thread, 0, COMM_LEN);
	}
	value = bpf_map_lookup_elem(&why_causes, key);
	if (!value) {
		scratch->fresh.tgid = party->kind ? party->tgid : 0;
		bpf_map_update_elem(&why_causes, key, &scratch->fresh, BPF_NOEXIST);
		value = bpf_map_lookup_elem(&why_causes, key);
		if (!value) {
			count_loss(thread->session, LOSS_CAUSES_FULL);
			return;
		}
	}
	if (party->kind && value->tgid != party->tgid)
		value->is_several = 1;
	__sync_fetch_and_add(&value->blocked_ns, blocked_ns);
	__sync_fetch_and_add(&value->sleeps, 1);
}

/* A sleep has ended, and its time is known without the wait for a processor after it. */
__noinline int why_record(u32 slot, u64 blocked_ns)
{
	struct thread_state *thread = thread_at(slot);
	struct why_thread *why = why_of(slot);

	if (!(config.enabled & LENS_WHY) || !why)
		return 0;
	why_add(thread, &why->latest.waker, &why->latest.lock, false, blocked_ns);
	if (why->latest.lock.flags)
		why_add(thread, &why->latest.holder, &why->latest.lock, true, blocked_ns);
	return 0;
}

/*
 * Keeps a sleep. It replaces those that are older and shorter, because who follows a wait looks for
 * the longest sleep in it; and if there are none, the one that is the oldest.
 */
static __always_inline void why_keep(struct why_thread *why, u64 began, u64 ended, u64 site,
				     u32 call)
{
	u64 oldest = ~0ULL;
	u32 at = 0, i;
	struct why_sleep *sleep;

	WRITE_ONCE(why->sequence, why->sequence + 1);
	barrier();
	for (i = 0; i < WHY_PAST; i++) {
		sleep = &why->past[i];
		if (sleep->ended_ns - sleep->began_ns <= ended - began) {
			sleep->began_ns = 0;
			sleep->ended_ns = 0;
		}
		if (sleep->ended_ns < oldest) {
			oldest = sleep->ended_ns;
			at = i;
		}
	}
	sleep = &why->past[at & (WHY_PAST - 1)];
	sleep->began_ns = began;
	sleep->ended_ns = ended;
	sleep->site = site;
	sleep->call = call;
	sleep->waker = why->latest.waker;
	barrier();
	WRITE_ONCE(why->sequence, why->sequence + 1);
}

/* The sleep that ends now is the longest one of the call. */
__noinline int why_save_longest(u32 slot, u64 began, u64 ended)
{
	struct thread_state *thread = thread_at(slot);
	struct why_thread *why = why_of(slot);

	if (!(config.enabled & LENS_WHY) || !why)
		return 0;
	why->longest.began_ns = began;
	why->longest.ended_ns = ended;
	why->longest.site = lens_cold_of(thread)->site;
	why->longest.call = lens_call_of(thread);
	why->longest.waker = why->latest.waker;
	why->longest_holder = why->latest.holder;
	why->longest_lock = why->latest.lock;
	return 0;
}

/* The thread is switched in after a sleep in a call, whose site is known. */
__noinline int why_end_sleep(u32 slot, u64 began, u64 ended)
{
	struct thread_state *thread = thread_at(slot);
	struct why_thread *why = why_of(slot);

	if (!(config.enabled & LENS_WHY) || !why)
		return 0;
	why->latest = why->current;
	why->current.waker.kind = WHY_UNKNOWN;
	why->current.waker.slot = 0;
	/* A lock of the kernel may need several sleeps. */
	if (why->current.lock.flags & WHY_LOCK_FUTEX)
		why->current.lock.flags = 0;
	why_keep(why, began, ended, lens_cold_of(thread)->site, lens_call_of(thread));
	return 0;
}

/*
 * The sleep of a thread that takes the most of a period. Returns how much; 0: there is none, or the
 * thread sleeps again right now.
 */
static __always_inline u64 why_longest_within(struct why_thread *why, u64 from, u64 to,
					      struct why_sleep *found)
{
	u32 sequence = READ_ONCE(why->sequence), at = 0, i;
	u64 most = 0, began, ended;

	barrier();
	for (i = 0; i < WHY_PAST; i++) {
		began = why->past[i].began_ns > from ? why->past[i].began_ns : from;
		ended = why->past[i].ended_ns < to ? why->past[i].ended_ns : to;
		if (ended > began && ended - began > most) {
			most = ended - began;
			at = i;
		}
	}
	*found = why->past[at & (WHY_PAST - 1)];
	barrier();
	return (sequence & 1) || READ_ONCE(why->sequence) != sequence ? 0 : most;
}

/* Follows what let the current thread wait in its longest sleep. */
static __always_inline void why_follow(struct why_slow *slow, struct why_party *first)
{
	u64 from = slow->sleep.began_ns, to = slow->sleep.ended_ns;
	struct why_party *party = first;
	struct why_thread *why;
	struct why_sleep *link;
	u32 i;

	for (i = 0; i < WHY_LINKS; i++) {
		why = party->slot ? why_of(party->slot) : NULL;
		/* The slot may have got another thread. */
		if (!why || thread_at(party->slot)->visible_pid != party->pid)
			return;
		link = &slow->link[i];
		if (why_longest_within(why, from, to, link) * WHY_SHARE <= to - from)
			return;
		slow->links = i + 1;
		if (link->began_ns > from)
			from = link->began_ns;
		if (link->ended_ns < to)
			to = link->ended_ns;
		party = &link->waker;
	}
}

/* A slow call ends. Its longest sleep has been saved. */
static __always_inline void why_explain(struct slow_call *slow, u32 slot)
{
	struct why_thread *why = why_of(slot);

	if (!(config.enabled & LENS_WHY) || !why)
		return;
	slow->has_why = 1;
	slow->why.links = 0;
	slow->why.sleep = why->longest;
	slow->why.holder = why->longest_holder;
	slow->why.lock = why->longest_lock;
	slow->why.begins_at_holder = why->longest_lock.flags && why->longest_holder.kind;
	if (slow->why.begins_at_holder)
		why_follow(&slow->why, &slow->why.holder);
	if (slow->why.links)
		return;
	slow->why.begins_at_holder = 0;
	why_follow(&slow->why, &slow->why.sleep.waker);
}

#endif
