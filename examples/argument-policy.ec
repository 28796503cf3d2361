/*
 * Calls that the guard counts as anomalous even if they are in a program's baseline: mappings that
 * are both writable and executable, and file modes that let all users write. The guard responds to
 * them as to any anomaly of the process, according to its options.
 *
 *     tollgate run --guard=watch --plugin examples/argument-policy.ec -- ./server
 */
enum { PROT_WRITE = 2, PROT_EXEC = 4, S_IWOTH = 2 };

u64 writable_code, open_to_all;

on guard(mmap, mprotect) {
	if ((prot & (PROT_WRITE | PROT_EXEC)) == (PROT_WRITE | PROT_EXEC)) {
		writable_code++;
		return 1;
	}
}

on guard(chmod, fchmod, fchmodat) {
	if (mode & S_IWOTH) {
		open_to_all++;
		return 1;
	}
}

on verdict(mmap, mprotect, chmod, fchmod, fchmodat) {
	if (denounced)
		print("process %u, call %u: %u anomalies among its last 128 calls", pid(), call, lfc);
}
