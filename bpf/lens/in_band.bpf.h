/* SPDX-License-Identifier: GPL-2.0 */
/*
 * In-band records: each call of a thread in the memory of its process (wire/in_band.h). A record is
 * complete before the thread's sequence number counts it, so that a reader needs no lock: the
 * kernel writes in the order of the program on x86 (Intel SDM, volume 3, 9.2.2).
 */
#ifndef TOLLGATE_LENS_IN_BAND_BPF_H
#define TOLLGATE_LENS_IN_BAND_BPF_H

#include "lens/sites.bpf.h"
#include "lens/state.bpf.h"
#include "wire/in_band.h"

_Static_assert(sizeof(struct in_band_thread) == IN_BAND_PAGE, "a thread's entry is not a page");

/* The memory of a process, which user space makes: see guard/profiles.bpf.h, struct profile_map. */
struct in_band_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, IN_BAND_ENTRIES);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(key_size, sizeof(u32));
	__uint(value_size, IN_BAND_PAGE);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, IN_BAND_PROCESSES);
	__type(key, u32);
	__array(values, struct in_band_map);
} in_band_memory SEC(".maps");

ARRAY_MAP(in_band_waits, THREADS, struct in_band_wait, BPF_F_MMAPABLE);
ARRAY_MAP(in_band_counters, 1, struct in_band_counters, BPF_F_MMAPABLE);
HASH_MAP(in_band_counter_of, IN_BAND_COUNTERS, struct in_band_counter_key, u32);

struct in_band_owner in_band_owners[IN_BAND_PROCESSES] SEC(".bss.in_band");
/*
 * How many programs the process of each thread has executed (v6.18 fs/exec.c, begin_new_exec; a
 * child goes on from its parent's number). So user space sees whether a process still executes the
 * program that has requested records.
 */
u64 in_band_images[THREADS] SEC(".bss.images");
HASH_MAP(in_band_sites, IN_BAND_PROCESSES *IN_BAND_SITES, struct in_band_site_key, u32);

/* Whether the thread has in-band records. */
static __always_inline bool in_band_is_on(struct thread_state *thread)
{
	return (config.enabled & LENS_IN_BAND) && unlikely(thread->lens.in_band_process);
}

/* The program that the thread executes, as user space can compare it. */
static __always_inline void in_band_note_image(struct thread_state *thread,
					       struct task_struct *task)
{
	if (config.enabled & LENS_IN_BAND)
		in_band_images[thread->slot & (THREADS - 1)] = task->self_exec_id;
}

/*
 * The thread has no entry any more, nor a token (crates/kernel/src/lens/in_band.rs). User space
 * compares and exchanges both fields. So the entry is cleared first: from then on, it finds another
 * value than it expects.
 */
static __always_inline void in_band_forget(struct thread_state *thread)
{
	WRITE_ONCE(thread->lens.in_band_entry, 0);
	barrier();
	WRITE_ONCE(thread->lens.in_band_process, 0);
}

static __always_inline struct in_band_thread *in_band_of(struct thread_state *thread)
{
	u32 process = thread->lens.in_band_process, entry = thread->lens.in_band_entry;
	void *memory = bpf_map_lookup_elem(&in_band_memory, &process);

	return memory ? bpf_map_lookup_elem(memory, &entry) : NULL;
}

/* The record that is not counted yet. */
static __always_inline struct in_band_call *in_band_next(struct in_band_thread *records)
{
	return &records->calls[records->sequence & (IN_BAND_CALLS - 1)];
}

/* How long the thread waited for a processor after its latest sleep is known now. */
static __always_inline void in_band_settle(struct in_band_call *call, struct lens_cold *cold,
					   u64 waited)
{
	u64 latest = cold->in_band_latest, *ns = &call->other_sleeps_ns;

	cold->in_band_latest = 0;
	if (!latest)
		return;
	latest -= 1;
	/* The compiler may know the bound; the verifier must see the check. */
	barrier_var(latest);
	if (latest < IN_BAND_SLEEPS)
		ns = &call->sleep[latest].ns;
	*ns -= waited < *ns ? waited : *ns;
}

