/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The lens: calls by file. */
#ifndef TOLLGATE_WIRE_FILES_H
#define TOLLGATE_WIRE_FILES_H

#include "wire/path.h"

/* Files with counters at the same time, in all sessions: some 30 MiB if there are so many. */
#define FILES 32768
/* The calls that are distinguished at a file. Few programs make more different ones on one file. */
#define FILE_CALLS 8
/* include/uapi/linux/un.h, UNIX_PATH_MAX */
#define UNIX_PATH_LEN 108
/* The length of an IPv6 address. */
#define ADDRESS_LEN 16

/*
 * What a call does with the file of its first descriptor. The bits for its second one follow at
 * FILE_SECOND.
 */
enum file_use {
	/* The call counts for the file. */
	FILE_IS_USED = 1 << 0,
	/* The call's result is a number of bytes that were read from the file. */
	FILE_IS_READ = 1 << 1,
	/* Or that were written to it. */
	FILE_IS_WRITTEN = 1 << 2,
	/* The result is a number of messages instead, whose headers are at the second argument. */
	FILE_HAS_MESSAGES = 1 << 3,
	FILE_SECOND = 4,
	/* The result is a descriptor of the file that the call has opened. */
	FILE_IS_OPENED = 1 << 8,
	/* The call counts for the file if the path, the argument after the descriptor, is empty. */
	FILE_HAS_PATH = 1 << 9,
};

enum file_kind {
	FILE_NONE = 0,
	/* A file, folder or device. */
	FILE_AT_PATH = 1,
	FILE_SOCKET = 2,
	FILE_PIPE = 3,
	/* An object of the kernel without an inode of its own, such as an epoll instance. */
	FILE_ANONYMOUS = 4,
};

/* A file in a row. */
struct file_key {
	__u64 inode;
	/* Of an anonymous file: what kind of object it is. All of a kind are one file. */
	__u64 operations;
	/* super_block.s_dev */
	__u32 device;
	/* Distinguishes files that have the same inode number one after the other. */
	__u32 generation;
	__u32 row;
	/* enum file_kind */
	__u32 kind;
};

/* A call on a file. */
struct file_call {
	/* The call's index plus 1; 0: the entry is free. */
	__u64 call;
	__u64 count;
	__u64 wall_ns;
};

/* The addresses of a socket. Ports are in the order of this machine, addresses in the network's. */
struct socket_name {
	__u16 family;
	__u16 type;
	__u16 protocol;
	__u16 local_port;
	__u16 remote_port;
	/* Of a Unix socket: the length of its path, or of the path of its peer. */
	__u16 path_len;
	/* It is connected. */
	__u16 has_remote;
	/* The path is that of the peer. */
	__u16 is_peers;
	__u8 local[ADDRESS_LEN];
	__u8 remote[ADDRESS_LEN];
	/* A name that begins with a NUL is an abstract one. */
	char path[UNIX_PATH_LEN];
	__u32 unused;
};

struct file_value {
	/* Calls that returned, and those of them that failed. */
	__u64 calls;
	__u64 errors;
	__u64 read_bytes;
	__u64 written_bytes;
	__u64 wall_ns;
	__u64 blocked_ns;
	/*
	 * The calls by their second descriptor, which also count for the file of the first one, and
	 * their time.
	 */
	__u64 shared_calls;
	__u64 shared_wall_ns;
	/* The first calls that were made on the file. */
	struct file_call call[FILE_CALLS];
	/* Of a socket. */
	struct socket_name socket;
	/* No path led to it any more when it was first used. */
	__u64 is_deleted;
	struct fd_path path;
};

#endif
