/* SPDX-License-Identifier: GPL-2.0 */
/*
 * guard: pH's lookahead pairs and stide's sequences, learned and tested at each call. crates/guard is the
 * reference: both must say the same of every call (docs/decisions/0003-guard.md).
 */
#ifndef TOLLGATE_GUARD_BPF_H
#define TOLLGATE_GUARD_BPF_H

#include "state.bpf.h"
#include "calls.bpf.h"
#include "path.bpf.h"
#include "scope.bpf.h"

/*
 * A profile is a map of its own, made by user space when it is needed. By sizes and not by types: to 6.1, a
 * map with types is not of the same kind as one without (bpf_map_meta_equal).
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

struct more_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct guard_more));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, GUARD_PROFILES);
	__type(key, u32);
	__array(values, struct more_map);
} more_windows SEC(".maps");

/* Places of empty profiles that user space has made. */
FREE_LIST(ready_profiles, GUARD_PROFILES);
/* Copies of a program share a place, and so do scopes that mean the same. */
HASH_MAP(programs, 4 * GUARD_PROFILES, struct guard_program, u32);

static __always_inline struct guard_profile *profile_at(u32 slot)
{
	void *map = bpf_map_lookup_elem(&profiles, &slot);
	u32 first = 0;

	return map ? bpf_map_lookup_elem(map, &first) : NULL;
}

static __always_inline struct guard_more *more_at(u32 slot)
{
	void *map = slot ? bpf_map_lookup_elem(&more_windows, &slot) : NULL;
	u32 first = 0;

	return map ? bpf_map_lookup_elem(map, &first) : NULL;
}

/* Fibonacci hashing: Knuth, The Art of Computer Programming 3, section 6.4. */
#define GOLDEN_64 0x9e3779b97f4a7c15ULL
#define GOLDEN_32 0x9e3779b1U

static __always_inline u64 *recent_place(struct guard_profile *profile, u64 window)
{
	return &profile->recent[(window * GOLDEN_64) >> (64 - GUARD_RECENT_LOG2)];
}

/* The number that the program gives to this call. Four are in a word, as the narrowest that can be swapped. */
static __always_inline u32 take_symbol(struct guard_profile *profile, u32 call)
{
	u32 shift = call % 4 * 8, symbol, old, i;
	u32 *word;

	if (call >= CALL_SLOTS)
		return GUARD_OTHER;
	word = (u32 *)profile->symbol_of + call / 4;
	symbol = READ_ONCE(profile->symbols) >= GUARD_OTHER - 1 ? GUARD_OTHER :
								   __sync_fetch_and_add(&profile->symbols, 1) + 1;
	if (symbol > GUARD_OTHER)
		symbol = GUARD_OTHER;
	for (i = 0; i < 8; i++) {
		old = READ_ONCE(*word);
		if (old >> shift & 0xff)
			return old >> shift & 0xff;
		if (__sync_val_compare_and_swap(word, old, old | symbol << shift) == old)
			return symbol;
	}
	return GUARD_OTHER;
}

/*
 * The searches are global functions, which the verifier looks at by themselves: the loops of nine of them would
 * be more than it bears. So they return numbers, not places.
 */

/* Entry of a pair, or NULL. An entry that was forgotten keeps its key, so that it ends no search. */
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

/* The first place with nothing in it, or with what was forgotten. NULL: there is no room. */
static __always_inline u32 *claim_pair(struct guard_profile *profile, u32 key)
{
	u32 place = (key * GOLDEN_32) >> (32 - GUARD_PAIRS_LOG2), entry, seen, i, *at;

	for (i = 0; i < GUARD_PROBES; i++) {
		at = &profile->pairs[(place + i) & (GUARD_PAIRS - 1)];
		entry = READ_ONCE(*at);
		if (entry & (GUARD_PAIR_LEARNED | GUARD_PAIR_LEARNED << GUARD_PAIR_NORMAL_SHIFT))
			continue;
		seen = __sync_val_compare_and_swap(at, entry, key << GUARD_PAIR_KEY_SHIFT);
		/* Another processor may have claimed it for the same in this moment. */
		if (seen == entry || seen >> GUARD_PAIR_KEY_SHIFT == key)
			return at;
	}
	return NULL;
}

