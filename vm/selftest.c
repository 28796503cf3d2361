// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A stand-in for the VM tests that succeeds or fails in the way that its argument names. It tests
 * the harness: see scripts/vm-selftest.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void result(const char *verdict, int passed, int failed)
{
	printf("test result: %s. %d passed; %d failed; 1 ignored; 0 measured; 0 filtered out\n",
	       verdict, passed, failed);
	fflush(stdout);
}

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		exit(3);
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "";

	if (!strcmp(way, "pass") || !strcmp(way, "orphan")) {
		/* The orphan holds the output open; the harness must not wait for it. */
		if (!strcmp(way, "orphan") && fork() == 0)
			for (;;)
				pause();
		result("ok", 3, 0);
	} else if (!strcmp(way, "fail")) {
		result("FAILED", 2, 1);
		return 101;
	} else if (!strcmp(way, "none")) {
		result("ok", 0, 0);
	} else if (!strcmp(way, "crash")) {
		result("ok", 3, 0);
		abort();
	} else if (!strcmp(way, "warning")) {
		write_file("/dev/kmsg", "<4>WARNING: CPU: 0 PID: 1 at selftest.c\n");
		result("ok", 3, 0);
	} else if (!strcmp(way, "taint")) {
		write_file("/proc/sys/kernel/tainted", "512");
		result("ok", 3, 0);
	} else if (!strcmp(way, "hang")) {
		for (;;)
			pause();
	} else if (!strcmp(way, "panic")) {
		result("ok", 3, 0);
		write_file("/proc/sysrq-trigger", "c");
	} else {
		return 2;
	}
	return 0;
}
