/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program whose frames are tasks with deadlines, and so is the sound of each frame. Watch it:
 *
 *     cargo build --release -p libtollgate
 *     gcc -I crates/libtollgate/include -o tasks examples/tasks.c \
 *         target/x86_64-unknown-linux-gnu/release/libtollgate.a
 *     sudo tollgate pace watch -- ./tasks 100
 */
#include <stdlib.h>
#include <tollgate.h>
#include <unistd.h>

static void work(unsigned long steps)
{
	volatile unsigned long step = 0;

	while (step < steps)
		step = step + 1;
}

int main(int count, char **arguments)
{
	uint64_t frame = tollgate_pace_type("frame"), sound = tollgate_pace_type("sound");
	int frames = count > 1 ? atoi(arguments[1]) : 100;

	for (int i = 0; i < frames; i++) {
		uint64_t task = tollgate_pace_begin(frame);

		/* Every tenth frame needs four times as much work, and may take two periods. */
		if (i % 10 == 9)
			tollgate_pace_set_deadline(task, 32000000);
		work(i % 10 == 9 ? 4000000 : 1000000);
		task = tollgate_pace_end_and_begin(task, sound);
		work(100000);
		tollgate_pace_end(task);
		usleep(16000);
	}
	return 0;
}
