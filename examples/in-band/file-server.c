/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A file server with one thread and an event loop: a read from the disk stops everything. By its
 * own records, it finds the files that block it, and hands just these to helpers. Its clients
 * (file-clients.h) measure it in turns naive and acting on its records (docs/in-band.md).
 *
 *	cc -O2 -o file-server file-server.c -I../../crates/libtollgate/include libtollgate.a \
 *		-lpthread
 *	tollgate run --in-band -- ./file-server [-l] FOLDER [SECONDS [PAIRS]]
 *
 * A phase takes SECONDS. In a folder in memory, no file is ever cold: with -l, open() of a cold
 * file waits for a lease instead.
 */
#define _GNU_SOURCE
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <tollgate.h>
#include <tollgate_in_band.h>

#include "file-clients.h"

enum {
	HELPERS = 4, MAX_SITES = 32,
	/*
	 * Shorter sleeps are not worth a helper: the way to it and back takes 3 us on one
	 * processor, and 45 us to another one that has to wake up first (measured).
	 */
	HANDING_NS = 20000,
};

#define NOT_FOUND "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"

struct connection {
	int fd, is_with_helper;
	struct file *file;
	int asked, size, sent;
	uint32_t events;
	char request[512], response[COLD_SIZE + 128];
};

/* Calls that have blocked, by number and blocking site. */
struct blocked {
	uint32_t number, site, count;
	double ms;
};

static int epoll, jobs[2], done[2];
static pid_t server, clients;
static volatile sig_atomic_t ending_signal;
static struct connection connections[CONNECTIONS];
/* Naive, and acting. */
static struct blocked blocked[2][MAX_SITES + 1];
/* These never advance. Helpers have them, and a program without Tollgate. */
static const struct tollgate_records none;
static __thread const struct tollgate_records *records = &none;

static void note(const struct tollgate_call *call)
{
	struct blocked *it = blocked[is_acting(shared->phase)], *last = it + MAX_SITES - 1;
	uint32_t site = call->sleep[0].site;

	while (it < last && it->count && (it->number != call->number || it->site != site))
		it++;
	it->number = call->number;
	it->site = site;
	it->count++;
	it->ms += call->blocked_ns / 1e6;
}

static void read_file(struct connection *c)
{
	int head = sprintf(c->response, HEAD, c->file->size), got = 0, part;
	/* The time of access would be written now and then, which blocks. */
	int fd = open(c->file->path, O_RDONLY | O_CLOEXEC | O_NOATIME);

	while ((part = pread(fd, c->response + head + got, c->file->size - got, got)) > 0)
		got += part;
	close(fd);
	c->size = got == c->file->size ? head + got : sprintf(c->response, NOT_FOUND);
}

static void *help(void *unused)
{
	struct connection *c;

	while (read(jobs[0], &c, sizeof(c)) == sizeof(c)) {
		read_file(c);
		require(write(done[1], &c, sizeof(c)) == sizeof(c), "hand back");
	}
	return unused;
}

static void hand_over(struct connection *c)
{
	c->is_with_helper = 1;
	c->file->handed++;
	require(write(jobs[1], &c, sizeof(c)) == sizeof(c), "hand over");
}

/* ---- Acting on records, in ten lines. Has a call for this file blocked? ---- */
static void look_back(struct file *file, uint64_t before)
{
	struct tollgate_call call;

	for (uint64_t number = before + 1; number <= tollgate_sequence(records); number++)
		if (tollgate_copy(records, number, &call) && call.blocked_ns > HANDING_NS) {
			file->blocked_in = shared->phase;
			note(&call);
		}
}

static void respond(struct connection *c)
{
	uint64_t before = tollgate_sequence(records);

	if (is_acting(shared->phase) && c->file->blocked_in == shared->phase) {
		hand_over(c);
	} else {
		read_file(c);
		look_back(c->file, before);
	}
}
/* ---- The end of the ten lines ---- */

static struct file *requested(const char *request)
{
	char name[16] = "";

	sscanf(request, "GET /%15s HTTP/1.1\r\n", name);
	for (struct file *file = files; file < files + FILES; file++)
		if (!strcmp(file->name, name))
			return file;
	return NULL;
}

static void await(int operation, int fd, uint32_t events, void *of)
{
	struct epoll_event event = { .events = events, .data.ptr = of };

	require(!epoll_ctl(epoll, operation, fd, &event), "epoll_ctl");
}

/* Receives a part of a request, or sends a part of the response. */
static void advance(struct connection *c)
{
	uint32_t events;
	int part;

	if (!c->size) {
		part = recv(c->fd, c->request + c->asked, sizeof(c->request) - 1 - c->asked, 0);
		if (part <= 0) {
			close(c->fd);
			return;
		}
		c->asked += part;
		c->request[c->asked] = 0;
		if (!strstr(c->request, "\r\n\r\n"))
			return;
		c->asked = 0;
		c->file = requested(c->request);
		if (c->file)
			respond(c);
		else
			c->size = sprintf(c->response, NOT_FOUND);
	}
	if (!c->is_with_helper && c->size) {
		part = send(c->fd, c->response + c->sent, c->size - c->sent, MSG_NOSIGNAL);
		c->sent += part > 0 ? part : 0;
		if (c->sent == c->size)
			c->size = c->sent = 0;
	}
	events = c->is_with_helper ? 0 : c->size ? EPOLLOUT : EPOLLIN;
	if (events != c->events)
		await(EPOLL_CTL_MOD, c->fd, c->events = events, c);
}

