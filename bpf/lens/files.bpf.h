/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Calls by file: of the files that a call's descriptors stand for, the calls, bytes and times. The
 * file is found when the call begins, because the call may close its descriptor, or another thread
 * may give the number to another file. The file that a call opens is found when it ends.
 */
#ifndef TOLLGATE_LENS_FILES_BPF_H
#define TOLLGATE_LENS_FILES_BPF_H

#include "gate/calls.bpf.h"
#include "lens/cells.bpf.h"
#include "lens/state.bpf.h"
#include "lib/path.bpf.h"
#include "wire/files.h"

/* include/uapi/linux/magic.h */
#define ANON_INODE_FS_MAGIC 0x09041934
#define PIPEFS_MAGIC 0x50495045
#define SOCKFS_MAGIC 0x534f434b

/* include/uapi/linux/uio.h, UIO_MAXIOV: the largest number of messages of one call. */
#define MESSAGES_MAX 1024
/* struct mmsghdr, and its member msg_len: include/linux/socket.h, include/net/compat.h */
#define MESSAGE_BYTES 64
#define MESSAGE_LEN_AT 56
#define COMPAT_MESSAGE_BYTES 32
#define COMPAT_MESSAGE_LEN_AT 28

/*
 * By struct file_key. These maps have sizes and no types, because the generator of the Rust types
 * for maps cannot initialize the arrays within struct fd_path.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FILES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(key_size, sizeof(struct file_key));
	__uint(value_size, sizeof(struct file_value));
} lens_files SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(struct file_value));
} lens_file_scratch SEC(".maps");

/* The files of a thread's call; the kind FILE_NONE: none. */
struct file_crossing {
	struct file_key key[ARG_NAMES];
};

struct file_crossing file_crossings[THREADS] SEC(".bss.file_calls");

_Static_assert(sizeof(struct file_crossing) == CACHE_LINE, "an entry shares cache lines");

static __always_inline void file_ipv4(__u8 address[ADDRESS_LEN], u32 ipv4)
{
	__builtin_memset(address, 0, ADDRESS_LEN);
	__builtin_memcpy(address, &ipv4, sizeof(ipv4));
}

/* The path of a Unix socket; false: it has none. */
static __always_inline bool file_unix_path(struct socket_name *name, struct unix_sock *own)
{
	struct unix_address *address = own ? BPF_CORE_READ(own, addr) : NULL;
	/* The kernel's length includes the family. */
	u32 length = address ? BPF_CORE_READ(address, len) - sizeof(u16) : 0;

	if (!length || length > UNIX_PATH_LEN)
		return false;
	name->path_len = length;
	bpf_probe_read_kernel(name->path, sizeof(name->path),
			      (void *)address + bpf_core_field_offset(struct unix_address, name) +
				      sizeof(u16));
	return true;
}

/* Reads the addresses of a socket, which it may get only later. */
static __noinline int file_name_socket(struct socket_name *name, struct inode *inode)
{
	struct socket_alloc *both =
		(void *)inode - bpf_core_field_offset(struct socket_alloc, vfs_inode);
	struct sock *sk = BPF_CORE_READ(both, socket.sk);
	struct unix_sock *peer;

	if (!sk)
		return 0;
	name->family = BPF_CORE_READ(sk, __sk_common.skc_family);
	name->type = BPF_CORE_READ(sk, sk_type);
	name->protocol = BPF_CORE_READ(sk, sk_protocol);
	if (name->family == AF_UNIX) {
		peer = (void *)BPF_CORE_READ((struct unix_sock *)sk, peer);
		name->has_remote = !!peer;
		name->is_peers = !file_unix_path(name, (void *)sk) && file_unix_path(name, peer);
		return 0;
	}
	if (name->family != AF_INET && name->family != AF_INET6)
		return 0;
	name->local_port = BPF_CORE_READ(sk, __sk_common.skc_num);
	name->remote_port = __builtin_bswap16(BPF_CORE_READ(sk, __sk_common.skc_dport));
	if (name->family == AF_INET) {
		file_ipv4(name->local, BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr));
		file_ipv4(name->remote, BPF_CORE_READ(sk, __sk_common.skc_daddr));
	} else {
		BPF_CORE_READ_INTO((struct in6_addr *)name->local, sk,
				   __sk_common.skc_v6_rcv_saddr);
		BPF_CORE_READ_INTO((struct in6_addr *)name->remote, sk, __sk_common.skc_v6_daddr);
	}
	name->has_remote = name->remote_port != 0;
	return 0;
}

