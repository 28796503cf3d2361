/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The few kernel types that the gate reads, with only the members that it reads. libbpf relocates
 * each access to the running kernel's layout (CO-RE), so that no generated vmlinux.h and no kernel
 * headers are needed.
 */
#ifndef TOLLGATE_LIB_KERNEL_H
#define TOLLGATE_LIB_KERNEL_H

typedef signed char __s8;
typedef unsigned char __u8;
typedef short __s16;
typedef unsigned short __u16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u16 __le16;
typedef __u32 __le32;
typedef __u64 __le64;
typedef __u16 __sum16;
typedef __u32 __wsum;
typedef __s8 s8;
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __s32 s32;
typedef __s64 s64;
typedef __u64 u64;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))

/* From include/uapi/linux/bpf.h: only the constants that bpf_helpers.h and the gate use. */
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PROG_ARRAY = 3,
	BPF_MAP_TYPE_PERF_EVENT_ARRAY = 4,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_QUEUE = 22,
	BPF_MAP_TYPE_SK_STORAGE = 24,
	BPF_MAP_TYPE_RINGBUF = 27,
};

#define BPF_ANY 0
#define BPF_NOEXIST 1
#define BPF_RB_NO_WAKEUP 1
#define BPF_RB_FORCE_WAKEUP 2
#define BPF_RB_AVAIL_DATA 0
#define BPF_RB_RING_SIZE 1
#define BPF_F_NO_PREALLOC (1U << 0)
#define BPF_F_MMAPABLE (1U << 10)
#define BPF_F_PRESERVE_ELEMS (1U << 11)
#define BPF_F_USER_STACK (1ULL << 8)
#define BPF_F_CURRENT_CPU 0xffffffffULL
#define BPF_SK_STORAGE_GET_F_CREATE (1ULL << 0)

/* The layouts of struct bpf_sock_addr and struct __sk_buff are the same on all kernels. */
struct bpf_sock_addr {
	u32 user_family;
	u32 user_ip4;
	u32 user_ip6[4];
	u32 user_port;
	u32 family;
	u32 type;
	u32 protocol;
	u32 msg_src[5];
	u32 unused;
	struct bpf_sock *sk;
};

struct __sk_buff {
	u32 len;
	u32 before_sk[41];
	struct bpf_sock *sk;
};

/*
 * include/linux/sched.h: kernel threads make no calls, and exiting threads make no further calls.
 */
#define PF_KTHREAD 0x00200000
#define PF_EXITING 0x00000004

/* include/linux/sched.h, __TASK_STOPPED; not in BTF */
#define STATE_STOPPED 0x4

/* include/linux/socket.h */
#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10

/* include/uapi/linux/in.h */
#define IPPROTO_TCP 6

/* include/uapi/asm-generic/signal.h */
#define SIGKILL 9
#define SIGCONT 18
#define SIGSTOP 19

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip,
		sp;
};

struct thread_info {
	u32 status;
	u32 cpu;
};

struct sched_info {
	unsigned long pcount;
	unsigned long long run_delay;
	unsigned long long last_arrival;
	unsigned long long last_queued;
};

struct ns_common {
	unsigned int inum;
};

struct pid_namespace {
	struct ns_common ns;
};

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

typedef struct {
	u32 val;
} kuid_t;

struct user_namespace {
	int level;
};

struct super_block {
	u32 s_dev;
	unsigned long s_magic;
	struct user_namespace *s_user_ns;
};

struct timespec64 {
	s64 tv_sec;
	long tv_nsec;
};

struct inode {
	unsigned short i_mode;
	kuid_t i_uid;
	u32 i_rdev;
	u32 i_generation;
	unsigned int i_nlink;
	unsigned long i_ino;
	struct super_block *i_sb;
	long long i_size;
};

struct qstr {
	u32 len;
	const unsigned char *name;
};

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
};

struct vfsmount {
	struct dentry *mnt_root;
};

struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
};

struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

struct fs_struct {
	struct path root;
	struct path pwd;
};

struct file_operations;

struct file {
	unsigned int f_mode;
	struct path f_path;
	struct inode *f_inode;
	const struct file_operations *f_op;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

typedef struct {
	s64 counter;
} atomic_long_t;

struct mutex {
	atomic_long_t owner;
};

struct rw_semaphore {
	atomic_long_t owner;
};

struct mm_struct {
	struct file *exe_file;
	unsigned long start_code, start_stack, mmap_base;
	unsigned long arg_start, arg_end;
	struct rw_semaphore mmap_lock;
};

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_pgoff;
	struct file *vm_file;
};

struct kernfs_node {
	const char *name;
	u64 id;
};

struct cgroup;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct cgroup_root {
	int hierarchy_id;
};

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
	struct cgroup_root *root;
};

/* The numbers depend on the kernel's configuration. */
enum cgroup_subsys_id {
	pids_cgrp_id,
};

