/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The latest system calls of a thread, with what each has cost (docs/in-band.md). The records are
 * in memory that this process maps for reading, so reading one is a few plain loads. Link with the
 * library (`pkg-config --cflags --libs tollgate`), and run the program by `tollgate run --in-band
 * -- COMMAND`, or in the scope of a `tollgate daemon --in-band`.
 *
 *	const struct tollgate_records *records = tollgate_records();
 *	uint64_t before = tollgate_sequence(records);
 *	ssize_t got = pread(fd, buffer, size, offset);
 *	const struct tollgate_call *call = tollgate_latest(records, before);
 *	if (call && call->blocked_ns > 1000000 && call->sleeps &&
 *	    tollgate_site_name(call->sleep[0].site, name, sizeof(name)) > 0)
 *		printf("blocked in %s\n", name);
 */
#ifndef TOLLGATE_IN_BAND_H
#define TOLLGATE_IN_BAND_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TOLLGATE_CALLS 16
#define TOLLGATE_SLEEPS 5
/* A number of waiting threads that is not known. */
#define TOLLGATE_UNKNOWN 0xffff

/* How many other threads with in-band records sleep in a site. */
struct tollgate_others {
	/* Threads of the same user, of all processes; and threads of other users. */
	uint16_t same_user;
	uint16_t outside;
};

/* The sleeps of a call in one site: a function of the kernel. */
struct tollgate_sleep {
	/* Nanoseconds asleep, without the waits for a processor that followed. */
	uint64_t ns;
	/* For tollgate_site_name(); 0: it is not known, or the process has too many. */
	uint32_t site;
	uint32_t count;
	/* When the first of these sleeps began, and when the last one ended. */
	struct tollgate_others at_entry;
	struct tollgate_others at_exit;
};

/* A call that has ended. Times are nanoseconds. */
struct tollgate_call {
	/* An error is negative. */
	int64_t result;
	/* By CLOCK_MONOTONIC. */
	uint64_t ended_ns;
	uint64_t wall_ns;
	/* Asleep, and ready to run but not on a processor. The rest was on a processor. */
	uint64_t blocked_ns;
	uint64_t waiting_ns;
	/* Page faults without and with input. */
	uint32_t minor_faults;
	uint32_t major_faults;
	/* In its ABI (0: x86-64, 1: i386, 2: x32); 575 stands for all numbers from 575 on. */
	uint16_t number;
	uint8_t abi;
	/* 1: seccomp or a tracer rejected it. `wall_ns` is 0 unless it waited for that. */
	uint8_t is_rejected;
	/* The number of entries in `sleep`. Further ones have what an earlier call has left. */
	uint32_t sleeps;
	/* Sleeps in further sites. */
	uint64_t other_sleeps_ns;
	uint64_t unused;
	struct tollgate_sleep sleep[TOLLGATE_SLEEPS];
};

/* The records of a thread. Only Tollgate writes them. */
struct tollgate_records {
	uint64_t sequence;
	/* The number of calls that have ended without a record. */
	uint64_t losses;
	uint64_t unused[62];
	struct tollgate_call calls[TOLLGATE_CALLS];
};

/*
 * Returns the records of the calling thread, or NULL if it has none; tollgate_error() returns the
 * reason. The thread's first call requests them from Tollgate, which takes some hundred
 * microseconds, and some ten milliseconds if many processes request their first ones at the same
 * time. A later call makes system calls to see whether they still advance, and requests
 * them anew if not: from a daemon that was restarted, for example.
 * After a fork, the child has to call this itself: what it has inherited is empty. The child of a
 * vfork must not call it. The records stay readable until the process ends or executes another
 * program, but do not advance any more once the thread or Tollgate has ended. When a thread has
 * ended, another one of the process may get its records.
 */
const struct tollgate_records *tollgate_records(void);

/*
 * Writes the NUL-terminated name of the kernel function in which a call has slept to `name`, which
 * has room for `size` bytes. Returns the length of the name without the NUL, or a negative errno.
 * It sends a request to Tollgate, which takes some hundred microseconds, and the first one some ten
 * milliseconds. The number of a site has the same meaning in all threads of the process, as long as
 * it executes the program.
 */
int tollgate_site_name(uint32_t site, char *name, size_t size);

/*
 * As tollgate_site_name(), but the file and line of the kernel's source, such as "fs/pipe.c:325".
 * Returns -ENODATA if they are not known, because the kernel's debug information is not installed,
 * for example. The first call for a site may take some seconds.
 */
int tollgate_site_source(uint32_t site, char *source, size_t size);

/* The number of calls that were recorded. */
static inline uint64_t tollgate_sequence(const struct tollgate_records *records)
{
	return __atomic_load_n(&records->sequence, __ATOMIC_ACQUIRE);
}

/*
 * Returns the latest call of the calling thread, if it was recorded after the sequence number
 * `before`. Returns NULL if it was not: Tollgate does not record this thread any more, or could not
 * record the call (`losses`). The record is valid until the thread has made 15 further calls. Copy
 * it before you use tollgate_site_name() and tollgate_site_source(), which each make about ten
 * calls.
 */
static inline const struct tollgate_call *tollgate_latest(const struct tollgate_records *records,
							  uint64_t before)
{
	uint64_t sequence = tollgate_sequence(records);

	return sequence > before ? &records->calls[(sequence - 1) % TOLLGATE_CALLS] : NULL;
}

/*
 * Copies the record with this number, of any thread. Returns 1, or 0 if it does not exist any more,
 * or not yet.
 */
static inline int tollgate_copy(const struct tollgate_records *records, uint64_t number,
				struct tollgate_call *copy)
{
	*copy = records->calls[(number - 1) % TOLLGATE_CALLS];
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	/* The oldest record may be being overwritten. A number from the future wraps around. */
	return number && tollgate_sequence(records) - number < TOLLGATE_CALLS - 1;
}

/*
 * Returns for how many nanoseconds the calls after the sequence number `before` were blocked, as
 * far as their records still exist. A call that a signal handler interrupts has a record for each
 * part, and the handler's own calls have theirs; so tollgate_latest() may be that of one of these.
 */
static inline uint64_t tollgate_blocked_since(const struct tollgate_records *records,
					      uint64_t before)
{
	uint64_t sequence = tollgate_sequence(records), blocked_ns = 0;

	for (; before < sequence; before++) {
		struct tollgate_call call;

		if (tollgate_copy(records, before + 1, &call))
			blocked_ns += call.blocked_ns;
		else if (sequence > TOLLGATE_CALLS && before < sequence - TOLLGATE_CALLS)
			before = sequence - TOLLGATE_CALLS;
	}
	return blocked_ns;
}

#ifdef __cplusplus
}
#endif

#endif
