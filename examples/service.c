/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program that works for one service after the other, and binds itself to each. Run it while
 * services are active:
 *
 *     cargo build --release -p libtollgate
 *     gcc -I crates/libtollgate/include -o service examples/service.c \
 *         target/x86_64-unknown-linux-gnu/release/libtollgate.a
 *     sudo ./service shop blog
 */
#include <stdio.h>
#include <tollgate.h>

/* This work is charged to the current service. */
static void work(void)
{
	volatile unsigned long steps = 0;

	while (steps < 100000000)
		steps = steps + 1;
}

int main(int count, char **services)
{
	char name[128];

	for (int i = 1; i < count; i++) {
		/* First the whole process is bound to a service, later only this thread. */
		int result = i == 1 ? tollgate_service_assign(0, services[i]) :
				      tollgate_service_assign_thread(0, services[i]);

		if (result < 0 ||
		    tollgate_service_of(0, name, sizeof(name)) < 0) {
			fprintf(stderr, "%s\n", tollgate_error());
			return 1;
		}
		printf("%s\n", name);
		work();
	}
	return 0;
}
