/* SPDX-License-Identifier: GPL-2.0 */
/*
 * service: for which service a thread works, and what that uses. A thread is bound to a service.
 * What the kernel has counted for the task since then is charged to the service when the binding
 * changes, and when the thread ends (docs/decisions/0005-service.md).
 */
#ifndef TOLLGATE_SERVICE_SERVICE_BPF_H
#define TOLLGATE_SERVICE_SERVICE_BPF_H

#include "gate/state.bpf.h"
#include "service/migrate.bpf.h"
#include "service/rules.bpf.h"
#include "service/signals.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, SERVICES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u32);
	__type(value, struct service_account);
} accounts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct service_socket);
} service_sockets SEC(".maps");

/* include/uapi/linux/in.h */
#define IPPROTO_TCP 6

HASH_MAP(dynamic_services, SERVICES, struct dynamic_service_key, struct dynamic_service);
/* Numbers of dynamic services that were freed. */
FREE_LIST(free_services, SERVICES);

/* arch/x86/entry/syscalls/syscall_64.tbl: calls by which a process changes its effective user. */
#define SETUID_64 105
#define SETREUID_64 113
#define SETRESUID_64 117
/* syscall_32.tbl */
#define SETUID_32 23
#define SETREUID_32 70
#define SETRESUID_32 164
#define SETREUID32_32 203
#define SETRESUID32_32 208
#define SETUID32_32 213
#define IO_URING_SETUP 425
#define IO_URING_ENTER 426
#define SPLICE_64 275
#define SPLICE_32 313

static __always_inline void read_counters(struct task_counters *now, struct task_struct *task)
{
	now->cpu_ns = task->se.sum_exec_runtime;
	now->wait_ns = task->sched_info.run_delay;
	now->switches = task->nvcsw;
	now->preemptions = task->nivcsw;
	now->minor_faults = task->min_flt;
	now->major_faults = task->maj_flt;
	/* CONFIG_TASK_XACCT and CONFIG_TASK_IO_ACCOUNTING, which a kernel may lack. */
	if (bpf_core_field_exists(task->ioac.rchar)) {
		now->read_bytes = task->ioac.rchar;
		now->written_bytes = task->ioac.wchar;
	}
	if (bpf_core_field_exists(task->ioac.read_bytes)) {
		now->storage_read_bytes = task->ioac.read_bytes;
		now->storage_written_bytes = task->ioac.write_bytes;
	}
}

/*
 * The task's counters now. The scheduler updates its time at ticks and switches only. If the
 * binding changes in between, the rest comes from the clock: it counts for one service or the
 * other, and the sum stays the scheduler's.
 */
static __always_inline void counters_now(struct service_member *member, struct task_struct *task, u64 now, bool is_running,
					struct task_counters *counters)
{
	u64 cpu_ns;

	read_counters(counters, task);
	/*
	 * Not every switch is reported (docs/decisions/0001-gate.md): it may have been away since.
	 */
	if (is_running && member->switched_in_ns && member->switched_in_switches == counters->switches + counters->preemptions) {
		cpu_ns = member->switched_in_cpu_ns + (now - member->switched_in_ns);
		if (cpu_ns > counters->cpu_ns)
			counters->cpu_ns = cpu_ns;
	}
}

/* Applies `use` to each field of the account and its usage since the last charge. */
#define FOR_EACH_USAGE(use)                                                                                             \
	use(task.cpu_ns, counters.cpu_ns - member->charged_at.cpu_ns);                                                     \
	use(task.wait_ns, counters.wait_ns - member->charged_at.wait_ns);                                                  \
	use(task.switches, counters.switches - member->charged_at.switches);                                               \
	use(task.preemptions, counters.preemptions - member->charged_at.preemptions);                                      \
	use(task.minor_faults, counters.minor_faults - member->charged_at.minor_faults);                                   \
	use(task.major_faults, counters.major_faults - member->charged_at.major_faults);                                   \
	use(task.read_bytes, counters.read_bytes - member->charged_at.read_bytes);                                         \
	use(task.written_bytes, counters.written_bytes - member->charged_at.written_bytes);                                \
	use(task.storage_read_bytes, counters.storage_read_bytes - member->charged_at.storage_read_bytes);                 \
	use(task.storage_written_bytes, counters.storage_written_bytes - member->charged_at.storage_written_bytes);        \
	use(present_ns, now - member->charged_ns);                                                                   \
	use(calls, member->calls);                                                                                 \
	use(received_bytes, member->received_bytes);                                                               \
	use(sent_bytes, member->sent_bytes)