/* Not just an or: another processor may have claimed the place for another key. Then the next time will do. */
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

/* At which distances a pair was learned and is normal: an entry without its key. */
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
	/* Only if it is there. */
	FIND,
	/* Otherwise the first place with nothing in it, or with what was forgotten. */
	CLAIM,
};

/*
 * A window's entry in one table. `goes_on`: it may be in the next one, as no place here that could have held it
 * was ever free.
 */
static __always_inline u64 *seek_window(u64 *table, u32 log2, u32 shift, u64 key, enum window_search what,
					bool *goes_on)
{
	u32 place = (key * GOLDEN_64) >> shift, i;
	u64 entry, seen, *at;

	for (i = 0; i < GUARD_PROBES; i++) {
		at = &table[(place + i) & ((1 << log2) - 1)];
		entry = READ_ONCE(*at);
		if (what == FIND && entry >> GUARD_WINDOW_KEY_SHIFT == key)
			return at;
		if (what == FIND && !entry) {
			*goes_on = false;
			break;
		}
		if (what == FIND || entry & (GUARD_WINDOW_LEARNED | GUARD_WINDOW_NORMAL))
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
	u64 *at = seek_window(profile->windows, GUARD_WINDOWS_LOG2, shift, key, what, &goes_on);
	struct guard_more *more;

	for (i = 0; i < GUARD_MORE_TIMES; i++) {
		if (at || !goes_on)
			break;
		more = more_at(profile->more[i]);
		if (!more)
			break;
		/* Other bits of the product: what crowds one table is spread over the next. */
		shift -= GUARD_MORE_LOG2;
		at = seek_window(more->windows, GUARD_MORE_LOG2, shift, key, what, &goes_on);
	}
	return at;
}

/* Whether a window was learned and is normal: GUARD_WINDOW_LEARNED, GUARD_WINDOW_NORMAL. */
__noinline u32 guard_find_window(struct guard_profile *profile, u64 key)
{
	u64 *at = profile ? window_entry(profile, key, FIND) : NULL;

	return at ? READ_ONCE(*at) & (GUARD_WINDOW_LEARNED | GUARD_WINDOW_NORMAL) : 0;
}

/* Returns whether there was room. */
__noinline u32 guard_learn_window(struct guard_profile *profile, u64 key)
{
	u64 *at = profile ? window_entry(profile, key, FIND) : NULL;

	if (profile && !at)
		at = window_entry(profile, key, CLAIM);
	if (!at)
		return false;
	learn_entry(at, key, GUARD_WINDOW_KEY_SHIFT, GUARD_WINDOW_LEARNED);
	return true;
}

/* The window's latest calls; 0: there are not as many. */
static __always_inline u64 latest(u64 window, u32 length)
{
	u64 calls = window & ((1ULL << (GUARD_SYMBOL_BITS * length)) - 1);

	return calls >> (GUARD_SYMBOL_BITS * (length - 1)) ? calls : 0;
}

/* Of the current call and the one that is so many before the one before it. */
static __always_inline u32 pair_key(u64 window, u32 distance)
{
	u32 earlier = window >> (GUARD_SYMBOL_BITS * (distance + 1)) & GUARD_OTHER;

	return (window & GUARD_OTHER) << GUARD_SYMBOL_BITS | earlier;
}

#define for_each_pair(distance, key, window, lookahead)                                                            \
	for (distance = 0;                                                                                         \
	     distance < GUARD_LOOKAHEAD_MAX - 1 && distance + 1 < (lookahead) &&                                   \
	     ((key) = pair_key(window, distance)) & GUARD_OTHER;                                                   \
	     distance++)

/* How much of a window is not known: of what was learned in the low half, of what is normal in the high one. */
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

/* From now on the window is known; returns whether there was room for all of it. */
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

struct forgetting {
	struct guard_profile *profile;
	struct guard_more *more[GUARD_MORE_TIMES];
};

static long forget_place(u32 i, struct forgetting *what)
{
	struct guard_profile *profile = what->profile;
	u32 k;

	/* As it will be: but the verifier must see it. */
	if (i >= GUARD_MORE)
		return 1;
	if (i < GUARD_PAIRS)
		profile->pairs[i] &= ~GUARD_PAIR_LEARNED;
	if (i < GUARD_WINDOWS)
		profile->windows[i] &= ~(u64)GUARD_WINDOW_LEARNED;
	if (i < GUARD_RECENT)
		WRITE_ONCE(profile->recent[i], 0);
	for (k = 0; k < GUARD_MORE_TIMES; k++) {
		if (what->more[k])
			what->more[k]->windows[i] &= ~(u64)GUARD_WINDOW_LEARNED;
	}
	return 0;
}

/*
 * What was learned since the profile was made, or became normal, counts no more. By bpf_loop(): a plain loop is
 * verified turn by turn, at each load of the gate before 6.8.
 */
static __always_inline void guard_forget_training(struct guard_profile *profile)
{
	struct forgetting what = { .profile = profile };
	u32 k;

	__sync_fetch_and_add(&profile->forgettings, 1);
	for (k = 0; k < GUARD_MORE_TIMES; k++)
		what.more[k] = more_at(profile->more[k]);
	/* GUARD_MORE is the largest of the tables. */
	bpf_loop(GUARD_MORE, forget_place, &what, 0);
	profile->trained = 0;
	profile->changed_at = 0;
	profile->anomalies = 0;
}

/* The call's place in the locality frame. */
static __always_inline void frame_push(struct thread_state *thread, bool anomalous)
{
	u32 lfc = thread->lfc;

	lfc += anomalous;
	lfc -= thread->frame[1] >> 63;
	thread->frame[1] = thread->frame[1] << 1 | thread->frame[0] >> 63;
	thread->frame[0] = thread->frame[0] << 1 | anomalous;
	thread->lfc = lfc;
	if (lfc > thread->lfc_most)
		thread->lfc_most = lfc;
}

static __always_inline void frame_wipe(struct thread_state *thread)
{
	thread->frame[0] = 0;
	thread->frame[1] = 0;
	thread->lfc = 0;
}

/* Freezes a profile that has learned nothing new for so long; otherwise says how many more calls that takes. */
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
		__sync_fetch_and_add(&profile->freezings, 1);
	return GUARD_BATCH;
}

