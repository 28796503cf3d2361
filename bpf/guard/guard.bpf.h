/* SPDX-License-Identifier: GPL-2.0 */
/*
 * guard: pH's lookahead pairs and stide's sequences, learned and tested at each call. The reference
 * is crates/guard: both must give the same result for every call (docs/decisions/0003-guard.md).
 */
#ifndef TOLLGATE_GUARD_GUARD_BPF_H
#define TOLLGATE_GUARD_GUARD_BPF_H

#include "gate/state.bpf.h"
#include "gate/calls.bpf.h"
#include "lib/path.bpf.h"
#include "gate/identity.bpf.h"

/*
 * Each profile is a map, which user space makes when it is needed. Key and value are declared by
 * size and not by type: up to 6.1, a map with types does not fit an inner map without them
 * (bpf_map_meta_equal).
 */
struct profile_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct guard_profile));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, GUARD_PROFILES);
	__type(key, u32);
	__array(values, struct profile_map);
} profiles SEC(".maps");

struct overflow_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct guard_overflow));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, GUARD_PROFILES);
	__type(key, u32);
	__array(values, struct overflow_map);
} overflow_windows SEC(".maps");

/* Slots of empty profiles that user space has made. */
FREE_LIST(ready_profiles, GUARD_PROFILES);
/* Copies of a program share a slot, and so do scopes with the same meaning. */
HASH_MAP(programs, 4 * GUARD_PROFILES, struct guard_program, u32);

static __always_inline struct guard_profile *profile_at(u32 slot)
{
	void *map = bpf_map_lookup_elem(&profiles, &slot);
	u32 first = 0;

	return map ? bpf_map_lookup_elem(map, &first) : NULL;
}

static __always_inline struct guard_overflow *overflow_at(u32 slot)
{
	void *map = slot ? bpf_map_lookup_elem(&overflow_windows, &slot) : NULL;
	u32 first = 0;

	return map ? bpf_map_lookup_elem(map, &first) : NULL;
}

