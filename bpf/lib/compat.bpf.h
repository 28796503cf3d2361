/* SPDX-License-Identifier: GPL-2.0 */
/* All fallbacks for older kernels, with the version and commit that made each unnecessary. */
#ifndef TOLLGATE_LIB_COMPAT_BPF_H
#define TOLLGATE_LIB_COMPAT_BPF_H

#include "lib/kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/*
 * v6.2: fd264ca02094 ("bpf: Add a kfunc to type cast from bpf uapi ctx to kernel ctx") and
 * a35b9af4ec2c ("bpf: Add a kfunc for generic type cast"). The verifier turns the call into a move,
 * so that a task whose address the gate has stored is read without a helper call.
 */
extern void *bpf_rdonly_cast(const void *object, u32 type) __ksym __weak;

static __always_inline struct task_struct *running_task(u64 address)
{
	if (bpf_ksym_exists(bpf_rdonly_cast))
		return bpf_rdonly_cast((void *)address,
				       bpf_core_type_id_kernel(struct task_struct));
	return bpf_get_current_task_btf();
}

/* A field of a kernel object at this address: a load, or a helper call before v6.2. */
#define READ_FIELD(type, address, field)                                                           \
	({                                                                                         \
		type *__object = (void *)(address);                                                \
		bpf_ksym_exists(bpf_rdonly_cast) ?                                                 \
			((type *)bpf_rdonly_cast(__object, bpf_core_type_id_kernel(type)))         \
				->field :                                                          \
			BPF_CORE_READ(__object, field);                                            \
	})

/*
 * Eight bytes at an address. The cast needs a structure: struct timespec64 begins with a field of
 * this size.
 */
#define READ_WORD(address) ((u64)READ_FIELD(struct timespec64, address, tv_sec))

/*
 * v6.6: 13bc24457850 ("fs: rename i_ctime field to __i_ctime"); v6.11: 3aa63a569c64 ("fs: switch
 * timespec64 fields in inode to discrete integers").
 */
struct inode___v6_1 {
	struct timespec64 i_ctime;
} __attribute__((preserve_access_index));

struct inode___v6_6 {
	struct timespec64 __i_ctime;
} __attribute__((preserve_access_index));

struct inode___v6_11 {
	s64 i_ctime_sec;
	u32 i_ctime_nsec;
} __attribute__((preserve_access_index));

/*
 * v6.13: 4e40eff0b573 ("fs: add infrastructure for multigrain timestamps"). The bit says whether
 * stat() has read the time.
 */
#define I_CTIME_QUERIED (1U << 31)

static __always_inline s64 inode_ctime_ns(struct inode *inode)
{
	struct inode___v6_1 *first = (void *)inode;
	struct inode___v6_6 *second = (void *)inode;
	struct inode___v6_11 *third = (void *)inode;

	if (bpf_core_field_exists(third->i_ctime_sec))
		return BPF_CORE_READ(third, i_ctime_sec) * 1000000000LL +
		       (BPF_CORE_READ(third, i_ctime_nsec) & ~I_CTIME_QUERIED);
	if (bpf_core_field_exists(second->__i_ctime))
		return BPF_CORE_READ(second, __i_ctime.tv_sec) * 1000000000LL +
		       BPF_CORE_READ(second, __i_ctime.tv_nsec);
	return BPF_CORE_READ(first, i_ctime.tv_sec) * 1000000000LL +
	       BPF_CORE_READ(first, i_ctime.tv_nsec);
}

/*
 * io_uring_complete has the values of a completion; since v6.15 or so, it has the completion.
 */
typedef void (*btf_trace_io_uring_complete___values)(void *, void *, void *, u64, int, unsigned int,
						     u64, u64);

#define COMPLETION_HAS_VALUES bpf_core_type_exists(btf_trace_io_uring_complete___values)

/*
 * A zero whose value the verifier does not know. Before v6.7 (ab5cfac139ab, "bpf: verify callbacks
 * as if they are called unknown number of times") it assumes that what is zero when bpf_loop()
 * begins is zero in each iteration.
 */
static __always_inline u32 unknown_zero(void)
{
	return bpf_get_smp_processor_id() >> 31;
}

#endif