/* pH's process_syscall, in its order. Returns the mismatches with what is normal. */
static __always_inline u32 guard_judge(struct thread_state *thread, struct guard_profile *profile,
				       struct guard_parameters *parameters, u32 call, u64 window, u64 calls,
				       bool is_denounced)
{
	u32 unknown, anomalous = 0, forgettings = READ_ONCE(profile->forgettings);
	u64 trained = __sync_fetch_and_add(&profile->trained, calls) + calls, *recent;
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
		frame_wipe(thread);
	}
	if (anomalous)
		__sync_fetch_and_add(&profile->anomalies, 1);
	if (anomalous || is_denounced || thread->lfc)
		frame_push(thread, anomalous || is_denounced);
	if (thread->lfc > parameters->tolerize_limit) {
		guard_forget_training(profile);
	} else if (!anomalous && is_known && !(parameters->suspend_execve && is_execve(call))) {
		recent = recent_place(profile, window);
		*recent = window | GUARD_KNOWN;
		/* It may be of what another processor has forgotten meanwhile. */
		if (READ_ONCE(profile->forgettings) != forgettings)
			*recent = 0;
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

/* A handler's end: the thread goes on with what the signal interrupted. */
static __always_inline void handler_ends(struct thread_state *thread)
{
	u64 window = thread->interrupted[0];
	u32 i;

	for (i = 0; i < GUARD_HANDLERS - 1; i++)
		thread->interrupted[i] = thread->interrupted[i + 1];
	thread->handlers--;
	thread->again = !!(window & GUARD_AGAIN);
	thread->window = window & GUARD_WINDOW_MASK;
}

/* A handler begins with an empty window of its own. `again`: what it interrupts will be made again. */
static __always_inline void handler_begins(struct thread_state *thread, bool again)
{
	u32 i;

	for (i = GUARD_HANDLERS - 1; i > 0; i--)
		thread->interrupted[i] = thread->interrupted[i - 1];
	thread->interrupted[0] = thread->window | (again ? GUARD_AGAIN : 0);
	/* Of more, the outermost are forgotten: a program that leaves its handlers by longjmp never returns from them. */
	if (thread->handlers < GUARD_HANDLERS)
		thread->handlers++;
	thread->again = 0;
	thread->window = 0;
}

/* In place of mismatches: it is no call of the program's own, or the same one once more. */
#define NOT_JUDGED (~0U)

/*
 * What is not plainly a call like many before. Returns its mismatches with what is normal, or NOT_JUDGED. Global, as
 * guard_respond() is: the verifier looks at each by itself.
 */
__noinline u32 guard_look(struct thread_state *thread, struct guard_profile *profile,
			  struct guard_parameters *parameters, u32 call, u32 is_denounced)
{
	u32 symbol, calls;
	u64 window;

	if (!thread || !profile || !parameters || call >= CALL_SLOTS)
		return 0;
	calls = thread->guard_batch - thread->guard_left;
	if (unlikely(thread->again || is_restart(call))) {
		thread->again = 0;
		symbol = profile->symbol_of[call];
		if (is_restart(call) || (symbol && symbol == (thread->window & GUARD_OTHER))) {
			thread->guard_left++;
			return NOT_JUDGED;
		}
	}
	if (unlikely(thread->handlers) && is_sigreturn(call)) {
		handler_ends(thread);
		thread->guard_left++;
		return NOT_JUDGED;
	}
	symbol = profile->symbol_of[call];
	if (!symbol)
		symbol = take_symbol(profile, call);
	window = (thread->window << GUARD_SYMBOL_BITS | symbol) & GUARD_WINDOW_MASK;
	thread->window = window;
	return guard_judge(thread, profile, parameters, call, window, calls, is_denounced);
}

/* Whether it is plainly a call like many before: this is what a usual call costs. */
static __always_inline bool guard_is_usual(struct thread_state *thread, struct guard_profile *profile, u32 call)
{
	u64 window = (thread->window << GUARD_SYMBOL_BITS | profile->symbol_of[call]) & GUARD_WINDOW_MASK;

	thread->guard_left--;
	if (unlikely(thread->attention || !thread->guard_left ||
		     *recent_place(profile, window) != (window | GUARD_KNOWN)))
		return false;
	thread->window = window;
	return true;
}

/* No calls that its profile does not know of, and the next one goes there. */
static __always_inline void guard_start_batch(struct thread_state *thread)
{
	thread->guard_batch = 1;
	thread->guard_left = 1;
}

/* Until now only the thread knows of these calls. */
static __always_inline void guard_flush(struct thread_state *thread)
{
	struct guard_profile *profile = profile_at(thread->profile);

	if (profile) {
		__sync_fetch_and_add(&profile->trained, thread->guard_batch - thread->guard_left);
		__sync_fetch_and_add(&profile->calls, thread->guard_batch - thread->guard_left);
	}
	guard_start_batch(thread);
}

static __always_inline void guard_tell(struct thread_state *thread, u32 call, u32 mismatches, u32 action,
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
	event->profile = thread->profile;
	event->call = call;
	event->time_ns = now;
	event->held_until_ns = thread->held ? thread->held_until_ns : 0;
	event->window = thread->window;
	event->mismatches = mismatches;
	event->lfc = thread->lfc;
	event->action = action;
	event->restraint = restraint;
	event->before = thread->before;
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

/* Its session's (setsid) number in the initial PID namespace. */
static __always_inline u32 sid_of(struct task_struct *task)
{
	return BPF_CORE_READ(task, signal, pids[PIDTYPE_SID], numbers[0].nr);
}

/* Whether it is only observed, whatever the policy says. */
static __always_inline bool is_spared(struct thread_state *thread, struct session *session)
{
	struct guard_profile *profile = profile_at(thread->profile);

	return (profile && profile->is_spared) ||
	       sid_of(bpf_get_current_task_btf()) == session->guard.spared_sid;
}

/* No process makes more holds than one while it is stopped, but for threads that meet theirs at once. */
static __always_inline bool too_many_held(struct session *session)
{
	return session->held + __sync_fetch_and_add(&session->holds_since, 1) >= session->guard.held_most;
}

/* How the call can be kept from taking effect: enum guard_before, 0: it cannot. */
static __always_inline u32 before_of(u32 call)
{
	return call < CALL_SLOTS ? config.before[call] : 0;
}

/*
 * Stops the process. The signal is this thread's own: one that another thread was just sent would not have this one
 * look for it at its call's end, so that a call that was undone would fail with -ERESTARTNOINTR.
 */
static __always_inline bool stop_here(struct thread_state *thread, u32 call)
{
	thread->before = before_of(call);
	/* What the program does about EINTR it never did before: that would be held in turn, and so on. */
	if (thread->before & BEFORE_NEXT)
		return true;
	if (bpf_send_signal_thread(SIGSTOP)) {
		thread->before = 0;
		return false;
	}
	/* Who has let it go meanwhile may have sent the SIGCONT too early. */
	if (unlikely(!READ_ONCE(thread->held)))
		bpf_send_signal(SIGCONT);
	return true;
}

/* pH's suspend_execve: what it executes begins with no anomalies, so it must not begin. */
static __always_inline bool suspends(struct guard_parameters *parameters, struct thread_state *thread, u32 call)
{
	return unlikely(parameters->suspend_execve && is_execve(call)) &&
	       thread->lfc_most >= parameters->suspend_execve;
}

/*
 * What the policy does where a thread has anomalies among its latest calls. The signal takes effect when a hook undoes
 * the call (guard_before.bpf.h), when the call ends, or at once if it sleeps; then the call is made again.
 */
__noinline int guard_respond(struct thread_state *thread, struct session *session, u32 call, u32 mismatches)
{
	u32 response, action = GUARD_OBSERVE, restraint = GUARD_UNRESTRAINED;
	u64 now = bpf_ktime_get_ns(), delay_ns = 0;
	struct plugin_verdict *verdict;

	if (!thread || !session)
		return 0;
	response = session->guard.response;
	if (response != GUARD_OBSERVE && is_spared(thread, session)) {
		restraint = GUARD_SPARED;
		response = GUARD_OBSERVE;
	}
	if (response == GUARD_DENY && is_execve(call) && before_of(call)) {
		thread->before = BEFORE_REFUSED;
		action = GUARD_DENY;
	} else if (response == GUARD_KILL || (response == GUARD_DENY && is_execve(call)))
		action = bpf_send_signal(SIGKILL) ? GUARD_OBSERVE : response;
	else if (response == GUARD_STOP)
		delay_ns = ~0ULL - now;
	else if (response != GUARD_OBSERVE && suspends(&session->guard, thread, call))
		delay_ns = session->guard.suspend_execve_ns;
	else if (response != GUARD_OBSERVE)
		delay_ns = guard_delay(&session->guard, thread->lfc);
	if (delay_ns && !thread->held && too_many_held(session)) {
		restraint = GUARD_TOO_MANY;
		delay_ns = 0;
	}
	if (delay_ns) {
		/* Before the signal, so that who releases after a crash finds it. */
		if (!thread->held || thread->held_until_ns < now + delay_ns)
			thread->held_until_ns = now + delay_ns;
		/* Itself, too: an execve makes it the first one. Where that has ended, slot 0 is nobody's. */
		thread_at(slot_of(bpf_get_current_task_btf()->group_leader))->was_held = 1;
		thread->was_held = 1;
		header.was_held = 1;
		WRITE_ONCE(thread->held, 1);
		if (stop_here(thread, call))
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
		guard_tell(thread, call, mismatches, action, restraint, now);
	return 0;
}

/* A held thread makes a call: its time is over, or somebody else has let it go on too early. */
static __always_inline void guard_hold_on(struct thread_state *thread, u32 call)
{
	/* Tollgate clears the flag, and continues it: its own SIGSTOP may be on its way, where it holds a process. */
	if (bpf_ktime_get_ns() < thread->held_until_ns)
		stop_here(thread, call);
}

/*
 * At entry, before the call is made. `is_denounced`: a plugin says that it is an anomaly, whatever the profile says. Returns
 * whether something was done, or would have been.
 */
static __always_inline bool guard_enter(struct thread_state *thread, u32 call, bool is_denounced)
{
	struct guard_profile *profile = profile_at(thread->profile);
	bool is_suspended, is_final, is_usual;
	struct session *session;
	u32 mismatches;

	if (unlikely(!profile)) {
		/* Before its first execve it has no program of its own. */
		if (thread->profile == GUARD_NO_PROFILE)
			lose(thread->guard_session, LOSS_UNGUARDED_CALLS);
		return false;
	}
	is_usual = guard_is_usual(thread, profile, call);
	if (likely(is_usual && !is_denounced))
		return false;
	session = session_at(thread->guard_session);
	if (!session)
		return false;
	thread->before = 0;
	if (thread->held)
		guard_hold_on(thread, call);
	mismatches = is_usual ? 0 : guard_look(thread, profile, &session->guard, call, is_denounced);
	if (is_denounced && mismatches != NOT_JUDGED) {
		if (is_usual)
			frame_push(thread, 1);
		mismatches |= GUARD_DENOUNCED;
	}
	is_suspended = suspends(&session->guard, thread, call);
	is_final = is_suspended || (session->guard.response == GUARD_DENY && is_execve(call));
	/*
	 * A call that is made again has served its hold: a fork never succeeds with a stop before it. What is unusual
	 * counts also while somebody else has let it go on.
	 */
	if ((!thread->lfc && !is_suspended) || mismatches == NOT_JUDGED || (thread->held && !mismatches && !is_final))
		return false;
	guard_respond(thread, session, call, mismatches);
	return true;
}

/* Which file this task's program is. */
static __always_inline void program_of(struct task_struct *task, u32 session, struct guard_program *program)
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

/* The current process's. */
#define SCOPE_HERE GUARD_ANY_SCOPE

/* What the session's programs are told apart by, besides their content; 0: nothing. */
static __always_inline u64 scope_of(u32 session_index)
{
	struct session *session = session_at(session_index);
	u32 kind = session ? session->guard.scope : GUARD_CONTENT;

	return kind ? guard_scope(kind) : 0;
}

/*
 * The place of the profile of a task's program, which is made if need be. A global function, which the verifier looks
 * at once and not at each of its calls; so it takes the task's address, as a number.
 */
__noinline u32 profile_of(u64 address, u32 session, u64 scope)
{
	struct task_struct *task = (void *)address;
	struct guard_program_record *record;
	struct guard_program program = {};
	u32 *known, slot;

	program_of(task, session, &program);
	if (!program.inode)
		return GUARD_NO_PROFILE;
	if (config.enabled & GUARD_SCOPED)
		program.scope = scope == SCOPE_HERE ? scope_of(session) : scope;
	known = bpf_map_lookup_elem(&programs, &program);
	if ((config.enabled & GUARD_SCOPED) && !known && program.scope) {
		scope = program.scope;
		program.scope = GUARD_ANY_SCOPE;
		known = bpf_map_lookup_elem(&programs, &program);
		program.scope = scope;
	}
	if (known)
		return *known;
	if (bpf_map_pop_elem(&ready_profiles, &slot)) {
		lose(session, LOSS_PROFILES);
		return GUARD_NO_PROFILE;
	}
	__sync_fetch_and_add(&header.ready_profiles, -1);
	if (bpf_map_update_elem(&programs, &program, &slot, BPF_NOEXIST)) {
		/* Another processor was faster, or there are too many. */
		bpf_map_push_elem(&ready_profiles, &slot, BPF_ANY);
		__sync_fetch_and_add(&header.ready_profiles, 1);
		known = bpf_map_lookup_elem(&programs, &program);
		if (!known)
			lose(session, LOSS_PROFILES);
		return known ? *known : GUARD_NO_PROFILE;
	}
	record = reserve_record(session, sizeof(*record), LOSS_GUARD_EVENTS);
	if (record) {
		record->type = RECORD_GUARD_PROGRAM;
		record->session = session;
		record->pid = visible_pid(task, 0);
		record->profile = slot;
		record->program = program;
		/* Short-lived programs are gone before anybody can look at them. */
		path_of_file(&record->path, task, BPF_CORE_READ(task, mm, exe_file));
		if (config.enabled & GUARD_SCOPED)
			bpf_probe_read_kernel(&record->scope, sizeof(record->scope), scope_name());
		bpf_ringbuf_submit(record, 0);
	}
	return slot;
}

/* A thread begins a program, or is met in one: it has made no calls yet. */
static __always_inline void guard_begin(struct thread_state *thread, u64 scope)
{
	/* Who was held at its execve has yet to be let go. */
	u8 held = thread->held;
	u32 i;

	guard_flush(thread);
	thread->window = 0;
	thread->attention = 0;
	thread->before = 0;
	thread->held = held;
	frame_wipe(thread);
	thread->lfc_most = 0;
	for (i = 0; i < GUARD_HANDLERS; i++)
		WRITE_ONCE(thread->interrupted[i], 0);
	thread->profile = profile_of(READ_ONCE(thread->task), thread->guard_session, scope);
}

/* pH: a child goes on with a copy of its parent's sequence. */
static __always_inline void guard_inherit(struct thread_state *thread, struct thread_state *parent)
{
	u32 i;

	guard_start_batch(thread);
	thread->guard_session = parent->guard_session;
	thread->window = parent->window;
	thread->profile = parent->profile;
	thread->lfc = parent->lfc;
	thread->lfc_most = parent->lfc_most;
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
 * A thread stops in a call, or a signal without a handler wakes it: the kernel, or the program, makes the same call
 * again if its result is one of these.
 */
static __always_inline void guard_interrupted(struct thread_state *thread, struct task_struct *task)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(task);
	long result = -(long)regs->ax;

	if ((long)regs->orig_ax < 0)
		return;
	if (result == ERESTARTSYS || result == ERESTARTNOINTR || result == ERESTARTNOHAND ||
	    result == ERESTART_RESTARTBLOCK || (result == EINTR && before_of(thread->call) & BEFORE_NEXT))
		thread->again = 1;
}

/* A signal arrives: whether the kernel will make the interrupted call again is arch/x86/kernel/signal.c's rule. */
static __always_inline void guard_signal(struct thread_state *thread, struct task_struct *task,
					 struct k_sigaction *action)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(task);
	bool in_call = (long)regs->orig_ax >= 0;
	long result = -(long)regs->ax;

	if ((u64)action->sa.sa_handler <= SIG_IGNORE)
		guard_interrupted(thread, task);
	else
		handler_begins(thread, in_call && (result == ERESTARTNOINTR || (result == ERESTARTSYS &&
										(action->sa.sa_flags & SA_RESTART))));
}

#endif
