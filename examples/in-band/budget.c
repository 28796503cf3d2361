/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Reads files, and aborts at the first read that sleeps longer than its budget, so that a debugger
 * or a core dump shows who made it.
 *
 *	cc -g -o budget budget.c $(pkg-config --cflags --libs tollgate)
 *	tollgate run --in-band -- ./budget MILLISECONDS FILE...
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tollgate.h>
#include <tollgate_in_band.h>

static uint64_t budget_ns;
static const struct tollgate_records *records;

/* A read that may not sleep longer than the budget. */
static ssize_t read_within_budget(int fd, char *buffer, size_t size)
{
	uint64_t before = records ? tollgate_sequence(records) : 0;
	ssize_t got = read(fd, buffer, size);
	/* A read that signal handlers interrupt has several records. */
	uint64_t blocked_ns = records ? tollgate_blocked_since(records, before) : 0;
	const struct tollgate_call *call;
	char site[64];

	if (blocked_ns <= budget_ns)
		return got;
	call = tollgate_latest(records, before);
	/* Without `sleeps`, what `sleep` has is that of an earlier call. */
	if (!call || !call->sleeps ||
	    tollgate_site_name(call->sleep[0].site, site, sizeof(site)) < 0)
		strcpy(site, "a site that is not known");
	fprintf(stderr, "a read was blocked for %.1f ms in %s\n", blocked_ns / 1e6, site);
	abort();
}

int main(int count, char **words)
{
	static char buffer[1 << 20];

	if (count < 3) {
		fprintf(stderr, "usage: budget MILLISECONDS FILE...\n");
		return 2;
	}
	records = tollgate_records();
	if (!records)
		fprintf(stderr, "no budget applies: %s\n", tollgate_error());
	budget_ns = strtod(words[1], NULL) * 1e6;
	for (int i = 2; i < count; i++) {
		int fd = open(words[i], O_RDONLY);

		if (fd < 0) {
			perror(words[i]);
			return 1;
		}
		while (read_within_budget(fd, buffer, sizeof(buffer)) > 0)
			;
		close(fd);
	}
	return 0;
}