/* Identifies a file. Returns false if there is none. */
static __always_inline bool file_identify(struct file_key *key, struct file *file, u32 row)
{
	struct inode *inode = file ? READ_FIELD(struct file, file, f_inode) : NULL;
	struct super_block *fs = inode ? READ_FIELD(struct inode, inode, i_sb) : NULL;
	u64 magic;

	if (!fs)
		return false;
	magic = READ_FIELD(struct super_block, fs, s_magic);
	key->inode = READ_FIELD(struct inode, inode, i_ino);
	key->device = READ_FIELD(struct super_block, fs, s_dev);
	key->generation = READ_FIELD(struct inode, inode, i_generation);
	key->operations = 0;
	key->row = row;
	if (magic == SOCKFS_MAGIC) {
		key->kind = FILE_SOCKET;
	} else if (magic == PIPEFS_MAGIC) {
		key->kind = FILE_PIPE;
	} else if (magic == ANON_INODE_FS_MAGIC) {
		key->kind = FILE_ANONYMOUS;
		key->operations = (u64)READ_FIELD(struct file, file, f_op);
	} else {
		key->kind = FILE_AT_PATH;
	}
	return true;
}

/* Adds a file with its name. This is not inlined, so that the verifier checks it once. */
static __noinline int file_add(struct file_key *key, struct file *file)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct inode *inode = BPF_CORE_READ(file, f_inode);
	u32 first = 0;
	struct file_value *value = bpf_map_lookup_elem(&lens_file_scratch, &first);

	if (!value)
		return 0;
	__builtin_memset(value, 0, __builtin_offsetof(struct file_value, path));
	if (key->kind == FILE_SOCKET)
		file_name_socket(&value->socket, inode);
	value->is_deleted = !BPF_CORE_READ(inode, i_nlink);
	path_of_file(&value->path, task, file);
	bpf_map_update_elem(&lens_files, key, value, BPF_NOEXIST);
	return 0;
}

static __always_inline void file_note(u32 row, struct file_key *key, u32 fd)
{
	struct file *file = file_of_fd(bpf_get_current_task_btf(), fd);

	if (!file_identify(key, file, row)) {
		key->kind = FILE_NONE;
		return;
	}
	if (unlikely(!bpf_map_lookup_elem(&lens_files, key)))
		file_add(key, file);
}

static __always_inline bool file_is_same(struct file_key *a, struct file_key *b)
{
	return a->inode == b->inode && a->device == b->device && a->kind == b->kind &&
	       a->operations == b->operations && a->generation == b->generation;
}

static __always_inline struct file_crossing *file_crossing_of(u32 slot)
{
	return &file_crossings[slot & (THREADS - 1)];
}

/* Whether the path after the first descriptor is empty, so that the call is about its file. */
static __noinline bool file_path_is_empty(struct pt_regs *regs, u32 call)
{
	const char *path = (void *)call_argument(regs, call, 1);
	char first = 0;

	/* utimensat(2), and statx(2) since Linux 6.11 */
	return !path || (!bpf_probe_read_user(&first, sizeof(first), path) && !first);
}

/* A call begins. This is a global function, so that the verifier checks it once. */
__noinline int lens_files_enter(u32 slot, u32 call)
{
	struct thread_state *thread = thread_at(slot);
	struct arg_kinds *kinds = bpf_map_lookup_elem(&lens_arg_kinds, &call);
	struct file_crossing *files;
	struct pt_regs *regs;
	u32 use;

	if (!(config.enabled & LENS_FILES))
		return 0;
	files = file_crossing_of(slot);
	files->key[0].kind = FILE_NONE;
	files->key[1].kind = FILE_NONE;
	use = kinds ? kinds->file_use : 0;
	if (!use)
		return 0;
	regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
	if (use & FILE_IS_USED || (use & FILE_HAS_PATH && file_path_is_empty(regs, call)))
		file_note(thread->row, &files->key[0], call_argument(regs, call, kinds->fd[0]));
	if (!(use & FILE_IS_USED << FILE_SECOND))
		return 0;
	file_note(thread->row, &files->key[1], call_argument(regs, call, kinds->fd[1]));
	if (file_is_same(&files->key[0], &files->key[1]))
		files->key[1].kind = FILE_NONE;
	return 0;
}

struct message_sum {
	u64 at;
	u64 stride;
	u64 bytes;
};

static long file_add_message(u32 i, struct message_sum *sum)
{
	u32 bytes = 0;

	if (bpf_probe_read_user(&bytes, sizeof(bytes), (void *)sum->at))
		return 1;
	sum->at += sum->stride;
	sum->bytes += bytes;
	return 0;
}