static __always_inline u32 successor_of(u32 service)
{
	return services[service & (SERVICES - 1)].successor;
}

/*
 * Atomically, because the end of a task is charged in an interrupt, which may interrupt another
 * charge. User space makes the accounts of the services that it names.
 */
#define ADD_USAGE(field, value)                                                                                       \
	do {                                                                                                       \
		u64 __used = value;                                                                                \
		if (__used)                                                                                        \
			__sync_fetch_and_add(&account->field, __used);                                             \
	} while (0)

static __noinline void service_charge(struct thread_state *thread, struct task_struct *task, u64 now, bool is_running)
{
	struct service_member *member = member_of(thread);
	struct task_counters counters = {};
	struct service_account *account;
	u32 service = successor_of(member->service);

	/* It has used nothing. */
	if (member->is_new)
		return;
	counters_now(member, task, now, is_running, &counters);
	account = bpf_map_lookup_elem(&accounts, &service);
	if (account) {
		FOR_EACH_USAGE(ADD_USAGE);
		__sync_fetch_and_add(&account->charges, 1);
	} else {
		count_loss(READ_ONCE(header.services_session), LOSS_CHARGES);
	}
	member->charged_at = counters;
	member->charged_ns = now;
	member->calls = 0;
	member->received_bytes = 0;
	member->sent_bytes = 0;
}

/*
 * `how` has the reason (enum service_why) in bits 0 to 7, then the binding, then whether the thread
 * runs. A BPF function takes five arguments at most.
 */
#define BIND_KIND_SHIFT 8
#define BIND_IS_RUNNING (1 << 16)

/*
 * Gives a thread another binding, or the same one with another rule or control group. A global
 * function, so that the verifier checks it once and not at each of its dozens of calls. It charges
 * what the current task has used: the thread is that task, or has used nothing yet (is_new).
 */
__noinline int service_bind(u32 slot, u32 service, u32 how, u32 rule)
{
	struct thread_state *thread = thread_at(slot);
	struct service_member *member = member_of(thread);
	u32 why = how & 0xff, borrowed = how >> BIND_KIND_SHIFT & 0xff;
	bool is_running = how & BIND_IS_RUNNING;
	u64 now;

	if (!(config.enabled & SERVICE))
		return 0;
	if (member->service == service && member->binding == borrowed) {
		/* Rule numbers of another ruleset mean nothing. */
		if (rule && why != WHY_RESUMED && member->ruleset != header.ruleset) {
			member->why = why;
			member->rule_number = rule;
			member->ruleset = header.ruleset;
		}
		if (cgroup_service_of(service) != member->in_cgroup_of)
			migrate_on_bind(thread, member);
		return 0;
	}
	now = bpf_ktime_get_ns();
	member->version++;
	if (member->service != service) {
		service_charge(thread, bpf_get_current_task_btf(), now, is_running);
		if (is_running) {
			member->tracks_switch_in = 1;
			member->switched_in_ns = now;
			member->switched_in_cpu_ns = member->charged_at.cpu_ns;
			member->switched_in_switches = member->charged_at.switches + member->charged_at.preemptions;
		}
	}
	if (why < WHY_RECEIVED || why == WHY_ASSIGNED)
		member->epoch++;
	member->service = service;
	member->binding = borrowed;
	member->why = why;
	member->rule_number = rule;
	/* A thread that resumes has the rule that it had. */
	if (why != WHY_RESUMED)
		member->ruleset = header.ruleset;
	member->bound_ns = now;
	member->version++;
	migrate_on_bind(thread, member);
	return 0;
}

