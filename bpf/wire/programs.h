/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The programs of the gate at the kernel's hooks. A program is one line:
 *
 *	X(PROGRAM, HOOK, SECTION, USED_BY, UNLESS, NEEDS)
 *
 * PROGRAM  gate_PROGRAM in bpf/gate/gate.bpf.c
 * HOOK     where it is attached; of several programs at one hook, at most one is loaded
 * SECTION  its section, for libbpf
 * USED_BY  it is loaded in a gate with one of these extensions (bits of enum gate_mask), or ALWAYS
 * UNLESS   but not with these extensions, for which there is another program at the same hook
 * NEEDS    what the kernel must have; TRACEPOINT: the hook
 *
 * The programs are attached in the order of the lines. build.rs makes the table in
 * crates/kernel/src/gate_programs.rs from the same lines. The programs of pre-call holds are in
 * bpf/guard/precall.bpf.h, and crates/kernel/src/precall.rs decides which of them are loaded.
 */
#ifndef TOLLGATE_WIRE_PROGRAMS_H
#define TOLLGATE_WIRE_PROGRAMS_H

/*
 * Context switches are first, because the gate must know the running tasks before it sees a call.
 * The ends of calls come before their beginnings, so that the gate sees the end of each call whose
 * beginning it has seen. Programs with plugins are loaded only if there are any, because tail calls
 * change a program's prologue and epilogue. bpf/measure/floor.bpf.c has an empty program for each
 * line.
 */
#define TRACE_PROGRAMS(X)                                                                          \
	X(sched_switch, sched_switch, "tp_btf/sched_switch", ALWAYS, 0, NOTHING)                   \
	X(waking, sched_waking, "tp_btf/sched_waking", PACE | LENS_WHY, 0, NOTHING)                \
	X(contention, contention_begin, "tp_btf/contention_begin", LENS_WHY, 0, TRACEPOINT)        \
	X(contention_end, contention_end, "tp_btf/contention_end", LENS_WHY, 0, TRACEPOINT)        \
	X(frequency, cpu_frequency, "tp_btf/cpu_frequency", PACE, 0, NOTHING)                      \
	X(fork, sched_process_fork, "tp_btf/sched_process_fork", ALWAYS, 0, NOTHING)               \
	X(exec, sched_process_exec, "tp_btf/sched_process_exec", ALWAYS, 0, NOTHING)               \
	X(task_exit, sched_process_exit, "tp_btf/sched_process_exit", ALWAYS, 0, NOTHING)          \
	X(task_free, sched_process_free, "tp_btf/sched_process_free", SERVICE, 0, NOTHING)         \
	X(cgroup_attach, cgroup_attach_task, "tp_btf/cgroup_attach_task", FOLLOW_CGROUPS, 0,       \
	  NOTHING)                                                                                 \
	X(new_task, sched_wakeup_new, "tp_btf/sched_wakeup_new", FOLLOW_CGROUPS, 0, NOTHING)       \
	X(cgroup_mkdir, cgroup_mkdir, "tp_btf/cgroup_mkdir", FOLLOW_CGROUPS, 0, NOTHING)           \
	X(cgroup_rmdir, cgroup_rmdir, "tp_btf/cgroup_rmdir", FOLLOW_CGROUPS, 0, NOTHING)           \
	X(signal_deliver, signal_deliver, "tp_btf/signal_deliver", GUARD, 0, NOTHING)              \
	X(signal_generate, signal_generate, "tp_btf/signal_generate", GUARD | SERVICE, 0, NOTHING) \
	X(sock_recv, sock_recv_length, "tp_btf/sock_recv_length", SERVICE, 0, MESSAGE_TRACEPOINTS) \
	X(recvmsg_exit, sock_recv_length, "fexit/sock_recvmsg", SERVICE, 0, MESSAGE_FUNCTIONS)     \
	X(sock_send, sock_send_length, "tp_btf/sock_send_length", SERVICE, 0, MESSAGE_TRACEPOINTS) \
	X(sendmsg_entry, sock_send_length, "fentry/security_socket_sendmsg",                       \
	  SERVICE, 0, MESSAGE_FUNCTIONS)                                                           \
	X(tcp_state, inet_sock_set_state, "tp_btf/inet_sock_set_state", SERVICE, 0, NOTHING)       \
	X(netif_rx, netif_rx, "tp_btf/netif_rx", SERVICE, 0, NOTHING)                              \
	X(request, io_uring_submit_req, "tp_btf/io_uring_submit_req", LENS, 0, TRACEPOINT)         \
	X(request_sqe, io_uring_submit_sqe, "tp_btf/io_uring_submit_sqe", LENS, 0, TRACEPOINT)     \
	X(request_failed, io_uring_req_failed, "tp_btf/io_uring_req_failed", LENS, 0, TRACEPOINT)  \
	X(request_done, io_uring_complete, "tp_btf/io_uring_complete", LENS, 0, TRACEPOINT)        \
	X(request_lost, io_uring_cqe_overflow, "tp_btf/io_uring_cqe_overflow",                     \
	  LENS, 0, TRACEPOINT)                                                                     \
	X(sys_exit, sys_exit, "tp_btf/sys_exit", LENS | SERVICE_FILES | PACE, PLUGIN_EXIT,         \
	  NOTHING)                                                                                 \
	X(sys_exit_plugins, sys_exit, "tp_btf/sys_exit", PLUGIN_EXIT, 0, NOTHING)                  \
	X(sys_enter, sys_enter, "tp_btf/sys_enter", ALWAYS, PLUGIN, NOTHING)                       \
	X(sys_enter_plugins, sys_enter, "tp_btf/sys_enter", PLUGIN, 0, NOTHING)

/* Attached to the root of the control groups, and not to a tracepoint or function. */
#define CGROUP_PROGRAMS(X)                                                                         \
	X(recvmsg4, recvmsg4, "cgroup/recvmsg4", SERVICE, 0, CGROUP2)                              \
	X(recvmsg6, recvmsg6, "cgroup/recvmsg6", SERVICE, 0, CGROUP2)

#define ALL_PROGRAMS(X) TRACE_PROGRAMS(X) CGROUP_PROGRAMS(X)

#define AS_PROGRAM(PROGRAM, HOOK, SECTION, USED_BY, UNLESS, NEEDS) PROGRAM_##PROGRAM,
enum gate_program { ALL_PROGRAMS(AS_PROGRAM) GATE_PROGRAMS };
#undef AS_PROGRAM

#endif
