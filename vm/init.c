// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * PID 1 of the test machine. It sets up a minimal Linux system and runs each line of /etc/tests as
 * a program. It shows the program's output on the first serial port, and checks the kernel log
 * after each program. At the end, it writes one line to the second serial port, for scripts/vm:
 *
 *	passed 12 failed 0 skipped 1 trouble 0
 *
 * "trouble" counts problems that no test reports: a program that failed or ran no test, and kernel
 * warnings. A machine that dies writes no result, which scripts/vm counts as a failure.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define MAX_ARGS 128
#define SPLAT_LINES 40	/* lines of the kernel log that are shown from a warning on */

/* Bits of /proc/sys/kernel/tainted: bad page, oops, warning, soft lockup. */
#define TAINT_TROUBLE (1 << 5 | 1 << 7 | 1 << 9 | 1 << 14)

static struct { int passed, failed, skipped, trouble; } sum;
static int kmsg = -1;

static void say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
}

static void trouble(const char *what, const char *subject)
{
	say("init: %s: %s", what, subject);
	sum.trouble++;
}

/* The serial lines carry text as it is: no echo, no added carriage returns. */
static int open_serial(const char *path)
{
	struct termios t;
	int fd = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);

	if (fd >= 0 && tcgetattr(fd, &t) == 0) {
		cfmakeraw(&t);
		tcsetattr(fd, TCSANOW, &t);
	}
	return fd;
}

static void read_file(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, buf, size - 1);

	buf[n > 0 ? n : 0] = '\0';
	if (fd >= 0)
		close(fd);
}

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		trouble("cannot write", path);
	if (fd >= 0)
		close(fd);
}

static void mount_all(void)
{
	static const struct { const char *type, *dir; } mounts[] = {
		{ "proc", "/proc" },
		{ "sysfs", "/sys" },
		{ "devpts", "/dev/pts" },
		{ "tmpfs", "/dev/shm" },
		{ "tmpfs", "/tmp" },
		{ "tmpfs", "/run" },
		{ "securityfs", "/sys/kernel/security" },
		{ "debugfs", "/sys/kernel/debug" },
		{ "tracefs", "/sys/kernel/tracing" },
		{ "bpf", "/sys/fs/bpf" },
		{ "cgroup2", "/sys/fs/cgroup" },
	};

	for (size_t i = 0; i < sizeof(mounts) / sizeof(*mounts); i++) {
		mkdir(mounts[i].dir, 0755);
		if (mount(mounts[i].type, mounts[i].dir, mounts[i].type, 0, NULL) < 0)
			trouble("cannot mount", mounts[i].dir);
	}
	chmod("/tmp", 01777);
}

/* Enables all of the kernel's controllers for the cgroups that tests create. */
static void enable_controllers(void)
{
	char names[256], one[64];

	read_file("/sys/fs/cgroup/cgroup.controllers", names, sizeof(names));
	for (char *name = strtok(names, " \n"); name; name = strtok(NULL, " \n")) {
		snprintf(one, sizeof(one), "+%s", name);
		write_file("/sys/fs/cgroup/cgroup.subtree_control", one);
	}
}

static void loopback_up(void)
{
	struct ifreq lo = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (ioctl(fd, SIOCSIFFLAGS, &lo) < 0)
		trouble("cannot bring up", "lo");
	close(fd);
}

static bool is_warning(const char *line)
{
	static const char *const signs[] = {
		"WARNING:", "BUG:", "Oops", "detected stall", "self-detected stall",
		"detected expedited stalls", "soft lockup", "hard LOCKUP", "blocked for more than",
		"unable to handle", "general protection", "possible deadlock",
	};

	/* "traps: NAME[PID] general protection fault": tests provoke such crashes of programs. */
	if (!strncmp(line, "traps: ", 7))
		return false;
	for (size_t i = 0; i < sizeof(signs) / sizeof(*signs); i++)
		if (strstr(line, signs[i]))
			return true;
	return false;
}

/* Reads what the kernel has logged since the last call; a read of /dev/kmsg gives one record. */
static void check_kernel_log(const char *when)
{
	char record[8192];
	int show = 0;

	for (;;) {
		ssize_t n = read(kmsg, record, sizeof(record) - 1);

		/* Records were overwritten. The taint flags still show warnings. */
		if (n < 0 && errno == EPIPE) {
			say("init: part of the kernel log was lost");
			continue;
		}
		if (n <= 0)
			return;
		record[n] = '\0';
		char *text = strchr(record, ';');
		if (!text++)
			continue;
		text[strcspn(text, "\n")] = '\0';
		if (is_warning(text) && !show) {
			trouble("the kernel log has a warning", when);
			show = SPLAT_LINES;
		}
		if (show && show--)
			say("kernel: %s", text);
	}
}

static void check_taint(void)
{
	char flags[32];

	read_file("/proc/sys/kernel/tainted", flags, sizeof(flags));
	flags[strcspn(flags, "\n")] = '\0';
	if (atol(flags) & TAINT_TROUBLE)
		trouble("the kernel has warned; /proc/sys/kernel/tainted", flags);
}