static __always_inline void service_rebind(struct thread_state *thread, u32 service, u32 why, u32 borrowed, u32 rule,
					    bool is_running)
{
	struct service_member *member = member_of(thread);

	/* A reply that belongs to the same work does not begin new work. */
	if (why != WHY_RESUMED || member->service != service || member->binding != borrowed)
		member->has_replied = 0;
	if (likely(member->service == service && member->binding == borrowed &&
		   (!rule || member->ruleset == header.ruleset) && cgroup_service_of(service) == member->in_cgroup_of))
		return;
	service_bind(thread->slot, service,
		      why | borrowed << BIND_KIND_SHIFT | (is_running ? BIND_IS_RUNNING : 0), rule);
}

/* Allocates a number and an account for a dynamic service; 0: none is left. */
static __always_inline u32 alloc_service(u32 below)
{
	static const struct service_account nothing;
	u32 number = alloc_index(&header.next_service, SERVICES, free_services);

	if (!number)
		return 0;
	if (bpf_map_update_elem(&accounts, &number, &nothing, BPF_ANY)) {
		bpf_map_push_elem(&free_services, &number, BPF_ANY);
		return 0;
	}
	services[number & (SERVICES - 1)].successor = number;
	services[number & (SERVICES - 1)].rule_service = below;
	services[number & (SERVICES - 1)].cgroup_of = services[below & (SERVICES - 1)].cgroup_of;
	services[number & (SERVICES - 1)].migrate_flags = services[below & (SERVICES - 1)].migrate_flags;
	return number;
}

/*
 * Names a dynamic service after its unit, if that was found just now, or after its program. No
 * stack is left to look the unit up.
 */
static __always_inline void name_dynamic_service(struct service_scratch *room, struct dynamic_service_key *key, struct task_struct *task)
{
	if (key->each == SPLIT_UNIT && room->unit == key->value[0])
		return;
	room->unit = 0;
	__builtin_memset(room->start.name, 0, sizeof(room->start.name));
	if (key->each == SPLIT_EXE)
		bpf_probe_read_kernel_str(room->start.name, sizeof(room->start.name),
					  BPF_CORE_READ(task, mm, exe_file, f_path.dentry, d_name.name));
}

/*
 * The service of this user, unit, program or client, below the rule's service; SERVICE_NONE: the
 * member has no such value.
 */
static __noinline u32 dynamic_service_of(struct service_member *member, struct service_rule *rule, struct task_struct *task)
{
	struct dynamic_service_key key = { .below = successor_of(rule->service), .each = rule->each };
	struct service_scratch *room = scratch();
	struct dynamic_service *known;
	u32 number;

	switch (rule->each) {
	case SPLIT_USER:
		key.value[0] = member->user;
		break;
	case SPLIT_UNIT:
		key.value[0] = member->unit;
		break;
	case SPLIT_EXE:
		key.value[0] = member->exe;
		break;
	default:
		key.value[0] = member->connection.client[0];
		key.value[1] = member->connection.client[1];
	}
	if (rule->each != SPLIT_USER && !key.value[0] && !key.value[1])
		return SERVICE_NONE;
	known = bpf_map_lookup_elem(&dynamic_services, &key);
	if (known)
		return known->number;
	number = alloc_service(key.below);
	if (!number || !room)
		goto lost;
	name_dynamic_service(room, &key, task);
	room->start.number = number;
	/* If the processor's reserve of memory was empty, an interrupt has refilled it by now. */
	for (int times = 0; times < 2; times++) {
		if (!bpf_map_update_elem(&dynamic_services, &key, &room->start, BPF_NOEXIST))
			return number;
		/* Another processor was faster. */
		known = bpf_map_lookup_elem(&dynamic_services, &key);
		if (known)
			break;
	}
	bpf_map_push_elem(&free_services, &number, BPF_ANY);
	if (known)
		return known->number;
lost:
	count_loss(READ_ONCE(header.services_session), LOSS_DYNAMIC_SERVICES);
	return key.below;
}