/* Fibonacci hashing: Knuth, The Art of Computer Programming 3, section 6.4. */
#define GOLDEN_64 0x9e3779b97f4a7c15ULL
#define GOLDEN_32 0x9e3779b1U

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
	symbol = READ_ONCE(profile->symbols) >= GUARD_SYMBOL_OTHER - 1 ? GUARD_SYMBOL_OTHER :
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
	u32 place = (key * GOLDEN_32) >> (32 - GUARD_PAIRS_LOG2), entry, i, *at;

	for (i = 0; i < GUARD_PROBES; i++) {
		at = &profile->pairs[(place + i) & (GUARD_PAIRS - 1)];
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
	u32 place = (key * GOLDEN_32) >> (32 - GUARD_PAIRS_LOG2), entry, seen, i, *at;

	for (i = 0; i < GUARD_PROBES; i++) {
		at = &profile->pairs[(place + i) & (GUARD_PAIRS - 1)];
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
 * An atomic OR would not do: another processor may have claimed the entry for another key. Then the
 * pair or window is learned the next time.
 */
#define learn_entry(at, key, key_shift, bits)                                                                      \
	({                                                                                                         \
		typeof(*(at)) __old = READ_ONCE(*(at));                                                            \
		int __tries;                                                                                       \
		for (__tries = 0; __tries < 4 && __old >> (key_shift) == (key); __tries++) {                       \
			typeof(*(at)) __seen = __sync_val_compare_and_swap(at, __old, __old | (bits));             \
			if (__seen == __old)                                                                       \
				break;                                                                             \
			__old = __seen;                                                                            \
		}                                                                                                  \
	})

/* The distances at which a pair was learned and is normal: its entry without the key. */
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
 * A window's entry in one table. `goes_on`: the entry may be in the next table, because no entry
 * here that could have held the window was ever free.
 */
static __always_inline u64 *probe_window(u64 *table, u32 log2, u32 shift, u64 key, enum window_search what,
					bool *goes_on)
{
	u32 place = (key * GOLDEN_64) >> shift, i;
	u64 entry, seen, *at;

	for (i = 0; i < GUARD_PROBES; i++) {
		at = &table[(place + i) & ((1 << log2) - 1)];
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
		/* As above. */
		if (seen == entry || seen >> GUARD_WINDOW_KEY_SHIFT == key)
			return at;
	}
	return NULL;
}

static __always_inline u64 *window_entry(struct guard_profile *profile, u64 key, enum window_search what)
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
		/* Other bits of the product: windows that crowd one table spread over the next. */
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

/* The latest `length` calls of the window; 0: it has fewer. */
static __always_inline u64 latest(u64 window, u32 length)
{
	u64 calls = window & ((1ULL << (GUARD_SYMBOL_BITS * length)) - 1);

	return calls >> (GUARD_SYMBOL_BITS * (length - 1)) ? calls : 0;
}

/* The key of the current call and the call that is `distance` before the previous one. */
static __always_inline u32 pair_key(u64 window, u32 distance)
{
	u32 earlier = window >> (GUARD_SYMBOL_BITS * (distance + 1)) & GUARD_SYMBOL_OTHER;

	return (window & GUARD_SYMBOL_OTHER) << GUARD_SYMBOL_BITS | earlier;
}

#define for_each_pair(distance, key, window, lookahead)                                                            \
	for (distance = 0;                                                                                         \
	     distance < GUARD_LOOKAHEAD_MAX - 1 && distance + 1 < (lookahead) &&                                   \
	     ((key) = pair_key(window, distance)) & GUARD_SYMBOL_OTHER;                                                   \
	     distance++)

/*
 * Counts the mismatches of a window: with the training data in the low half of the result, with the
 * normal data in the high half.
 */
static __always_inline u32 mismatches(struct guard_profile *profile, u32 lookahead, u32 length, u64 window)
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
static __always_inline bool learn(struct guard_profile *profile, u32 lookahead, u32 length, u64 window)
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
 * Discards the training data: what was learned since the profile was made or became normal. By
 * bpf_loop(), because the verifier follows a plain loop iteration by iteration, before 6.8 at each
 * load of the gate.
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
static __always_inline void frame_push(struct thread_state *thread, bool anomalous)
{
	u32 lfc = thread->lfc;

	lfc += anomalous;
	lfc -= thread->frame[1] >> 63;
	thread->frame[1] = thread->frame[1] << 1 | thread->frame[0] >> 63;
	thread->frame[0] = thread->frame[0] << 1 | anomalous;
	thread->lfc = lfc;
	if (lfc > thread->max_lfc)
		thread->max_lfc = lfc;
}

static __always_inline void frame_reset(struct thread_state *thread)
{
	thread->frame[0] = 0;
	thread->frame[1] = 0;
	thread->lfc = 0;
}

/*
 * Freezes a profile whose latest change was long enough ago (normal_factor). Returns the number of
 * calls until the next check.
 */
static __always_inline u32 guard_freeze(struct guard_profile *profile, struct guard_parameters *parameters,
					u64 trained)
{
	u64 changed_at = READ_ONCE(profile->changed_at), freezes_at;

	if (profile->state != GUARD_TRAINING || !changed_at || !parameters->normal_factor_den)
		return GUARD_BATCH;
	freezes_at = changed_at * parameters->normal_factor / parameters->normal_factor_den + 1;
	if (trained < freezes_at)
		return freezes_at - trained < GUARD_BATCH ? freezes_at - trained : GUARD_BATCH;
	if (__sync_val_compare_and_swap(&profile->state, GUARD_TRAINING, GUARD_FROZEN) == GUARD_TRAINING)
		__sync_fetch_and_add(&profile->freezes_count, 1);
	return GUARD_BATCH;
}

/* pH's process_syscall, step by step. Returns the mismatches with the normal data. */
static __always_inline u32 guard_process_syscall(struct thread_state *thread, struct guard_profile *profile,
				       struct guard_parameters *parameters, u32 call, u64 window, u64 calls,
				       bool is_denounced)
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
	thread->guard_batch = guard_freeze(profile, parameters, trained);
	thread->guard_left = thread->guard_batch;
	if (profile->state == GUARD_NORMAL)
		anomalous = unknown >> 16;
	if (anomalous && profile->anomalies > parameters->anomaly_limit) {
		profile->state = GUARD_TRAINING;
		frame_reset(thread);
	}
	if (anomalous)
		__sync_fetch_and_add(&profile->anomalies, 1);
	if (anomalous || is_denounced || thread->lfc)
		frame_push(thread, anomalous || is_denounced);
	if (thread->lfc > parameters->tolerize_limit) {
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

static __always_inline bool is_sigreturn(u32 call)
{
	return call == SIGRETURN_64 || call == ABI_I386 * CALLS_PER_ABI + SIGRETURN_32 ||
	       call == ABI_I386 * CALLS_PER_ABI + RT_SIGRETURN_32 ||
	       call == ABI_X32 * CALLS_PER_ABI + RT_SIGRETURN_X32;
}

static __always_inline bool is_restart(u32 call)
{
	return call == RESTART_64 || call == ABI_I386 * CALLS_PER_ABI + RESTART_32 ||
	       call == ABI_X32 * CALLS_PER_ABI + RESTART_64;
}

/* A signal handler returns: the thread continues the window that the signal interrupted. */
static __always_inline void handler_return(struct thread_state *thread)
{
	u64 window = thread->interrupted[0];
	u32 i;

	for (i = 0; i < GUARD_HANDLERS - 1; i++)
		thread->interrupted[i] = thread->interrupted[i + 1];
	thread->handlers--;
	thread->is_restart_expected = !!(window & GUARD_RESTARTS);
	thread->window = window & GUARD_WINDOW_MASK;
}

/* A handler begins with an empty window. `will_restart`: the interrupted call is restarted. */
static __always_inline void handler_enter(struct thread_state *thread, bool will_restart)
{
	u32 i;

	for (i = GUARD_HANDLERS - 1; i > 0; i--)
		thread->interrupted[i] = thread->interrupted[i - 1];
	thread->interrupted[0] = thread->window | (will_restart ? GUARD_RESTARTS : 0);
	/*
	 * Beyond that number the outermost window is dropped: a program that leaves handlers by
	 * longjmp never returns from them.
	 */
	if (thread->handlers < GUARD_HANDLERS)
		thread->handlers++;
	thread->is_restart_expected = 0;
	thread->window = 0;
}

/* In place of mismatches: the call is a sigreturn or a restarted call. */
#define NOT_TESTED (~0U)

/*
 * Tests a call that the fast path does not know. Returns the mismatches with the normal data, or
 * NOT_TESTED. A global function, like guard_respond(), so that the verifier checks each separately.
 */
__noinline u32 guard_slow_path(struct thread_state *thread, struct guard_profile *profile,
			  struct guard_parameters *parameters, u32 call, u32 is_denounced)
{
	u32 symbol, calls;
	u64 window;

	if (!thread || !profile || !parameters || call >= CALL_INDICES)
		return 0;
	calls = thread->guard_batch - thread->guard_left;
	if (unlikely(thread->is_restart_expected || is_restart(call))) {
		thread->is_restart_expected = 0;
		symbol = profile->symbol_of[call];
		if (is_restart(call) || (symbol && symbol == (thread->window & GUARD_SYMBOL_OTHER))) {
			thread->guard_left++;
			return NOT_TESTED;
		}
	}
	if (unlikely(thread->handlers) && is_sigreturn(call)) {
		handler_return(thread);
		thread->guard_left++;
		return NOT_TESTED;
	}
	symbol = profile->symbol_of[call];
	if (!symbol)
		symbol = take_symbol(profile, call);
	window = (thread->window << GUARD_SYMBOL_BITS | symbol) & GUARD_WINDOW_MASK;
	thread->window = window;
	return guard_process_syscall(thread, profile, parameters, call, window, calls, is_denounced);
}

/* Whether the window is in the known cache. This is the whole cost of a normal call. */
static __always_inline bool guard_fast_path(struct thread_state *thread, struct guard_profile *profile, u32 call)
{
	u64 window = (thread->window << GUARD_SYMBOL_BITS | profile->symbol_of[call]) & GUARD_WINDOW_MASK;

	thread->guard_left--;
	if (unlikely(thread->slow_path_flags || !thread->guard_left ||
		     *known_cache_entry(profile, window) != (window | GUARD_CACHED)))
		return false;
	thread->window = window;
	return true;
}

/* Begins a batch without uncounted calls. The next call takes the slow path. */
static __always_inline void guard_begin_batch(struct thread_state *thread)
{
	thread->guard_batch = 1;
	thread->guard_left = 1;
}

/* Adds the calls that only the thread has counted to its profile. */
static __always_inline void guard_flush(struct thread_state *thread)
{
	struct guard_profile *profile = profile_at(thread->profile_slot);

	if (profile) {
		__sync_fetch_and_add(&profile->trained, thread->guard_batch - thread->guard_left);
		__sync_fetch_and_add(&profile->calls, thread->guard_batch - thread->guard_left);
	}
	guard_begin_batch(thread);
}

static __always_inline void guard_report_event(struct thread_state *thread, u32 call, u32 mismatches, u32 action,
				       u32 restraint, u64 now)
{
	struct guard_event *event = reserve_record(thread->guard_session, sizeof(*event), LOSS_GUARD_EVENTS);
	struct task_struct *task = bpf_get_current_task_btf();
	struct session *session = session_at(thread->guard_session);

	if (!event)
		return;
	event->type = RECORD_GUARD_EVENT;
	event->session = thread->guard_session;
	event->pid = thread->visible_pid;
	event->tgid = session ? visible_pid(task->group_leader, session->pid_level) : 0;
	event->profile_slot = thread->profile_slot;
	event->call = call;
	event->time_ns = now;
	event->held_until_ns = thread->held ? thread->held_until_ns : 0;
	event->window = thread->window;
	event->mismatches = mismatches;
	event->lfc = thread->lfc;
	event->action = action;
	event->restraint = restraint;
	event->precall = thread->precall;
	bpf_probe_read_kernel(event->comm, sizeof(event->comm), &task->comm);
	bpf_ringbuf_submit(event, 0);
}

/* include/uapi/asm-generic/signal.h */
#define SIGKILL 9
#define SIGCONT 18
#define SIGSTOP 19

/* pH's delay: 2^LFC times the factor. */
static __always_inline u64 guard_delay(struct guard_parameters *parameters, u32 lfc)
{
	u64 factor = parameters->delay_factor_ns;

	if (!factor)
		return 0;
	/* 2^63 ns are 292 years. */
	if (lfc > 62 || factor >= 1ULL << (63 - lfc) || factor << lfc > parameters->delay_cap_ns)
		return parameters->delay_cap_ns;
	return factor << lfc;
}

/* The task's session (setsid), as a number of the initial PID namespace. */
static __always_inline u32 sid_of(struct task_struct *task)
{
	return BPF_CORE_READ(task, signal, pids[PIDTYPE_SID], numbers[0].nr);
}

/* Whether the thread is exempt: observed, but never held. */
static __always_inline bool is_exempt(struct thread_state *thread, struct session *session)
{
	struct guard_profile *profile = profile_at(thread->profile_slot);

	return (profile && profile->is_exempt) ||
	       sid_of(bpf_get_current_task_btf()) == session->guard.exempt_sid;
}

/*
 * Whether the session holds as many processes as it may. A stopped process begins no further hold,
 * unless several of its threads begin theirs at the same time.
 */
static __always_inline bool is_max_held(struct session *session)
{
	return session->held + __sync_fetch_and_add(&session->holds_begun, 1) >= session->guard.max_held;
}

/* How the call can be kept from taking effect: enum guard_precall; 0: it cannot. */
static __always_inline u32 precall_of(u32 call)
{
	return call < CALL_INDICES ? config.precall[call] : 0;
}

/*
 * Stops the process. The signal goes to this thread. If another thread of the process got it, this
 * thread would not check for signals at the end of the call, and a call that was undone would fail
 * with -ERESTARTNOINTR.
 */
static __always_inline bool send_stop(struct thread_state *thread, u32 call)
{
	thread->precall = precall_of(call);
	/*
	 * The call would fail with EINTR. The baseline does not have what the program does then, so
	 * that would be held in turn, and so on.
	 */
	if (thread->precall & PRECALL_DEFER)
		return true;
	if (bpf_send_signal_thread(SIGSTOP)) {
		thread->precall = 0;
		return false;
	}
	/* If the thread was released meanwhile, its SIGCONT may have come before this SIGSTOP. */
	if (unlikely(!READ_ONCE(thread->held)))
		bpf_send_signal(SIGCONT);
	return true;
}

/* pH's suspend_execve: a new program begins without anomalies, so it must not begin. */
static __always_inline bool is_execve_suspended(struct guard_parameters *parameters, struct thread_state *thread, u32 call)
{
	return unlikely(parameters->suspend_execve && is_execve(call)) &&
	       thread->max_lfc >= parameters->suspend_execve;
}

/*
 * Applies the policy to a thread with anomalies among its latest calls. The signal takes effect
 * when a hook undoes the call (guard/precall.bpf.h), when the call ends, or at once if the call
 * sleeps. A call that is undone or interrupted is restarted.
 */
__noinline int guard_respond(struct thread_state *thread, struct session *session, u32 call, u32 mismatches)
{
	u32 response, action = GUARD_OBSERVE, restraint = GUARD_UNRESTRAINED;
	u64 now = bpf_ktime_get_ns(), delay_ns = 0;
	struct plugin_verdict *verdict;

	if (!thread || !session)
		return 0;
	response = session->guard.response;
	if (response != GUARD_OBSERVE && is_exempt(thread, session)) {
		restraint = GUARD_EXEMPT;
		response = GUARD_OBSERVE;
	}
	if (response == GUARD_DENY && is_execve(call) && precall_of(call)) {
		thread->precall = PRECALL_DENY;
		action = GUARD_DENY;
	} else if (response == GUARD_KILL || (response == GUARD_DENY && is_execve(call)))
		action = bpf_send_signal(SIGKILL) ? GUARD_OBSERVE : response;
	else if (response == GUARD_STOP)
		delay_ns = ~0ULL - now;
	else if (response != GUARD_OBSERVE && is_execve_suspended(&session->guard, thread, call))
		delay_ns = session->guard.suspend_execve_ns;
	else if (response != GUARD_OBSERVE)
		delay_ns = guard_delay(&session->guard, thread->lfc);
	if (delay_ns && !thread->held && is_max_held(session)) {
		restraint = GUARD_MAX_HELD;
		delay_ns = 0;
	}
	if (delay_ns) {
		/* Before the signal, so that the hold is found if the guard's process is killed. */
		if (!thread->held || thread->held_until_ns < now + delay_ns)
			thread->held_until_ns = now + delay_ns;
		/*
		 * The thread is marked as well, because an execve makes it the leader. If the
		 * leader has ended, slot 0 is marked, which belongs to no thread.
		 */
		thread_at(slot_of(bpf_get_current_task_btf()->group_leader))->ever_held = 1;
		thread->ever_held = 1;
		header.ever_held = 1;
		WRITE_ONCE(thread->held, 1);
		if (send_stop(thread, call))
			action = response == GUARD_DENY ? GUARD_DELAY : response;
		else
			thread->held = 0;
	}
	if (config.enabled & PLUGIN) {
		verdict = &verdicts[bpf_get_smp_processor_id() & (CPUS - 1)];
		verdict->mismatches = mismatches & ~GUARD_DENOUNCED;
		verdict->lfc = thread->lfc;
		verdict->action = action;
		verdict->is_denounced = !!(mismatches & GUARD_DENOUNCED);
	}
	if (mismatches || action)
		guard_report_event(thread, call, mismatches, action, restraint, now);
	return 0;
}

/*
 * A held thread makes a call: its time is over, or a process other than Tollgate has continued it
 * too early.
 */
static __always_inline void guard_rehold(struct thread_state *thread, u32 call)
{
	/*
	 * When the time is over, Tollgate clears the flag and continues the process. The gate does
	 * not: the SIGSTOP of a hold by Tollgate itself may still be on its way.
	 */
	if (bpf_ktime_get_ns() < thread->held_until_ns)
		send_stop(thread, call);
}

/*
 * At entry, before the call is made. `is_denounced`: a plugin marks the call as anomalous, whatever
 * the profile says. Returns whether the policy was applied, even if it only observes.
 */
static __always_inline bool guard_sys_enter(struct thread_state *thread, u32 call, bool is_denounced)
{
	struct guard_profile *profile = profile_at(thread->profile_slot);
	bool is_suspended, is_final, is_usual;
	struct session *session;
	u32 mismatches;

	if (unlikely(!profile)) {
		/*
		 * No loss with other slots: the thread has not executed a program yet, or the
		 * session does not guard its program.
		 */
		if (thread->profile_slot == GUARD_PROFILE_NONE)
			count_loss(thread->guard_session, LOSS_UNGUARDED_CALLS);
		return false;
	}
	is_usual = guard_fast_path(thread, profile, call);
	if (likely(is_usual && !is_denounced))
		return false;
	session = session_at(thread->guard_session);
	if (!session)
		return false;
	thread->precall = 0;
	if (thread->held)
		guard_rehold(thread, call);
	mismatches = is_usual ? 0 : guard_slow_path(thread, profile, &session->guard, call, is_denounced);
	if (is_denounced && mismatches != NOT_TESTED) {
		if (is_usual)
			frame_push(thread, 1);
		mismatches |= GUARD_DENOUNCED;
	}
	is_suspended = is_execve_suspended(&session->guard, thread, call);
	is_final = is_suspended || (session->guard.response == GUARD_DENY && is_execve(call));
	/*
	 * A restarted call has served its hold: a fork never succeeds with a stop before it. While
	 * a held thread runs because another process continued it, only an anomalous call counts,
	 * or an execve that must not begin (is_final).
	 */
	if ((!thread->lfc && !is_suspended) || mismatches == NOT_TESTED || (thread->held && !mismatches && !is_final))
		return false;
	guard_respond(thread, session, call, mismatches);
	return true;
}

/* Identifies the file of the task's program. */
static __always_inline void program_key_of(struct task_struct *task, u32 session, struct guard_program *program)
{
	struct inode *inode = BPF_CORE_READ(task, mm, exe_file, f_inode);

	program->session = session;
	if (!inode)
		return;
	program->inode = BPF_CORE_READ(inode, i_ino);
	program->device = BPF_CORE_READ(inode, i_sb, s_dev);
	program->size = BPF_CORE_READ(inode, i_size);
	program->ctime_ns = inode_ctime_ns(inode);
}

/* In place of a scope: that of the current process. */
#define SCOPE_CURRENT SCOPE_ANY

/* What distinguishes the session's programs besides their content; 0: nothing. */
static __always_inline u64 scope_of(u32 session_index)
{
	struct session *session = session_at(session_index);
	u32 kind = session ? session->guard.scope : SCOPE_CONTENT;

	return kind ? current_scope(kind) : 0;
}

/*
 * The slot of the profile of a task's program; takes an empty profile if the program has none. A
 * global function, which the verifier checks once and not at each of its calls; so it takes the
 * task's address as a number.
 */
__noinline u32 profile_slot_of(u64 address, u32 session, u64 scope)
{
	struct task_struct *task = (void *)address;
	struct guard_program_record *record;
	struct guard_program program = {};
	u32 *known, slot;

	program_key_of(task, session, &program);
	if (!program.inode)
		return GUARD_PROFILE_NONE;
	if (config.enabled & GUARD_SCOPED)
		program.scope = scope == SCOPE_CURRENT ? scope_of(session) : scope;
	known = bpf_map_lookup_elem(&programs, &program);
	if ((config.enabled & GUARD_SCOPED) && !known && program.scope) {
		scope = program.scope;
		program.scope = SCOPE_ANY;
		known = bpf_map_lookup_elem(&programs, &program);
		program.scope = scope;
	}
	if (known)
		return *known;
	if (bpf_map_pop_elem(&ready_profiles, &slot)) {
		count_loss(session, LOSS_PROFILES);
		return GUARD_PROFILE_NONE;
	}
	__sync_fetch_and_add(&header.ready_profiles, -1);
	if (bpf_map_update_elem(&programs, &program, &slot, BPF_NOEXIST)) {
		/* Another processor was faster, or the map is full. */
		bpf_map_push_elem(&ready_profiles, &slot, BPF_ANY);
		__sync_fetch_and_add(&header.ready_profiles, 1);
		known = bpf_map_lookup_elem(&programs, &program);
		if (!known)
			count_loss(session, LOSS_PROFILES);
		return known ? *known : GUARD_PROFILE_NONE;
	}
	record = reserve_record(session, sizeof(*record), LOSS_GUARD_EVENTS);
	if (record) {
		record->type = RECORD_GUARD_PROGRAM;
		record->session = session;
		record->pid = visible_pid(task, 0);
		record->profile_slot = slot;
		record->program = program;
		/* A short-lived program has ended before user space can read its path. */
		path_of_file(&record->path, task, BPF_CORE_READ(task, mm, exe_file));
		if (config.enabled & GUARD_SCOPED)
			bpf_probe_read_kernel(&record->scope, sizeof(record->scope), scope_name());
		bpf_ringbuf_submit(record, 0);
	}
	return slot;
}

/* A thread begins a program, or is attached in one: it has made no calls yet. */
static __always_inline void guard_exec(struct thread_state *thread, u64 scope)
{
	/* A thread that was held at its execve is yet to be released. */
	u8 held = thread->held;
	u32 i;

	guard_flush(thread);
	thread->window = 0;
	thread->slow_path_flags = 0;
	thread->precall = 0;
	thread->held = held;
	frame_reset(thread);
	thread->max_lfc = 0;
	for (i = 0; i < GUARD_HANDLERS; i++)
		WRITE_ONCE(thread->interrupted[i], 0);
	thread->profile_slot = profile_slot_of(READ_ONCE(thread->task), thread->guard_session, scope);
}

/* pH: a child continues with a copy of its parent's sequence. */
static __always_inline void guard_fork(struct thread_state *thread, struct thread_state *parent)
{
	u32 i;

	guard_begin_batch(thread);
	thread->guard_session = parent->guard_session;
	thread->window = parent->window;
	thread->profile_slot = parent->profile_slot;
	thread->lfc = parent->lfc;
	thread->max_lfc = parent->max_lfc;
	thread->handlers = parent->handlers;
	thread->frame[0] = parent->frame[0];
	thread->frame[1] = parent->frame[1];
	for (i = 0; i < GUARD_HANDLERS; i++)
		thread->interrupted[i] = parent->interrupted[i];
}

/* include/uapi/asm-generic/signal.h, include/linux/errno.h */
#define SIG_IGNORE 1
#define EINTR 4
#define SA_RESTART 0x10000000
#define ERESTARTSYS 512
#define ERESTARTNOINTR 513
#define ERESTARTNOHAND 514
#define ERESTART_RESTARTBLOCK 516

/* include/linux/sched.h, __TASK_STOPPED; not in BTF */
#define STATE_STOPPED 0x4

/*
 * A thread stops in a call, or a signal without a handler wakes it: with one of these results, the
 * kernel restarts the call, or the program makes it again (EINTR).
 */
static __always_inline void guard_mark_restart(struct thread_state *thread, struct task_struct *task)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(task);
	long result = -(long)regs->ax;

	if ((long)regs->orig_ax < 0)
		return;
	if (result == ERESTARTSYS || result == ERESTARTNOINTR || result == ERESTARTNOHAND ||
	    result == ERESTART_RESTARTBLOCK || (result == EINTR && precall_of(thread->call) & PRECALL_DEFER))
		thread->is_restart_expected = 1;
}

/* A signal is delivered. Whether the kernel restarts the call: arch/x86/kernel/signal.c. */
static __always_inline void guard_sig_deliver(struct thread_state *thread, struct task_struct *task,
					 struct k_sigaction *action)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(task);
	bool in_call = (long)regs->orig_ax >= 0;
	long result = -(long)regs->ax;

	if ((u64)action->sa.sa_handler <= SIG_IGNORE)
		guard_mark_restart(thread, task);
	else
		handler_enter(thread, in_call && (result == ERESTARTNOINTR || (result == ERESTARTSYS &&
										(action->sa.sa_flags & SA_RESTART))));
}

#endif
