/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Sizes that several types share: the numbers of calls, sessions, rows and threads. */
#ifndef TOLLGATE_WIRE_TABLES_H
#define TOLLGATE_WIRE_TABLES_H

/* x86-64 numbers its calls up to 469 in Linux 6.18, i386 up to 469, x32 up to 547. */
#define CALLS_PER_ABI 576
#define CALL_INDICES (3 * CALLS_PER_ABI)
/* Calls with a higher number share the last index of their ABI. */
#define CALL_UNKNOWN (CALLS_PER_ABI - 1)

/* The first index of an ABI's calls is abi * CALLS_PER_ABI. */
enum abi {
	ABI_X86_64 = 0,
	ABI_I386 = 1,
	ABI_X32 = 2,
};

#define SESSIONS 64
/* 6.8 MiB of cell tables. Further tasks share a common row, which counts as a loss. */
#define ROWS 1024
/* The last rows are base rows and other common rows; only the rows before them are allocated. */
#define ALLOCATABLE_ROWS (ROWS - SESSIONS)
/* 4 MiB of states. Threads beyond this number are a loss. */
#define THREADS 16384

/* The maximum of Linux 6.18 on x86 (arch/x86/Kconfig, NR_CPUS_RANGE_END). */
#define CPUS 8192

/* The bytes of a cache line of x86. */
#define CACHE_LINE 64

#define COMM_LEN 16
/* The longest name of a file, with its NUL (include/uapi/linux/limits.h, NAME_MAX). */
#define COMMAND_LEN 256

#endif