/* Does what a rule says. With messages and files, the binding is by request. */
static __always_inline void service_apply_rule(struct thread_state *thread, struct task_struct *task,
					 struct service_rule *rule, u32 event, u32 peer, bool is_running)
{
	u32 borrowed = event >= EVENT_RECEIVE ? BINDING_REQUEST : BINDING_OWN;
	u32 service, why = event + WHY_FORK;

	if (rule->then == ACTION_BELONGS)
		service = rule->service;
	else if (rule->then == ACTION_ADOPTS_PEER && peer != SERVICE_NONE)
		service = peer;
	else if (rule->then == ACTION_CREATES)
		service = dynamic_service_of(member_of(thread), rule, task);
	else
		return;
	if (service == SERVICE_NONE)
		return;
	if (event == EVENT_FORK && rule->then == ACTION_ADOPTS_PEER) {
		borrowed = BINDING_REQUEST;
		why = WHY_SIGNALLED;
	}
	if (borrowed && member_of(thread)->has_io_uring) {
		service = SERVICE_SHARED;
		why = WHY_IO_URING;
	}
	service_rebind(thread, successor_of(service), why, borrowed, rule->precedence + 1, is_running);
}

static __always_inline void fill_query(struct rule_query *question, struct service_member *member, u32 event,
					u32 peer)
{
	question->event = event;
	question->peer = peer == SERVICE_NONE ? peer : services[peer & (SERVICES - 1)].rule_service;
	question->exe = member->exe;
	question->unit = member->unit;
	question->user = member->user;
	question->binding = member->binding;
	question->service = services[member->service & (SERVICES - 1)].rule_service;
	if (event == EVENT_RECEIVE)
		question->connection = member->connection;
}

static __always_inline void service_classify_task(struct thread_state *thread, struct task_struct *task, u32 event, u32 peer,
					   bool is_running)
{
	struct rule_query question = {};

	fill_query(&question, member_of(thread), event, peer);
	match_rules(&question, task);
	service_apply_rule(thread, task, &question.rule, event, peer, is_running);
}

/* Matches the rules for the thread in this slot, with the current task as its task. */
__noinline int service_classify(u32 slot, u32 event, u32 peer, u32 is_running)
{
	if (!(config.enabled & SERVICE))
		return 0;
	service_classify_task(thread_at(slot), bpf_get_current_task_btf(), event, peer, is_running);
	return 0;
}

/* Reads what a process is, as far as rules have conditions on it. */
static __always_inline void service_read_identity(struct service_member *member, struct task_struct *task)
{
	u32 fields = rulesets[header.ruleset & 1].fields;

	member->user = BPF_CORE_READ(task, cred, euid.val);
	member->exe = fields & FIELD_EXE ? hash_of_program(task) : 0;
	member->unit = fields & FIELD_UNIT ? hash_of_unit(task) : 0;
}

static __always_inline void service_reset_member(struct service_member *member)
{
	u32 receives = member->receives, epoch = member->epoch;

	__builtin_memset(member, 0, sizeof(*member));
	/* What others have recorded of the slot's previous thread does not apply to this one. */
	member->receives = receives + 1;
	member->epoch = epoch + 1;
	member->charged_ns = bpf_ktime_get_ns();
	member->bound_ns = member->charged_ns;
	member->ruleset = header.ruleset;
}

/* The part of service_attach() that the verifier checks once. The counters were just read. */
__noinline int service_attach_classify(u32 slot)
{
	struct thread_state *thread = thread_at(slot);
	struct service_member *member = member_of(thread);
	struct task_struct *task = (void *)thread->task;

	if (!(config.enabled & SERVICE))
		return 0;
	member->why = WHY_ATTACHED;
	member->has_io_uring = !!BPF_CORE_READ(task, io_uring);
	service_read_identity(member, task);
	/* It has used nothing since then. */
	member->is_new = 1;
	service_classify_task(thread, task, EVENT_ATTACH, SERVICE_NONE, false);
	member->is_new = 0;
	return 0;
}

