/* Functions that call each other and then wait, for known times: the stacks are known. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FUNCTION __attribute__((noinline, noclone))
/* Something to do after the call, so that it is no jump, and a frame of its own size. */
#define AFTER(result) ({ volatile char frame[40]; frame[0] = (result); frame[0]; })

static int pipe_ends[2];
static int word;

static void wait_for(long ms)
{
	struct timespec time = { .tv_nsec = ms * 1000000 };

	nanosleep(&time, NULL);
}

FUNCTION int innermost_sleep(long ms)
{
	wait_for(ms);
	return AFTER(1);
}

FUNCTION int long_sleep(void)
{
	return AFTER(innermost_sleep(60));
}

FUNCTION int short_sleep(void)
{
	return AFTER(innermost_sleep(20));
}

FUNCTION int wait_for_byte(void)
{
	char byte;

	return AFTER(read(pipe_ends[0], &byte, 1));
}

FUNCTION int wait_for_word(void)
{
	return AFTER(syscall(SYS_futex, &word, 0 /* FUTEX_WAIT */, 0, NULL, NULL, 0));
}

/* Deeper than the copy of a stack. */
FUNCTION int deep_sleep(int depth)
{
	volatile char frame[1000];

	frame[depth % 1000] = depth ? deep_sleep(depth - 1) : innermost_sleep(20);
	return frame[depth % 1000];
}

FUNCTION void *waker(void *unused)
{
	wait_for(40);
	if (write(pipe_ends[1], "", 1) != 1)
		abort();
	wait_for(40);
	__atomic_store_n(&word, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &word, 1 /* FUTEX_WAKE */, 1, NULL, NULL, 0);
	return unused;
}

FUNCTION int rounds(void)
{
	pthread_t thread;
	int round, sum = 0;

	for (round = 0; round < 3; round++) {
		sum += long_sleep() + short_sleep();
		word = 0;
		pthread_create(&thread, NULL, waker, NULL);
		sum += wait_for_byte() + wait_for_word();
		pthread_join(thread, NULL);
		sum += deep_sleep(40);
	}
	return sum;
}

int main(void)
{
	if (pipe(pipe_ends))
		return 1;
	return AFTER(rounds()) == 100;
}
