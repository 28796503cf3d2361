/*
 * Calls that the guard counts as anomalous even if they are in a program's baseline: memory that is
 * both writable and executable, and file modes that let all users write. The guard responds to them
 * as to any anomaly of the process, according to its options.
 *
 *     tollgate run --guard=watch --plugin examples/argument-policy.ec -- ./server
 *
 * It does not see old_mmap of 32-bit programs, whose arguments are in memory. Nor does it see files
 * that are created open to all, because that depends on the umask. It does not see access control
 * lists either, which setxattr sets.
 */
enum { PROT_WRITE = 2, PROT_EXEC = 4, S_IWOTH = 2 };
enum { SHM_EXEC = 0100000, READ_IMPLIES_EXEC = 0x0400000 };
/* include/uapi/linux/ipc.h */
enum { SHMAT = 21 };

u64 writable_code, open_to_all;

/* mmap2 is a call of 32-bit programs. The third argument of all is `prot`. */
on guard(mmap, mmap2, mprotect, pkey_mprotect) {
	if ((arg2 & (PROT_WRITE | PROT_EXEC)) == (PROT_WRITE | PROT_EXEC)) {
		writable_code++;
		return 1;
	}
}

on guard(shmat) {
	if (shmflg & SHM_EXEC) {
		writable_code++;
		return 1;
	}
}

/* 32-bit programs can also call shmat by ipc, which is a call for many purposes. */
on guard(ipc) {
	if ((arg0 & 0xffff) == SHMAT && arg2 & SHM_EXEC) {
		writable_code++;
		return 1;
	}
}

/* All memory that can be read can then be executed. personality(0xffffffff) only asks. */
on guard(personality) {
	if (personality != 0xffffffff && personality & READ_IMPLIES_EXEC) {
		writable_code++;
		return 1;
	}
}

on guard(chmod, fchmod, fchmodat, fchmodat2) {
	if (mode & S_IWOTH) {
		open_to_all++;
		return 1;
	}
}

on verdict(mmap, mmap2, mprotect, pkey_mprotect, shmat, ipc, personality, chmod, fchmod, fchmodat,
	   fchmodat2) {
	if (denounced)
		print("process %u, call %u: %u anomalies among its last 128 calls", pid(), call, lfc);
}