/* Attaches a thread that already runs. */
static __always_inline void service_attach(struct thread_state *thread, struct task_struct *task)
{
	struct service_member *member = member_of(thread);

	service_reset_member(member);
	read_counters(&member->charged_at, task);
	service_attach_classify(thread->slot);
}

/*
 * A new thread, with the binding of its parent, which runs here and is in slot `parent` (0: it has
 * none). The kernel has counted nothing for it yet. A global function, like those below, so that
 * the verifier checks it once and not on each path to it.
 */
__noinline int service_fork(u32 slot, u32 parent)
{
	struct thread_state *thread = thread_at(slot);
	/* The parent, which runs the same program as the same user for now. */
	struct task_struct *task = bpf_get_current_task_btf();
	struct service_member *member = member_of(thread), *before;

	if (!(config.enabled & SERVICE))
		return 0;
	service_reset_member(member);
	member->is_new = 1;
	if (!parent) {
		member->why = WHY_ATTACHED;
		service_read_identity(member, task);
		service_classify(thread->slot, EVENT_ATTACH, SERVICE_NONE, false);
		member->is_new = 0;
		return 0;
	}
	before = &members[parent & (THREADS - 1)];
	member->in_cgroup_of = before->in_cgroup_of;
	member->service = before->service;
	member->binding = before->binding;
	member->why = WHY_FORKED;
	member->rule_number = before->rule_number;
	member->ruleset = before->ruleset;
	member->user = before->user;
	member->exe = before->exe;
	member->unit = before->unit;
	if (thread->tgid == thread_at(parent)->tgid)
		member->has_io_uring = before->has_io_uring;
	if (rulesets[header.ruleset & 1].tuple_count[EVENT_FORK])
		service_classify(thread->slot, EVENT_FORK, fork_requester(before), false);
	member->is_new = 0;
	migrate_on_fork(thread, member);
	return 0;
}

/* The thread that runs here has executed a program. */
__noinline int service_exec(u32 slot)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread = thread_at(slot);

	if (!(config.enabled & SERVICE))
		return 0;
	member_of(thread)->has_io_uring = 0;
	service_read_identity(member_of(thread), task);
	service_classify(slot, EVENT_EXEC, SERVICE_NONE, true);
	return 0;
}

/* Matches newly active rules for a thread that already runs, possibly from another processor. */
static __noinline void service_reclassify(struct thread_state *thread, struct task_struct *task)
{
	struct service_member *member = member_of(thread);
	struct rule_query question = {};
	u64 before, message;
	u32 service;

	service_read_identity(member, task);
	fill_query(&question, member, EVENT_ATTACH, SERVICE_NONE);
	match_rules(&question, task);
	service = SERVICE_NONE;
	if (question.rule.then == ACTION_BELONGS)
		service = question.rule.service;
	else if (question.rule.then == ACTION_CREATES)
		service = dynamic_service_of(member, &question.rule, task);
	before = READ_ONCE(member->message);
	/* An assignment by hand takes precedence. */
	if ((before & 0xffff) == MESSAGE_ASSIGN)
		return;
	/* The message is of older rules. */
	if (service == SERVICE_NONE) {
		__sync_val_compare_and_swap(&member->message, before, 0);
		return;
	}
	service = successor_of(service);
	message = MESSAGE_RECLASSIFIED | service << MESSAGE_SERVICE_SHIFT |
		  (u64)(question.rule.precedence + 1) << MESSAGE_VALUE_SHIFT;
	__sync_val_compare_and_swap(&member->message, before, message);
}

/* include/vdso/time64.h */
#define NSEC_PER_MSEC 1000000ULL

/* When the service was assigned: the message has the lower 32 bits of the time in milliseconds. */
static __always_inline u64 assigned_ns(u64 message, u64 now)
{
	u32 ago_ms = (u32)(now / NSEC_PER_MSEC) - (u32)(message >> MESSAGE_VALUE_SHIFT);

	return now - ago_ms * NSEC_PER_MSEC;
}