/*
 * Prints a piece of output, and adds up its "test result:" lines. Returns the number of tests that
 * ran.
 */
static int show_output(const char *buf, ssize_t n)
{
	static char line[512];
	static size_t used;
	int ran = 0;

	fwrite(buf, 1, n, stdout);
	for (ssize_t i = 0; i < n; i++) {
		if (buf[i] != '\n') {
			if (used < sizeof(line) - 1)
				line[used++] = buf[i];
			continue;
		}
		line[used] = '\0';
		used = 0;
		int passed, failed, skipped;
		if (sscanf(line, "test result: %*s %d passed; %d failed; %d ignored",
			   &passed, &failed, &skipped) == 3) {
			sum.passed += passed;
			sum.failed += failed;
			sum.skipped += skipped;
			ran += passed + failed;
		}
	}
	return ran;
}

static pid_t start(char *command, int out)
{
	static char *const env[] = {
		"PATH=/bin", "HOME=/tmp", "TMPDIR=/tmp", "TERM=dumb", "RUST_BACKTRACE=1",
		"TOLLGATE_BIN=/bin/tollgate", "WORKLOADS_BIN=/bin/workloads",
		"PROPTEST_CASES=100",	/* fewer generated programs, because QEMU is slow */
		NULL,
	};
	char *argv[MAX_ARGS + 1] = { NULL };
	pid_t pid = fork();

	if (pid)
		return pid;
	for (char *arg = strtok(command, " "), **to = argv; arg && to < argv + MAX_ARGS;
	     arg = strtok(NULL, " "))
		*to++ = arg;
	setsid();
	dup2(open("/dev/null", O_RDONLY), 0);
	dup2(out, 1);
	dup2(out, 2);
	execve(argv[0], argv, env);
	dprintf(2, "init: cannot start %s: %s\n", argv[0], strerror(errno));
	_exit(127);
}

static void run_test(char *command)
{
	char buf[4096], name[64];
	int pipes[2], status = 0, ran = 0, alive = 1;
	ssize_t n;

	snprintf(name, sizeof(name), "%.*s", (int)strcspn(command, " "), command);
	if (pipe2(pipes, O_CLOEXEC) < 0)
		return trouble("cannot make a pipe for", name);
	pid_t pid = start(command, pipes[1]);
	close(pipes[1]);

	while (alive) {
		struct pollfd p = { .fd = pipes[0], .events = POLLIN };
		siginfo_t orphan;

		if (poll(&p, 1, 50) > 0 && p.revents & POLLIN &&
		    (n = read(pipes[0], buf, sizeof(buf))) > 0)
			ran += show_output(buf, n);
		else if (p.revents)	/* hung up: poll would return at once */
			usleep(50000);
		/* PID 1 also reaps processes that the tests leave behind. */
		for (orphan.si_pid = 0;
		     waitid(P_ALL, 0, &orphan, WEXITED | WNOHANG) == 0 && orphan.si_pid;
		     orphan.si_pid = 0)
			if (orphan.si_pid == pid) {
				alive = 0;
				status = orphan.si_status;
				if (orphan.si_code != CLD_EXITED)
					status += 128;
			}
	}
	kill(-1, SIGKILL);	/* a clean start for the next program, and an end of the pipe */
	while ((n = read(pipes[0], buf, sizeof(buf))) > 0)
		ran += show_output(buf, n);
	close(pipes[0]);
	while (waitpid(-1, NULL, 0) > 0)
		;

	if (status) {
		char code[96];

		snprintf(code, sizeof(code), "%s, status %d", name, status);
		trouble("a test program failed", code);
	}
	if (!ran)
		trouble("no test ran", name);
	check_kernel_log(name);
}

int main(void)
{
	FILE *tests, *result;
	char line[4096];

	mkdir("/dev", 0755);
	mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	int console = open_serial("/dev/ttyS0");
	dup2(console, 0);
	dup2(console, 1);
	dup2(console, 2);
	setvbuf(stdout, NULL, _IONBF, 0);
	kmsg = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);

	mount_all();
	enable_controllers();
	loopback_up();
	sethostname("vm", 2);
	if (kmsg < 0)
		trouble("cannot open", "/dev/kmsg");
	check_kernel_log("boot");

	tests = fopen("/etc/tests", "re");
	while (tests && fgets(line, sizeof(line), tests)) {
		line[strcspn(line, "\n")] = '\0';
		if (*line)
			run_test(line);
	}
	check_kernel_log("after the tests");
	check_taint();

	result = fdopen(open_serial("/dev/ttyS1"), "w");
	if (result) {
		fprintf(result, "passed %d failed %d skipped %d trouble %d\n",
			sum.passed, sum.failed, sum.skipped, sum.trouble);
		fflush(result);
		tcdrain(fileno(result));
	}
	tcdrain(1);
	reboot(RB_POWER_OFF);
	return 1;
}
