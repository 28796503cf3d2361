/*
 * What the guard is to call unusual whatever a program did before: memory that is both written and executed, and modes that let
 * everybody write. It counts as an anomaly of the process, so the guard delays, denies or stops as it is told to.
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
