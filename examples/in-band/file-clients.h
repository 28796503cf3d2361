/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * For file-server.c: the files, and a process that requests them by many connections. It makes the
 * cold files cold again, compares each byte of the responses, and measures.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum {
	HOT = 16, COLD = 16, FILES = HOT + COLD, HOT_SIZE = 16 << 10, COLD_SIZE = 256 << 10,
	/* One request in this many is for a cold file. */
	COLD_EVERY = 20,
	/* Of a phase: each cold file twice. */
	MIN_REQUESTS = 2 * COLD * COLD_EVERY,
	CONNECTIONS = 32, MAX_PHASES = 100, MAX_TIMES = 1 << 20,
};

#define HEAD "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
/* How long open() waits with -l. */
#define LEASE_SECONDS 1e-3

static char folder[256];

struct file {
	char path[sizeof(folder) + 16], *name;
	int size;
	/* The server's: the phase in which it blocked last, and the requests handed over. */
	int blocked_in, handed;
	/* The clients': what the response should be, and when open() began to wait for a lease. */
	char response[COLD_SIZE + sizeof(HEAD) + 8];
	int fd, response_size;
	double awaited_since;
};

struct client {
	int fd, got;
	struct file *file;
	double began;
};

/* Of a phase: requests per second, and times of hot requests. */
enum figure { PER_S, P50_MS, P99_MS, FIGURES };

/* The server reads what the clients write. Phases begin with 1. */
static struct shared {
	volatile int phase;
	long responses;
	double figures[MAX_PHASES + 1][FIGURES];
} *shared;

static struct file files[FILES];
static int uses_leases;

static void require(int is_done, const char *what)
{
	if (is_done)
		return;
	perror(what);
	exit(1);
}

/* In the order naive, acting, acting, naive, so that a drift of the machine falls on both. */
static int is_acting(int phase)
{
	return phase / 2 % 2;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void make_files(void)
{
	for (int i = 0; i < FILES; i++) {
		struct file *file = &files[i];
		int head, fd;

		file->name = file->path + sprintf(file->path, "%s/", folder);
		sprintf(file->name, i < HOT ? "hot-%d" : "cold-%d", i);
		file->size = i < HOT ? HOT_SIZE : COLD_SIZE;
		head = sprintf(file->response, HEAD, file->size);
		file->response_size = head + file->size;
		for (int at = head; at < file->response_size; at++)
			file->response[at] = random();
		fd = open(file->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		require(write(fd, file->response + head, file->size) == file->size, file->path);
		require(!fsync(fd), file->path);
		close(fd);
	}
}

static void remove_files(void)
{
	for (int i = 0; i < FILES; i++)
		unlink(files[i].path);
	rmdir(folder);
}

static void make_cold(const struct file *file)
{
	if (!uses_leases)
		require(!posix_fadvise(file->fd, 0, 0, POSIX_FADV_DONTNEED), file->path);
	else
		/* EAGAIN: the server has it open. */
		require(!fcntl(file->fd, F_SETLEASE, F_WRLCK) || errno == EAGAIN, "a lease");
}

static void release_leases(void)
{
	for (struct file *file = files + HOT; file < files + FILES; file++) {
		/* An open() for reading demands that it becomes a read lease. */
		if (fcntl(file->fd, F_GETLEASE) != F_RDLCK)
			continue;
		if (!file->awaited_since)
			file->awaited_since = now();
		if (now() - file->awaited_since < LEASE_SECONDS)
			continue;
		fcntl(file->fd, F_SETLEASE, F_UNLCK);
		file->awaited_since = 0;
	}
}

static void request(struct client *client, int number)
{
	int is_cold = number % COLD_EVERY == 0, size;
	char text[64];

	client->file = files + (is_cold ? HOT + number / COLD_EVERY % COLD : number % HOT);
	client->got = 0;
	if (is_cold)
		make_cold(client->file);
	size = sprintf(text, "GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n", client->file->name);
	client->began = now();
	require(send(client->fd, text, size, MSG_NOSIGNAL) == size, "a request");
}

/* Returns whether the response is complete. */
static int receive(struct client *client)
{
	static char part[sizeof(client->file->response)];
	const struct file *file = client->file;
	int got = recv(client->fd, part, sizeof(part), 0);

	require(got > 0, "a response");
	if (got > file->response_size - client->got ||
	    memcmp(part, file->response + client->got, got)) {
		fprintf(stderr, "a wrong response: %s\n", file->name);
		exit(1);
	}
	client->got += got;
	return client->got == file->response_size;
}

static int compare(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;

	return (a > b) - (a < b);
}

static void measure(int epoll, struct client *clients, double seconds, double *figures)
{
	static double hot_ms[MAX_TIMES];
	struct epoll_event events[CONNECTIONS];
	int requests = 0, responses = 0, hot = 0;
	double began = now();

	while (requests < CONNECTIONS)
		request(&clients[requests], requests), requests++;
	while (responses < requests) {
		int count = epoll_wait(epoll, events, CONNECTIONS, uses_leases ? 1 : -1);

		for (int i = 0; i < count; i++) {
			struct client *client = events[i].data.ptr;

			if (!receive(client))
				continue;
			responses++;
			if (client->file < files + HOT && hot < MAX_TIMES)
				hot_ms[hot++] = (now() - client->began) * 1e3;
			if (now() - began < seconds || requests < MIN_REQUESTS)
				request(client, requests++);
		}
		if (uses_leases)
			release_leases();
	}
	shared->responses += responses;
	figures[PER_S] = responses / (now() - began);
	qsort(hot_ms, hot, sizeof(*hot_ms), compare);
	figures[P50_MS] = hot_ms[hot / 2];
	figures[P99_MS] = hot_ms[hot * 99 / 100];
}

static void run_clients(const struct sockaddr_in *server, double seconds, int phases)
{
	static struct client clients[CONNECTIONS];
	int epoll = epoll_create1(0);

	/* Announces that an open() waits for a lease. */
	signal(SIGIO, SIG_IGN);
	for (int i = HOT; i < FILES; i++)
		files[i].fd = open(files[i].path, O_RDONLY);
	for (struct client *client = clients; client < clients + CONNECTIONS; client++) {
		struct epoll_event event = { .events = EPOLLIN, .data.ptr = client };

		client->fd = socket(AF_INET, SOCK_STREAM, 0);
		require(!connect(client->fd, (void *)server, sizeof(*server)), "connect");
		epoll_ctl(epoll, EPOLL_CTL_ADD, client->fd, &event);
	}
	printf("phase   requests/s  hot: p50 ms  p99 ms\n");
	for (int phase = 1; phase <= phases; phase++) {
		double *figures = shared->figures[phase];

		shared->phase = phase;
		measure(epoll, clients, seconds, figures);
		printf("%-7s %10.0f %12.3f %7.3f\n", is_acting(phase) ? "acting" : "naive",
		       figures[PER_S], figures[P50_MS], figures[P99_MS]);
		fflush(stdout);
	}
}

/* The median of the pairs of phases, the smallest and the largest one. */
static void print_ratio(const char *what, enum figure figure, int pairs)
{
	double ratios[MAX_PHASES / 2];

	for (int i = 0; i < pairs; i++) {
		int acting = 2 * i + 1 + is_acting(2 * i + 2), naive = 4 * i + 3 - acting;

		ratios[i] = shared->figures[acting][figure] / shared->figures[naive][figure];
	}
	qsort(ratios, pairs, sizeof(*ratios), compare);
	printf("acting / naive, %s: %.3f [%.3f, %.3f]\n", what, ratios[pairs / 2], ratios[0],
	       ratios[pairs - 1]);
}