/* The bytes of the messages of a call; `messages`: their number. */
static __noinline u64 file_message_bytes(struct pt_regs *regs, u32 call, u64 messages)
{
	struct message_sum sum = { .bytes = unknown_zero() };

	sum.at = call_argument(regs, call, 1);
	if (call / CALLS_PER_ABI == ABI_X86_64) {
		sum.at += MESSAGE_LEN_AT;
		sum.stride = MESSAGE_BYTES;
	} else {
		sum.at += COMPAT_MESSAGE_LEN_AT;
		sum.stride = COMPAT_MESSAGE_BYTES;
	}
	bpf_loop(messages < MESSAGES_MAX ? messages : MESSAGES_MAX, file_add_message, &sum, 0);
	return sum.bytes;
}

/* Adds a call to those of the file. If they are too many, it is in the sums alone. */
static __always_inline void file_add_call(struct file_value *value, u32 call, u64 wall)
{
	u64 number = call + 1, known;

#pragma unroll
	for (u32 i = 0; i < FILE_CALLS; i++) {
		known = READ_ONCE(value->call[i].call);
		if (!known) {
			known = __sync_val_compare_and_swap(&value->call[i].call, 0, number);
			if (!known)
				known = number;
		}
		if (known == number) {
			__sync_fetch_and_add(&value->call[i].count, 1);
			__sync_fetch_and_add(&value->call[i].wall_ns, wall);
			return;
		}
	}
}

/* What is added to a file. */
struct file_addition {
	u64 wall;
	u64 blocked;
	s64 result;
	u64 bytes;
	u32 call;
	u32 use;
};

/* Adds a call to a file. `is_second`: the file is that of the call's second descriptor. */
static __noinline int file_add_to(struct file_key *key, struct file_addition *add, u32 session,
				  bool is_second)
{
	struct file_value *value = bpf_map_lookup_elem(&lens_files, key);

	if (!value) {
		count_loss(session, LOSS_FILES_FULL);
		return 0;
	}
	__sync_fetch_and_add(&value->calls, 1);
	__sync_fetch_and_add(&value->wall_ns, add->wall);
	if (add->blocked)
		__sync_fetch_and_add(&value->blocked_ns, add->blocked);
	if (is_error(add->result))
		__sync_fetch_and_add(&value->errors, 1);
	else if (add->use & FILE_IS_READ)
		__sync_fetch_and_add(&value->read_bytes, add->bytes);
	else if (add->use & FILE_IS_WRITTEN)
		__sync_fetch_and_add(&value->written_bytes, add->bytes);
	if (is_second) {
		__sync_fetch_and_add(&value->shared_calls, 1);
		__sync_fetch_and_add(&value->shared_wall_ns, add->wall);
	}
	file_add_call(value, add->call, add->wall);
	return 0;
}

/* The socket may have got its addresses by this call. */
static __noinline int file_update_socket(struct file_key *key, u32 fd)
{
	struct file_value *value = bpf_map_lookup_elem(&lens_files, key);
	struct file *file;
	struct inode *inode;

	if (!value || value->socket.has_remote)
		return 0;
	file = file_of_fd(bpf_get_current_task_btf(), fd);
	inode = file ? BPF_CORE_READ(file, f_inode) : NULL;
	if (inode && BPF_CORE_READ(inode, i_ino) == key->inode)
		file_name_socket(&value->socket, inode);
	return 0;
}

/* A call ends. This is a global function, so that the verifier checks it once. */
__noinline int lens_files_exit(u32 slot, u32 row, s64 result, u64 wall, u64 blocked)
{
	struct thread_state *thread = thread_at(slot);
	struct file_addition add = { .wall = wall, .blocked = blocked, .result = result };
	struct file_crossing *files;
	struct arg_kinds *kinds;
	struct pt_regs *regs;
	u32 call = thread->call;

	if (!(config.enabled & LENS_FILES))
		return 0;
	kinds = bpf_map_lookup_elem(&lens_arg_kinds, &call);
	if (!kinds || !kinds->file_use)
		return 0;
	files = file_crossing_of(slot);
	regs = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
	add.call = call;
	add.bytes = result;
	add.use = kinds->file_use;
	if (add.use & FILE_IS_OPENED && !is_error(result))
		file_note(row, &files->key[0], result);
	if (add.use & FILE_HAS_MESSAGES && !is_error(result))
		add.bytes = file_message_bytes(regs, call, result);
	if (files->key[0].kind != FILE_NONE) {
		files->key[0].row = row;
		file_add_to(&files->key[0], &add, thread->session, false);
		if (files->key[0].kind == FILE_SOCKET)
			file_update_socket(&files->key[0],
					   call_argument(regs, call, kinds->fd[0]));
		files->key[0].kind = FILE_NONE;
	}
	if (files->key[1].kind != FILE_NONE) {
		files->key[1].row = row;
		add.use >>= FILE_SECOND;
		file_add_to(&files->key[1], &add, thread->session, true);
		files->key[1].kind = FILE_NONE;
	}
	return 0;
}

#endif