/* Serves until the clients have ended, or a signal ends it. */
static void serve(void)
{
	struct epoll_event events[CONNECTIONS];
	sigset_t no_signals;

	sigemptyset(&no_signals);
	while (!ending_signal) {
		int count = epoll_pwait(epoll, events, CONNECTIONS, -1, &no_signals);

		for (int i = 0; i < count; i++) {
			struct connection *c = events[i].data.ptr;

			if (!c) {
				require(read(done[0], &c, sizeof(c)) == sizeof(c), "take back");
				c->is_with_helper = 0;
			}
			advance(c);
		}
	}
}

static void start_server(int listener)
{
	/* The clients may have failed. */
	struct timeval timeout = { .tv_sec = 30 };
	pthread_t helper;
	int one = 1;

	epoll = epoll_create1(EPOLL_CLOEXEC);
	require(!pipe2(jobs, O_CLOEXEC) && !pipe2(done, O_CLOEXEC), "pipe");
	await(EPOLL_CTL_ADD, done[0], EPOLLIN, NULL);
	setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
	for (struct connection *c = connections; c < connections + CONNECTIONS; c++) {
		/* Its memory is there before it is needed. */
		memset(c->response, 1, sizeof(c->response));
		c->fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		require(c->fd >= 0, "accept");
		setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		await(EPOLL_CTL_ADD, c->fd, c->events = EPOLLIN, c);
	}
	for (int i = 0; i < HELPERS; i++)
		require(!pthread_create(&helper, NULL, help, NULL), "a helper");
	if (tollgate_records())
		records = tollgate_records();
	else
		fprintf(stderr, "no records, so all phases are alike: %s\n", tollgate_error());
}

static void print_blocked(const char *phases, const struct blocked *it)
{
	printf("blocked while %s:%s\n", phases, it->count ? "" : " no call");
	for (; it->count; it++) {
		char site[64] = "an unknown site";

		tollgate_site_name(it->site, site, sizeof(site));
		printf("  %s in %s: %u times, %.1f ms\n", it->number == SYS_openat ? "open" :
		       it->number == SYS_pread64 ? "pread" : "close", site, it->count, it->ms);
	}
}

static void print_report(int pairs)
{
	int handed_files[2] = { 0 }, handed = 0;

	for (int i = 0; i < FILES; i++) {
		handed_files[i < HOT] += files[i].handed > 0;
		handed += files[i].handed;
	}
	print_blocked("naive", blocked[0]);
	print_blocked("acting", blocked[1]);
	printf("handed to helpers: %d of %d cold files, %d of %d hot files, %d of %ld requests\n",
	       handed_files[0], COLD, handed_files[1], HOT, handed, shared->responses);
	print_ratio("requests/s", PER_S, pairs);
	print_ratio("p50", P50_MS, pairs);
	print_ratio("p99", P99_MS, pairs);
}

static void end(int signal)
{
	ending_signal = signal;
}

/* Leaves no file and no process behind, wherever the server ends. */
static void clean_up(void)
{
	if (getpid() != server)
		return;
	if (clients > 0) {
		kill(clients, SIGKILL);
		waitpid(clients, NULL, 0);
	}
	remove_files();
}

int main(int count, char **words)
{
	struct sockaddr_in at = { AF_INET, 0, { htonl(INADDR_LOOPBACK) }, { 0 } };
	socklen_t at_size = sizeof(at);
	const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGCHLD };
	int pairs, status = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	sigset_t awaited;
	double seconds;

	if (count > 1 && !strcmp(words[1], "-l")) {
		uses_leases = 1;
		words++;
		count--;
	}
	seconds = count > 2 ? atof(words[2]) : 1;
	pairs = count > 3 ? atoi(words[3]) : 5;
	if (count < 2 || count > 4 || !(seconds > 0 && seconds < 60) || pairs < 1 ||
	    pairs > MAX_PHASES / 2) {
		fprintf(stderr, "usage: file-server [-l] FOLDER [SECONDS [PAIRS]]\n");
		return 2;
	}
	snprintf(folder, sizeof(folder), "%s/file-server-XXXXXX", words[1]);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	require(shared != MAP_FAILED, "mmap");
	require(!bind(listener, (void *)&at, at_size) && !listen(listener, CONNECTIONS), "listen");
	getsockname(listener, (void *)&at, &at_size);
	/* They come in epoll_pwait() only. */
	sigemptyset(&awaited);
	for (int i = 0; i < 4; i++) {
		sigaddset(&awaited, signals[i]);
		signal(signals[i], end);
	}
	sigprocmask(SIG_BLOCK, &awaited, NULL);
	require(mkdtemp(folder) != NULL, words[1]);
	server = getpid();
	atexit(clean_up);
	make_files();
	clients = fork();
	require(clients >= 0, "fork");
	if (!clients) {
		run_clients(&at, seconds, 2 * pairs);
		return 0;
	}
	start_server(listener);
	serve();
	if (ending_signal == SIGCHLD) {
		waitpid(clients, &status, 0);
		clients = 0;
		if (status == 0)
			print_report(pairs);
		return status != 0;
	}
	clean_up();
	signal(ending_signal, SIG_DFL);
	raise(ending_signal);
	sigprocmask(SIG_UNBLOCK, &awaited, NULL);
	return 1;
}