static __always_inline void service_take_message(struct thread_state *thread, struct task_struct *task, bool is_running)
{
	struct service_member *member = member_of(thread);
	u64 message = __sync_lock_test_and_set(&member->message, 0);
	u32 service = message >> MESSAGE_SERVICE_SHIFT & 0xffff, value = message >> MESSAGE_VALUE_SHIFT;
	u32 kind = message & 0xffff;

	if (kind == MESSAGE_ASSIGN || kind == MESSAGE_RECLASSIFIED) {
		service_rebind(thread, successor_of(service), kind == MESSAGE_ASSIGN ? WHY_ASSIGNED : WHY_ATTACHED,
				kind == MESSAGE_ASSIGN ? BINDING_EXPLICIT : BINDING_OWN,
				kind == MESSAGE_ASSIGN ? 0 : value, is_running);
		if (kind == MESSAGE_ASSIGN)
			member->bound_ns = assigned_ns(message, bpf_ktime_get_ns());
	} else if (kind == MESSAGE_PEER && value == member->receives) {
		service_classify(thread->slot, EVENT_RECEIVE, service, is_running);
	}
}

/* Handles a message to the thread that runs here, and a change of its user since its last call. */
__noinline int service_poll(u32 slot, u32 is_running)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread = thread_at(slot);
	struct service_member *member = member_of(thread);
	u32 user;

	if (!(config.enabled & SERVICE))
		return 0;
	if (member->message)
		service_take_message(thread, task, is_running);
	user = BPF_CORE_READ(task, cred, euid.val);
	if (user != member->user) {
		member->user = user;
		service_classify(thread->slot, EVENT_USER, SERVICE_NONE, is_running);
	}
	return 0;
}

static __always_inline bool changes_user(u32 call)
{
	switch (call) {
	case SETUID_64:
	case SETREUID_64:
	case SETRESUID_64:
	case ABI_I386 * CALLS_PER_ABI + SETUID_32:
	case ABI_I386 * CALLS_PER_ABI + SETREUID_32:
	case ABI_I386 * CALLS_PER_ABI + SETRESUID_32:
	case ABI_I386 * CALLS_PER_ABI + SETUID32_32:
	case ABI_I386 * CALLS_PER_ABI + SETREUID32_32:
	case ABI_I386 * CALLS_PER_ABI + SETRESUID32_32:
	case ABI_X32 * CALLS_PER_ABI + SETUID_64:
	case ABI_X32 * CALLS_PER_ABI + SETREUID_64:
	case ABI_X32 * CALLS_PER_ABI + SETRESUID_64:
		return true;
	default:
		return false;
	}
}

/* The descriptor by which the call sends, if it sends. */
static __always_inline u32 descriptor_of(u32 call, const struct pt_regs *regs)
{
	if (unlikely(call >= ABI_X32 * CALLS_PER_ABI))
		call -= ABI_X32 * CALLS_PER_ABI;
	else if (unlikely(call >= ABI_I386 * CALLS_PER_ABI))
		return call == ABI_I386 * CALLS_PER_ABI + SPLICE_32 ? regs->dx : regs->bx;
	return call == SPLICE_64 ? regs->dx : regs->di;
}

/* Also if another thread has set up the ring. */
static __always_inline bool uses_io_uring(u32 call)
{
	switch (call) {
	case IO_URING_SETUP:
	case IO_URING_ENTER:
	case ABI_I386 * CALLS_PER_ABI + IO_URING_SETUP:
	case ABI_I386 * CALLS_PER_ABI + IO_URING_ENTER:
	case ABI_X32 * CALLS_PER_ABI + IO_URING_SETUP:
	case ABI_X32 * CALLS_PER_ABI + IO_URING_ENTER:
		return true;
	default:
		return false;
	}
}

/* `before` is the previous call, which has had its effect by now. */
static __always_inline void service_sys_enter(struct thread_state *thread, const struct pt_regs *regs, u32 call, u32 before)
{
	struct service_member *member = member_of(thread);

	member->calls++;
	member->descriptor = descriptor_of(call, regs);
	if (unlikely(uses_io_uring(call)))
		member->has_io_uring = 1;
	if (unlikely(member->message || changes_user(before)))
		service_poll(thread->slot, true);
}

