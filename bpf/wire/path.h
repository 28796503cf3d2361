/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The path of a file, name by name. */
#ifndef TOLLGATE_WIRE_PATH_H
#define TOLLGATE_WIRE_PATH_H

#define PATH_PARTS 12
#define PATH_PART_LEN 48

/* The number of arguments of a call. */
#define CALL_ARGS 6

struct fd_path {
	/* The argument that it belongs to; CALL_ARGS: none. */
	__u32 arg;
	__u16 mode;
	__u16 parts;
	/* 1: the parts lead up to the root. */
	__u32 complete;
	__u32 unused;
	__u64 inode;
	/* From the file up to the root, across mount points; longer names are cut. */
	char part[PATH_PARTS][PATH_PART_LEN];
};

#endif
