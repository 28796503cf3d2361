/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Measures what in-band records cost: a call of a thread with records and of one without, in turns
 * on one processor, and the reading of a record.
 *
 *	cc -O2 -o cost cost.c $(pkg-config --cflags --libs tollgate) -lpthread
 *	tollgate run --in-band -- ./cost
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <tollgate.h>
#include <tollgate_in_band.h>

enum { ROUNDS = 201, CALLS = 20000 };

static pthread_barrier_t turn;
static double without[ROUNDS], with[ROUNDS], read_too[ROUNDS];
/* Keeps the compiler from leaving the reading out. */
static volatile uint64_t result;

static double now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

static double call_ns(void)
{
	double began = now_ns();

	for (int i = 0; i < CALLS; i++)
		syscall(SYS_getppid);
	return (now_ns() - began) / CALLS;
}

static double call_and_read_ns(const struct tollgate_records *records)
{
	double began = now_ns();
	uint64_t blocked = 0;

	for (int i = 0; i < CALLS; i++) {
		uint64_t before = tollgate_sequence(records);
		const struct tollgate_call *call;

		syscall(SYS_getppid);
		call = tollgate_latest(records, before);
		if (!call)
			exit(1);
		blocked += call->blocked_ns;
	}
	result = blocked;
	return (now_ns() - began) / CALLS;
}

static void *thread_without(void *unused)
{
	for (int i = 0; i < ROUNDS; i++) {
		pthread_barrier_wait(&turn);
		without[i] = call_ns();
		pthread_barrier_wait(&turn);
	}
	return unused;
}

static int compare(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;

	return (a > b) - (a < b);
}

/* The median of the differences, and the interval that has it with a probability of 95 %. */
static void print_difference(const char *what, const double *one, const double *other)
{
	double difference[ROUNDS];

	for (int i = 0; i < ROUNDS; i++)
		difference[i] = one[i] - other[i];
	qsort(difference, ROUNDS, sizeof(*difference), compare);
	/* The ranks of the sign test: 100.5 - 1.96 * sqrt(201) / 2 and its counterpart. */
	printf("%s: %.1f ns [%.1f, %.1f]\n", what, difference[ROUNDS / 2], difference[86],
	       difference[114]);
}

int main(void)
{
	const struct tollgate_records *records = tollgate_records();
	pthread_t other;
	cpu_set_t one;

	if (!records) {
		fprintf(stderr, "%s\n", tollgate_error());
		return 1;
	}
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	sched_setaffinity(0, sizeof(one), &one);
	pthread_barrier_init(&turn, NULL, 2);
	pthread_create(&other, NULL, thread_without, NULL);
	for (int i = 0; i < ROUNDS; i++) {
		pthread_barrier_wait(&turn);
		pthread_barrier_wait(&turn);
		/* In turns, because the later one is more often interrupted. */
		if (i % 2)
			read_too[i] = call_and_read_ns(records);
		with[i] = call_ns();
		if (i % 2 == 0)
			read_too[i] = call_and_read_ns(records);
	}
	pthread_join(other, NULL);
	print_difference("a record", with, without);
	print_difference("reading it", read_too, with);
	return 0;
}