struct css_set {
	struct cgroup_subsys_state *subsys[1];
	struct cgroup *dfl_cgrp;
};

typedef union sigval {
	int sival_int;
} sigval_t;

union __sifields {
	struct {
		sigval_t _sigval;
	} _rt;
};

struct kernel_siginfo {
	int si_code;
	union __sifields _sifields;
};

struct sigaction {
	void *sa_handler;
	unsigned long sa_flags;
};

struct k_sigaction {
	struct sigaction sa;
};

/* include/uapi/asm-generic/signal.h, _NSIG */
struct sighand_struct {
	struct k_sigaction action[64];
};

/* include/linux/pid_types.h, the same since 4.19 */
enum pid_type {
	PIDTYPE_PID,
	PIDTYPE_TGID,
	PIDTYPE_PGID,
	PIDTYPE_SID,
	PIDTYPE_MAX,
};

typedef struct {
	unsigned long sig[1];
} sigset_t;

struct sigpending {
	sigset_t signal;
};

struct signal_struct {
	int nr_threads;
	unsigned int flags;
	int group_exit_code;
	struct sigpending shared_pending;
	struct pid *pids[PIDTYPE_MAX];
};

struct rq {
	unsigned int nr_running;
	u64 clock;
};

struct cfs_rq {
	struct rq *rq;
};

struct sched_entity {
	u64 sum_exec_runtime;
	u64 prev_sum_exec_runtime;
	struct cfs_rq *cfs_rq;
};

/* include/uapi/linux/bpf.h */
struct bpf_timer {
	u64 opaque[2];
} __attribute__((aligned(8)));

struct task_io_accounting {
	u64 rchar;
	u64 wchar;
	u64 read_bytes;
	u64 write_bytes;
};

struct cred {
	kuid_t uid;
	kuid_t suid;
	kuid_t euid;
};

struct io_uring_task;
struct io_ring_ctx;

struct io_cqe {
	u64 user_data;
};

struct io_kiocb {
	u8 opcode;
	unsigned int flags;
	struct io_cqe cqe;
	struct io_ring_ctx *ctx;
};

struct io_uring_sqe {
	u8 opcode;
};

struct io_uring_cqe {
	u64 user_data;
	s32 res;
	u32 flags;
};

struct restart_block {
	long (*fn)(struct restart_block *);
};

struct task_struct {
	unsigned int __state;
	unsigned in_iowait : 1;
	struct mm_struct *mm;
	struct thread_info thread_info;
	void *stack;
	unsigned int flags;
	int on_cpu;
	bool throttled;
	unsigned int ptrace;
	int prio;
	unsigned long jobctl;
	int pid;
	int tgid;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	struct signal_struct *signal;
	struct restart_block restart_block;
	struct sighand_struct *sighand;
	u64 utime;
	u64 stime;
	unsigned long nvcsw;
	unsigned long nivcsw;
	unsigned long min_flt;
	unsigned long maj_flt;
	u64 start_time;
	u64 start_boottime;
	u64 self_exec_id;
	struct sched_entity se;
	struct sched_info sched_info;
	struct task_io_accounting ioac;
	const struct cred *cred;
	struct io_uring_task *io_uring;
	struct fs_struct *fs;
	struct files_struct *files;
	struct css_set *cgroups;
	char comm[16];
};

struct linux_binprm {
	const char *filename;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	unsigned int flags;
	possible_net_t nd_net;
};

struct sk_buff {
	struct net_device *dev;
	__be16 protocol;
	u16 transport_header;
	u16 network_header;
	unsigned char *head;
};

struct dst_entry {
	struct net_device *dev;
};

struct in6_addr {
	union {
		u32 u6_addr32[4];
	} in6_u;
};

struct sock_common {
	u32 skc_daddr;
	u32 skc_rcv_saddr;
	__be16 skc_dport;
	u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct socket;

struct sock {
	struct sock_common __sk_common;
	struct socket *sk_socket;
	struct dst_entry *sk_dst_cache;
	u8 sk_userlocks : 4;
	u16 sk_type;
	u16 sk_protocol;
};

struct inet_bind_bucket {
	signed char fastreuse;
};

struct inet_connection_sock {
	struct inet_bind_bucket *icsk_bind_hash;
};

struct inet_sock {
	__be16 inet_sport;
};

struct socket {
	struct sock *sk;
};

struct socket_alloc {
	struct socket socket;
	struct inode vfs_inode;
};

struct sockaddr_un {
	unsigned short sun_family;
	char sun_path[108];
};

struct unix_address {
	int len;
	struct sockaddr_un name[];
};

struct unix_sock {
	struct sock sk;
	struct unix_address *addr;
	struct sock *peer;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	u32 fd;
	struct file *file;
};

#pragma clang attribute pop

#endif