/* Records a call that ends at `at->now`, with its time off the processor in `lens.off_ns`. */
static __always_inline void in_band_record(struct crossing *at, u64 wall_ns, u64 waiting_ns,
					   bool is_rejected)
{
	struct thread_state *thread = at->thread;
	struct task_struct *task = running_task(thread->task);
	struct in_band_thread *records = in_band_of(thread);
	struct lens_cold *cold;
	struct in_band_call *call;
	u64 off_ns = thread->lens.off_ns;
	u32 index = thread->call, abi = 0;

	if (!records)
		return;
	call = in_band_next(records);
	if (unlikely(index >= CALLS_PER_ABI)) {
		abi = index / CALLS_PER_ABI;
		index -= abi * CALLS_PER_ABI;
	}
	call->result = at->result;
	call->ended_ns = at->now;
	call->wall_ns = wall_ns;
	call->blocked_ns = off_ns - waiting_ns;
	call->waiting_ns = waiting_ns;
	/* The beginning of a rejected call was not seen, and it has done nothing. */
	call->minor_faults = is_rejected ? 0 : task->min_flt - thread->lens.minor_faults;
	call->major_faults = is_rejected ? 0 : task->maj_flt - thread->lens.major_faults;
	call->number = index;
	call->abi = abi;
	call->is_rejected = is_rejected;
	call->sleeps = 0;
	if (unlikely(off_ns)) {
		cold = lens_cold_of(thread);
		in_band_settle(call, cold,
			       task->sched_info.run_delay - thread->lens_switch.run_delay_last);
		call->sleeps = cold->in_band_sleeps;
		cold->in_band_sleeps = 0;
	}
	barrier();
	WRITE_ONCE(records->sequence, records->sequence + 1);
}

/* The number of a site in a process; 0: it is not known, or the process has too many. */
static __always_inline u32 in_band_number(struct thread_state *thread, u64 address)
{
	struct in_band_site_key key = {
		.address = address,
		.process = thread->lens.in_band_process,
	};
	struct in_band_owner *owner = &in_band_owners[key.process & (IN_BAND_PROCESSES - 1)];
	u32 *known = bpf_map_lookup_elem(&in_band_sites, &key), site;

	if (known)
		return *known;
	if (address == SITE_UNKNOWN || READ_ONCE(owner->sites) >= IN_BAND_SITES)
		return 0;
	site = __sync_fetch_and_add(&owner->sites, 1) + 1;
	if (site > IN_BAND_SITES)
		return 0;
	/* If another thread of the process was faster, its number is found from now on. */
	bpf_map_update_elem(&in_band_sites, &key, &site, BPF_NOEXIST);
	known = bpf_map_lookup_elem(&in_band_sites, &key);
	return known ? *known : 0;
}

/* The counter of a user's threads in a site; 0: there are too many. */
static __noinline u32 in_band_counter(struct in_band_counters *counters, u64 address, u32 user)
{
	struct in_band_counter_key key = { .address = address, .user = user };
	u32 *known = bpf_map_lookup_elem(&in_band_counter_of, &key), counter;

	if (known)
		return *known;
	if (!counters || READ_ONCE(counters->used) >= IN_BAND_COUNTERS - 1)
		return 0;
	counter = __sync_fetch_and_add(&counters->used, 1) + 1;
	if (counter >= IN_BAND_COUNTERS)
		return 0;
	/* If another thread was faster, its counter is found from now on. */
	bpf_map_update_elem(&in_band_counter_of, &key, &counter, BPF_NOEXIST);
	known = bpf_map_lookup_elem(&in_band_counter_of, &key);
	return known ? *known : 0;
}

static __always_inline struct in_band_counters *in_band_all_counters(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&in_band_counters, &zero);
}

static __always_inline struct in_band_others in_band_others(u32 same_user, u32 all)
{
	/* A thread that has not been counted in both yet. */
	u32 outside = all > same_user ? all - same_user : 0;

	return (struct in_band_others){
		.same_user = same_user < IN_BAND_UNKNOWN ? same_user : IN_BAND_UNKNOWN - 1,
		.outside = outside < IN_BAND_UNKNOWN ? outside : IN_BAND_UNKNOWN - 1,
	};
}

/* The thread does not sleep in its site any more. Returns who else does. */
static __always_inline struct in_band_others in_band_leave(struct in_band_wait *wait)
{
	struct in_band_counters *counters = in_band_all_counters();
	u32 both = __atomic_exchange_n(&wait->counters, 0, __ATOMIC_RELAXED), same_user, all;

	if (!both || !counters)
		return (struct in_band_others){ IN_BAND_UNKNOWN, IN_BAND_UNKNOWN };
	all = __sync_fetch_and_add(&counters->waiting[(both >> 16) & (IN_BAND_COUNTERS - 1)], -1);
	same_user = __sync_fetch_and_add(&counters->waiting[both & (IN_BAND_COUNTERS - 1)], -1);
	return in_band_others(same_user - 1, all - 1);
}

