/*
 * Prints every open that takes long.
 *
 *     tollgate plugin load examples/slow-open.ec
 *     tollgate plugin log --follow slow-open
 *     tollgate plugin set slow-open limit_us=10000
 */
u64 limit_us = 1000;
u64 slow;

map<u32, u64> began[10240];	/* by thread */

on enter(open, openat, openat2) {
	began[tid()] = now();
}

on exit(open, openat, openat2) {
	u32 thread = tid();
	u64 us = (now() - began[thread]) / 1000;
	char path[64], name[16];

	if (!erase(began, thread) || us < limit_us)
		return 0;
	slow++;
	comm(name);
	read_user_text(path, filename);
	print("%u us: %s (process %u) opened %s: %d", us, name, pid(), path, result);
}
