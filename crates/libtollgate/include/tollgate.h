/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The C interface of a Tollgate daemon. A program can assign its processes and threads to services
 * itself. This is for programs that serve several tenants in a way that Tollgate cannot follow, for
 * example an event loop or a database. A program can also call the plugins of the daemon. Link with
 * the library (`pkg-config --cflags --libs tollgate`), or with libtollgate.a.
 *
 * The functions for services and tollgate_plugin_open() send a request to the daemon at the socket
 * $TOLLGATE_SOCKET, by default /run/tollgate/control.sock. For services, the daemon must run as
 * `tollgate daemon --services FILE`. Only root may send requests. A request takes about as long as
 * one to any local server.
 *
 * Process and thread IDs are those of the daemon's PID namespace. Several threads may call any of
 * the functions at the same time. Do not call them in signal handlers, except those of pace.
 */
#ifndef TOLLGATE_H
#define TOLLGATE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Assigns a process to a service, in place of its present one. This includes all its threads and
 * the processes that it starts from then on. A pid of 0 is the calling process. The process keeps
 * the service until a rule on a message or a file assigns it to another one. If the calling thread
 * is among the assigned ones, it works for the service when this returns. Each other assigned
 * thread works for it from its next system call or context switch on.
 *
 * Returns 0 or a negative errno:
 *   -ENOENT, -ECONNREFUSED  no daemon listens at the socket
 *   -EACCES                 the caller is not root
 *   -EINVAL                 the daemon rejected the request: for example, the service or the
 *                           process does not exist
 * tollgate_error() returns the reason as text.
 */
int tollgate_service_assign(pid_t pid, const char *service);

/* Assigns one thread, as tollgate_service_assign() does. A tid of 0 is the calling thread. */
int tollgate_service_assign_thread(pid_t tid, const char *service);

/*
 * Writes the NUL-terminated name of the service for which a thread works to `name`, which has room
 * for `size` bytes. A tid of 0 is the calling thread. Returns the length of the name without the
 * NUL, or a negative errno: those of tollgate_service_assign(), or -ERANGE if the name does not
 * fit. Names in a rule file have at most 64 bytes; the names of dynamic services, which rules
 * start, may be longer.
 */
int tollgate_service_of(pid_t tid, char *name, size_t size);

/*
 * A plugin (docs/ecode.md) that a daemon has loaded (`tollgate plugin load`). Only opening it sends
 * a request to the daemon; calls go directly to the kernel. Only root may call plugins.
 */
struct tollgate_plugin;

/* Opens a plugin by its name. Returns NULL on failure; tollgate_error() returns the reason. */
struct tollgate_plugin *tollgate_plugin_open(const char *name);

/*
 * Runs the plugin's `on call`. `count` must be the number of its parameters, at most 12; each
 * argument is converted to the type of its parameter. Stores the lower 32 bits of the return value
 * in `result`, which may be NULL. Returns 0 or a negative errno. Several threads may call the same
 * plugin at the same time.
 */
int tollgate_plugin_call(const struct tollgate_plugin *plugin, const uint64_t *arguments,
			 size_t count, int *result);

/*
 * Returns the address of a global variable of the plugin, in memory that the plugin and this
 * process share. The address is valid until the plugin is closed. Stores the size of the variable
 * in bytes in `size`, unless that is NULL. Returns NULL if no variable has this name;
 * tollgate_error() then says so.
 */
void *tollgate_plugin_variable(const struct tollgate_plugin *plugin, const char *name,
			       size_t *size);

/*
 * Returns 1 if the daemon has swapped or unloaded the plugin since it was opened, and 0 otherwise.
 * This is a read of memory. An open plugin stays the version that was opened: after a swap or an
 * unload, calls still run that version, and its variables are no longer those that
 * `tollgate plugin show` prints, unless both versions have the same ones. Close the plugin and open
 * it again to call the new version. The end of the daemon is noticed only if it ended in order.
 */
int tollgate_plugin_is_stale(const struct tollgate_plugin *plugin);

/* Closes a plugin, or does nothing for NULL. The plugin stays loaded in the daemon. */
void tollgate_plugin_close(struct tollgate_plugin *plugin);

/*
 * Returns the reason for this thread's latest failed call, as a sentence. The text is valid until
 * the thread's next failed call. Never NULL.
 */
const char *tollgate_error(void);

/*
 * Pace: tasks with deadlines (docs/pace.md). Each of these functions makes one system call, which
 * does nothing without Tollgate. They need no daemon and no rights, and may be called in signal
 * handlers.
 */

/*
 * Returns the type of tasks with this name, for example "frame". Tollgate uses the first 63 bytes:
 * names that do not differ there are one type. NULL stands for an empty name. The deadline of a
 * type is in the file of rules that Tollgate uses.
 */
uint64_t tollgate_pace_type(const char *name);

/*
 * Begins a task of a type, and returns the task. Until the task ends, the calling thread works on
 * it, and so do the threads that this thread wakes or creates meanwhile. If the calling thread
 * works on another task that the program has begun, the new task is nested in that one: the work
 * counts for both, and the thread continues the outer task when the new one ends.
 */
uint64_t tollgate_pace_begin(uint64_t type);

/* Ends a task, from any thread of the process. Does nothing if the task has ended already. */
void tollgate_pace_end(uint64_t task);

/* Ends a task, begins one of this type, and returns the new one. This is one system call. */
uint64_t tollgate_pace_end_and_begin(uint64_t task, uint64_t type);

/* Changes the time from the beginning of a task to its deadline. 0 counts as 1 ns. */
void tollgate_pace_set_deadline(uint64_t task, uint64_t nanoseconds);

#ifdef __cplusplus
}
#endif

#endif
