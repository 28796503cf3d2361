// A small server with a classic vulnerability, for the attacks: it trusts the length that a client
// gives for a note.
//
//   server PORT FOLDER
//
// Requests are lines: GET NAME, PUT NAME LENGTH and the bytes, NOTE LENGTH and the bytes. There are
// a parent and two workers; the parent replaces a worker that ends. SIGHUP reads FOLDER/greeting
// again, SIGUSR1 opens FOLDER/log again, SIGTERM ends the server.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKERS = 2, LINE = 256, NOTE = 512, PIECE = 4096 };

static volatile sig_atomic_t reload, reopen, ending;
static char greeting[LINE];
static int log_file = -1;
static pid_t workers[WORKERS];

static void on_signal(int signal)
{
	if (signal == SIGHUP)
		reload = 1;
	else if (signal == SIGUSR1)
		reopen = 1;
	else
		ending = 1;
}

static void obey_signals(void)
{
	if (reload) {
		reload = 0;
		int file = open("greeting", O_RDONLY);
		ssize_t length = read(file, greeting, sizeof greeting - 1);
		greeting[length > 0 ? length : 0] = 0;
		close(file);
	}
	if (reopen) {
		reopen = 0;
		close(log_file);
		log_file = open("log", O_WRONLY | O_CREAT | O_APPEND, 0644);
	}
}

// Bytes from the client that no function has read yet.
static struct {
	char bytes[PIECE];
	size_t at, end;
} inbox;

// Receives more bytes if the inbox is empty; returns whether it has any.
static int fill_inbox(int client)
{
	while (inbox.at == inbox.end) {
		ssize_t got = read(client, inbox.bytes, sizeof inbox.bytes);
		if (got == 0 || (got < 0 && errno != EINTR))
			return 0;
		obey_signals();
		inbox.at = 0;
		inbox.end = got > 0 ? got : 0;
	}
	return 1;
}

// Returns whether all bytes came.
static int receive(int client, char *to, size_t length)
{
	while (length > 0) {
		if (!fill_inbox(client))
			return 0;
		size_t some = inbox.end - inbox.at;
		some = some < length ? some : length;
		memcpy(to, inbox.bytes + inbox.at, some);
		inbox.at += some;
		to += some;
		length -= some;
	}
	return 1;
}

static void answer(int client, const char *text)
{
	if (write(client, text, strlen(text)) < 0)
		ending = ending;
}

static void get(int client, const char *name)
{
	char piece[PIECE];
	struct stat about;
	int file = open(name, O_RDONLY);
	if (file < 0) {
		answer(client, "404 there is no such file\n");
		return;
	}
	fstat(file, &about);
	int head = snprintf(piece, sizeof piece, "200 %ld\n", (long)about.st_size);
	ssize_t got = head;
	while (got > 0 && write(client, piece, got) == got)
		got = read(file, piece, sizeof piece);
	close(file);
}

static void put(int client, const char *name, size_t length)
{
	char piece[PIECE], part[LINE];
	snprintf(part, sizeof part, "part.%d", getpid());
	int file = open(part, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	while (length > 0) {
		size_t some = length < sizeof piece ? length : sizeof piece;
		if (!receive(client, piece, some) || write(file, piece, some) < 0)
			break;
		length -= some;
	}
	close(file);
	answer(client, rename(part, name) ? "500 it could not be stored\n" : "200 0\n");
}

__attribute__((noinline)) static void note(int client, size_t length)
{
	char text[NOTE];
	char reply[64];
	// The vulnerability: `length` may exceed the buffer, and the note's number is its address.
	if (!receive(client, text, length) || write(log_file, text, length) < 0)
		return;
	snprintf(reply, sizeof reply, "200 %lu\n", (unsigned long)text);
	answer(client, reply);
}

// Reads a line without its newline; returns whether one came.
static int receive_line(int client, char line[LINE])
{
	for (size_t at = 0; at < LINE; at++) {
		if (!receive(client, line + at, 1))
			return 0;
		if (line[at] == '\n') {
			line[at] = 0;
			return 1;
		}
	}
	return 0;
}

static void serve(int client)
{
	char line[LINE], name[LINE];
	size_t length;
	inbox.at = inbox.end = 0;
	answer(client, greeting);
	while (!ending && receive_line(client, line)) {
		if (sscanf(line, "GET %s", name) == 1)
			get(client, name);
		else if (sscanf(line, "PUT %s %zu", name, &length) == 2)
			put(client, name, length);
		else if (sscanf(line, "NOTE %zu", &length) == 1)
			note(client, length);
		else
			answer(client, "500 what is that\n");
	}
}

static void work(int listener)
{
	while (!ending) {
		obey_signals();
		int client = accept(listener, NULL, NULL);
		if (client < 0)
			continue;
		serve(client);
		close(client);
	}
	exit(0);
}

static pid_t start_worker(int listener)
{
	pid_t worker = fork();
	if (worker == 0)
		work(listener);
	return worker;
}

static void tell_workers(int signal)
{
	for (int i = 0; i < WORKERS; i++)
		kill(workers[i], signal);
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_signal };
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	int on = 1;
	if (argc != 3 || chdir(argv[2]))
		return 2;
	address.sin_port = htons(atoi(argv[1]));
	sigaction(SIGHUP, &action, NULL);
	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	signal(SIGPIPE, SIG_IGN);
	reload = reopen = 1;
	obey_signals();
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 128))
		return 1;
	for (int i = 0; i < WORKERS; i++)
		workers[i] = start_worker(listener);
	while (!ending) {
		pid_t ended = wait(NULL);
		for (int i = 0; ended > 0 && !ending && i < WORKERS; i++)
			if (workers[i] == ended)
				workers[i] = start_worker(listener);
		if (reload)
			tell_workers(SIGHUP);
		if (reopen)
			tell_workers(SIGUSR1);
		obey_signals();
	}
	tell_workers(SIGTERM);
	for (;;) {
		if (wait(NULL) > 0)
			continue;
		if (errno != EINTR)
			return 0;
		// A worker that was about to accept a connection has missed the signal.
		tell_workers(SIGTERM);
	}
}
