/*
 * Counts the reads from files that are opened from now on, by file and by size. A size is rounded
 * up to a power of two.
 *
 *     tollgate run --plugin examples/reads.ec -- tar cf /dev/null /usr/share/doc
 */
struct descriptor { u32 pid; i32 fd; };
struct file { char path[56]; };
struct size { char path[56]; u32 up_to; };

map<struct descriptor, struct file> files[16384];
map<struct size, u64> reads[16384];

on exit(open, openat) {
	struct descriptor opened = { pid(), (i32)result };
	struct file file;

	if (result < 0)
		return 0;
	read_user_text(file.path, filename);
	files[opened] = file;
}

on exit(read, pread64) {
	struct descriptor from = { pid(), (i32)fd };
	struct size size;

	if (result < 0 || !has(files, from))
		return 0;
	memcpy(size.path, files[from].path, sizeof(size.path));
	for (size.up_to = 1; size.up_to < result; size.up_to *= 2)
		;
	reads[size]++;
}

on enter(close) {
	struct descriptor closed = { pid(), (i32)fd };

	erase(files, closed);
}
