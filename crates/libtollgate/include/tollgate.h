/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * For programs that call plugins, and for those that say themselves for which service they work: an event loop or a database that serves several tenants by
 * means that Tollgate cannot follow. The daemon that has services in force is asked (`tollgate daemon --services FILE`), at
 * the socket $TOLLGATE_SOCKET, or /run/tollgate/control.sock. Only root may ask it. Link with libtollgate.a.
 *
 * Numbers of processes and threads are those of the daemon's PID namespace. A call takes about as long as a request to a
 * local server; all functions may be called by several threads at once, but not in signal handlers.
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
 * Gives a process with all its threads, and what it starts from then on, to a service, whatever it works for now. 0 is the
 * calling process. It keeps the service until a rule on a message or file gives it to another one. The calling thread works
 * for it when this returns, others do from their next call or context switch on.
 *
 * 0, or less: a negative errno. -ENOENT, -ECONNREFUSED: no daemon listens there; -EACCES: only root may ask it; -EINVAL: it
 * says no, as there is no such service or process. tollgate_error() says which.
 */
int tollgate_service_assign(pid_t pid, const char *service);

/* The same for one thread; 0 is the calling one. */
int tollgate_service_assign_thread(pid_t tid, const char *service);

/*
 * Writes the name of the service for which a thread works, with a NUL; 0 is the calling thread. Returns its length, or a
 * negative errno as above; -ERANGE: `size` bytes are too few. Names of a rule file have 64 bytes at most, those of services that
 * rules have started may be longer.
 */
int tollgate_service_of(pid_t tid, char *name, size_t size);

/*
 * Plugins (docs/ecode.md) that a daemon has loaded (`tollgate plugin load`), called from here: the daemon is asked once, where it
 * is opened. Only root may call them.
 */
struct tollgate_plugin;

/* NULL: it failed, and tollgate_error() says why. */
struct tollgate_plugin *tollgate_plugin_open(const char *name);

/*
 * Runs its `on call` with as many numbers as that takes, 12 at most, and leaves the lower 32 bits of what it returns in `result`, which
 * may be NULL. 0, or a negative errno. Several threads may do so at once.
 */
int tollgate_plugin_call(const struct tollgate_plugin *plugin, const uint64_t *arguments, size_t count, int *result);

/*
 * Where one of its global variables is in this process's memory, which the plugin shares, until it is closed; and how many bytes it
 * has, if `size` is not NULL. NULL: there is none of this name.
 */
void *tollgate_plugin_variable(const struct tollgate_plugin *plugin, const char *name, size_t *size);

/* It stays loaded. */
void tollgate_plugin_close(struct tollgate_plugin *plugin);

/* Why the latest call of this thread that failed did so: a sentence, until the next one fails. Never NULL. */
const char *tollgate_error(void);

#ifdef __cplusplus
}
#endif

#endif
