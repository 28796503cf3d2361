/* SPDX-License-Identifier: GPL-2.0 */
/* Every fallback for an older kernel, with the version and commit that made it unnecessary. */
#ifndef TOLLGATE_COMPAT_BPF_H
#define TOLLGATE_COMPAT_BPF_H

/*
 * v6.2: fd264ca02094 ("bpf: Add a kfunc to type cast from bpf uapi ctx to kernel ctx") and a35b9af4ec2c
 * ("bpf: Add a kfunc for generic type cast"). The verifier turns the call into a move, so that a task
 * whose address the gate keeps is read without a helper call.
 */
extern void *bpf_rdonly_cast(const void *object, u32 type) __ksym __weak;

static __always_inline struct task_struct *running_task(u64 address)
{
	if (bpf_ksym_exists(bpf_rdonly_cast))
		return bpf_rdonly_cast((void *)address, bpf_core_type_id_kernel(struct task_struct));
	return bpf_get_current_task_btf();
}

#endif