/* A thread, whose stack has just been taken, begins to sleep in a call. */
__noinline int in_band_begin_sleep(u32 slot)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct in_band_wait *wait = bpf_map_lookup_elem(&in_band_waits, &slot);
	struct in_band_counters *counters = in_band_all_counters();
	struct in_band_others others = { IN_BAND_UNKNOWN, IN_BAND_UNKNOWN };
	u32 same_user = 0, all = 0, both;

	if (!(config.enabled & LENS_IN_BAND) || !wait || !counters)
		return 0;
	/* The end of its latest sleep may not have been reported. */
	in_band_leave(wait);
	wait->site = lens_site_of_own_stack(task);
	if (wait->site != SITE_UNKNOWN) {
		same_user = in_band_counter(counters, wait->site,
					    BPF_CORE_READ(task, cred, euid.val));
		all = in_band_counter(counters, wait->site, IN_BAND_ALL_USERS);
	}
	if (same_user && all) {
		both = same_user | all << 16;
		same_user = __sync_fetch_and_add(
			&counters->waiting[same_user & (IN_BAND_COUNTERS - 1)], 1);
		all = __sync_fetch_and_add(&counters->waiting[all & (IN_BAND_COUNTERS - 1)], 1);
		others = in_band_others(same_user, all);
		__atomic_exchange_n(&wait->counters, both, __ATOMIC_RELAXED);
	}
	wait->same_user = others.same_user;
	wait->outside = others.outside;
	return 0;
}

/*
 * The thread has slept in a call for this long. Its wait for a processor is not known yet. This is
 * a global function, so that the verifier checks it once.
 */
__noinline int in_band_add_sleep(u32 slot, u64 ns)
{
	struct thread_state *thread = thread_at(slot);
	struct lens_cold *cold = lens_cold_of(thread);
	struct in_band_wait *wait = bpf_map_lookup_elem(&in_band_waits, &slot);
	struct in_band_others others;
	struct in_band_thread *records;
	struct in_band_sleep *sleep;
	struct in_band_call *call;
	u32 site, i;

	if (!(config.enabled & LENS_IN_BAND) || !wait)
		return 0;
	others = in_band_leave(wait);
	records = in_band_of(thread);
	if (!records)
		return 0;
	call = in_band_next(records);
	if (!cold->in_band_sleeps)
		call->other_sleeps_ns = 0;
	site = in_band_number(thread, wait->site);
	for (i = 0; i < IN_BAND_SLEEPS; i++) {
		sleep = &call->sleep[i];
		if (i >= cold->in_band_sleeps) {
			sleep->site = site;
			sleep->ns = 0;
			sleep->count = 0;
			sleep->at_entry.same_user = wait->same_user;
			sleep->at_entry.outside = wait->outside;
			cold->in_band_sleeps = i + 1;
		}
		if (sleep->site != site)
			continue;
		sleep->ns += ns;
		sleep->count++;
		sleep->at_exit = others;
		cold->in_band_latest = i + 1;
		return 0;
	}
	call->other_sleeps_ns += ns;
	cold->in_band_latest = IN_BAND_SLEEPS + 1;
	return 0;
}

/* The thread is switched out again. */
__noinline int in_band_end_sleep(u32 slot, u64 run_delay)
{
	struct thread_state *thread = thread_at(slot);
	struct lens_cold *cold = lens_cold_of(thread);
	struct in_band_thread *records;

	if (!(config.enabled & LENS_IN_BAND) || !cold->in_band_latest)
		return 0;
	records = in_band_of(thread);
	if (records)
		in_band_settle(in_band_next(records), cold,
			       run_delay - thread->lens_switch.run_delay_last);
	return 0;
}

/* The thread's call gets no record, or the thread ends or executes another program. */
__noinline int in_band_drop(u32 slot, u32 is_loss)
{
	struct thread_state *thread = thread_at(slot);
	struct lens_cold *cold = lens_cold_of(thread);
	struct in_band_wait *wait = bpf_map_lookup_elem(&in_band_waits, &slot);
	struct in_band_thread *records;

	if (!(config.enabled & LENS_IN_BAND) || !wait)
		return 0;
	in_band_leave(wait);
	cold->in_band_sleeps = 0;
	cold->in_band_latest = 0;
	records = is_loss ? in_band_of(thread) : NULL;
	if (records)
		records->losses++;
	return 0;
}

#endif