/* The thread is switched out, and may make no call for long. */
static __always_inline void service_switch_out(struct thread_state *thread, struct task_struct *task, bool sleeps,
					  bool gives_way)
{
	struct service_member *member = member_of(thread);

	if (unlikely(member->message))
		service_poll(thread->slot, false);
	if (unlikely(cgroup_service_of(member->service) || member->in_cgroup_of))
		migrate_on_switch_out(thread, member, task, sleeps, gives_way);
}

/* The thread is switched in. */
static __always_inline void service_switch_in(struct thread_state *thread, struct task_struct *task)
{
	struct service_member *member = member_of(thread);

	if (member->tracks_switch_in) {
		member->switched_in_cpu_ns = task->se.sum_exec_runtime;
		member->switched_in_switches = task->nvcsw + task->nivcsw;
		member->switched_in_ns = bpf_ktime_get_ns();
	}
	if (unlikely(member->in_cgroup_of))
		WRITE_ONCE(member->slept_ns, 0);
}

/* No more calls: the rest is charged when the kernel frees the task. */
static __noinline void service_task_exit(struct thread_state *thread, struct task_struct *task)
{
	member_of(thread)->version++;
	service_charge(thread, task, bpf_ktime_get_ns(), true);
	member_of(thread)->tracks_switch_in = 0;
	member_of(thread)->switched_in_ns = 0;
	member_of(thread)->is_exiting = 1;
	member_of(thread)->version++;
}

/* Writes a gated thread for the iterator over members. */
static __always_inline void service_write_member(struct seq_file *seq, struct thread_state *thread, struct task_struct *task)
{
	struct service_member *member = member_of(thread);
	struct service_member_record record;
	struct task_counters counters = {};
	u64 now = bpf_ktime_get_ns();
	u64 message = READ_ONCE(member->message);
	u32 version = READ_ONCE(member->version), kind = message & 0xffff;
	u32 level = BPF_CORE_READ(bpf_get_current_task_btf(), thread_pid, level);

	__builtin_memset(&record, 0, sizeof(record));
	/* As the reader sees them. */
	record.pid = visible_pid(task, level);
	record.tgid = visible_pid(task->group_leader, level);
	record.slot = thread->slot;
	record.epoch = member->epoch;
	record.began_ns = task->start_boottime;
	record.used_for = member->service;
	record.service = member->service;
	record.why = member->why;
	record.binding = member->binding;
	record.rule = member->rule_number;
	record.book = member->ruleset;
	record.user = member->user;
	record.bound_ns = member->bound_ns;
	counters_now(member, task, now, false, &counters);
#define COPY_USAGE(field, value) record.since.field = value
	FOR_EACH_USAGE(COPY_USAGE);
	if (kind == MESSAGE_ASSIGN || kind == MESSAGE_RECLASSIFIED) {
		/* As it will be before the thread does anything more. */
		record.service = successor_of(message >> MESSAGE_SERVICE_SHIFT & 0xffff);
		record.why = kind == MESSAGE_ASSIGN ? WHY_ASSIGNED : WHY_ATTACHED;
		record.rule = kind == MESSAGE_ASSIGN ? 0 : message >> MESSAGE_VALUE_SHIFT;
		record.book = header.ruleset;
		record.binding = kind == MESSAGE_ASSIGN ? BINDING_EXPLICIT : BINDING_OWN;
		record.bound_ns = kind == MESSAGE_ASSIGN ? assigned_ns(message, now) : 0;
	}
	/* The member has changed meanwhile: its charge is in the accounts. */
	if ((version & 1) || version != READ_ONCE(member->version))
		__builtin_memset(&record.since, 0, sizeof(record.since));
	bpf_probe_read_kernel(record.comm, sizeof(record.comm), &task->comm);
	bpf_seq_write(seq, &record, sizeof(record));
}

#endif
