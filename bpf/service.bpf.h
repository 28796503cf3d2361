/* SPDX-License-Identifier: GPL-2.0 */
/*
 * service: whose work a thread does, and what that used. A thread has a label; what the kernel has counted of the task
 * since it got the label is charged when it gets another one, and at its end (docs/decisions/0005-service.md).
 */
#ifndef TOLLGATE_SERVICE_BPF_H
#define TOLLGATE_SERVICE_BPF_H

#include "state.bpf.h"
#include "service_place.bpf.h"
#include "service_rules.bpf.h"
#include "service_workers.bpf.h"

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

HASH_MAP(started_services, SERVICES, struct service_started, struct service_start);
/* Numbers that were given to a service and came back. */
FREE_LIST(free_services, SERVICES);

/* arch/x86/entry/syscalls/syscall_64.tbl: the calls by which a process changes its effective user. */
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
	/* CONFIG_TASK_XACCT and CONFIG_TASK_IO_ACCOUNTING, which a kernel may be without. */
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
 * The task's counters now. The scheduler brings its time up to date at ticks and switches only: where the label changes
 * in between, the clock tells the rest. It goes to one label or the other, and the sum stays the scheduler's.
 */
static __always_inline void counters_at(struct service_member *member, struct task_struct *task, u64 now, bool is_running,
					struct task_counters *counters)
{
	u64 cpu_ns;

	read_counters(counters, task);
	/* Not every switch is reported (docs/decisions/0001-gate.md): it may have been away since. */
	if (is_running && member->came_ns && member->came_switches == counters->switches + counters->preemptions) {
		cpu_ns = member->came_cpu_ns + (now - member->came_ns);
		if (cpu_ns > counters->cpu_ns)
			counters->cpu_ns = cpu_ns;
	}
}

/* What was used since the last charge, by `counters`: each of the account's fields, and how much. */
#define EACH_USED(use)                                                                                             \
	use(task.cpu_ns, counters.cpu_ns - member->at.cpu_ns);                                                     \
	use(task.wait_ns, counters.wait_ns - member->at.wait_ns);                                                  \
	use(task.switches, counters.switches - member->at.switches);                                               \
	use(task.preemptions, counters.preemptions - member->at.preemptions);                                      \
	use(task.minor_faults, counters.minor_faults - member->at.minor_faults);                                   \
	use(task.major_faults, counters.major_faults - member->at.major_faults);                                   \
	use(task.read_bytes, counters.read_bytes - member->at.read_bytes);                                         \
	use(task.written_bytes, counters.written_bytes - member->at.written_bytes);                                \
	use(task.storage_read_bytes, counters.storage_read_bytes - member->at.storage_read_bytes);                 \
	use(task.storage_written_bytes, counters.storage_written_bytes - member->at.storage_written_bytes);        \
	use(present_ns, now - member->since_ns);                                                                   \
	use(calls, member->calls);                                                                                 \
	use(received_bytes, member->received_bytes);                                                               \
	use(sent_bytes, member->sent_bytes)

static __always_inline u32 heir_of(u32 service)
{
	return services[service & (SERVICES - 1)].heir;
}

/*
 * Atomically, as the end of a task is charged from an interrupt, which may be that of another charge. User space makes
 * the accounts of the services that it names.
 */
#define CHARGE(field, value)                                                                                       \
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
	u32 service = heir_of(member->service);

	/* It has used nothing. */
	if (member->is_new)
		return;
	counters_at(member, task, now, is_running, &counters);
	account = bpf_map_lookup_elem(&accounts, &service);
	if (account) {
		EACH_USED(CHARGE);
		__sync_fetch_and_add(&account->labels, 1);
	} else {
		lose(READ_ONCE(header.services), LOSS_CHARGES);
	}
	member->at = counters;
	member->since_ns = now;
	member->calls = 0;
	member->received_bytes = 0;
	member->sent_bytes = 0;
}

/* `how` has the reason (enum service_why) in bits 0 to 7. A BPF function takes five arguments at most. */
#define HOW_BORROWED_SHIFT 8
#define HOW_IS_RUNNING (1 << 16)

/*
 * Gives a thread another label, or the same one with another rule or place. A global function, so that the
 * verifier looks at it once, and not at each of its dozens of calls. It charges what the current task has used:
 * the thread is that task, or has used nothing yet (is_new).
 */
__noinline int service_label(u32 slot, u32 service, u32 how, u32 rule)
{
	struct thread_state *thread = thread_at(slot);
	struct service_member *member = member_of(thread);
	u32 why = how & 0xff, borrowed = how >> HOW_BORROWED_SHIFT & 0xff;
	bool is_running = how & HOW_IS_RUNNING;
	u64 now;

	if (!(config.enabled & SERVICE))
		return 0;
	if (member->service == service && member->borrowed == borrowed) {
		/* Places of another book say nothing. */
		if (rule && why != WHY_RESUMED && member->book != header.book) {
			member->why = why;
			member->rule = rule;
			member->book = header.book;
		}
		if (place_of(service) != member->placed)
			place_labelled(thread, member);
		return 0;
	}
	now = bpf_ktime_get_ns();
	member->version++;
	if (member->service != service) {
		service_charge(thread, bpf_get_current_task_btf(), now, is_running);
		if (is_running) {
			member->moves = 1;
			member->came_ns = now;
			member->came_cpu_ns = member->at.cpu_ns;
			member->came_switches = member->at.switches + member->at.preemptions;
		}
	}
	if (why < WHY_RECEIVED || why == WHY_ASSIGNED)
		member->epoch++;
	member->service = service;
	member->borrowed = borrowed;
	member->why = why;
	member->rule = rule;
	/* Who resumes has the rule that it had. */
	if (why != WHY_RESUMED)
		member->book = header.book;
	member->labelled_ns = now;
	member->version++;
	place_labelled(thread, member);
	return 0;
}

static __always_inline void service_relabel(struct thread_state *thread, u32 service, u32 why, u32 borrowed, u32 rule,
					    bool is_running)
{
	struct service_member *member = member_of(thread);

	/* A reply that belongs to the same work does not begin new work. */
	if (why != WHY_RESUMED || member->service != service || member->borrowed != borrowed)
		member->has_answered = 0;
	if (likely(member->service == service && member->borrowed == borrowed &&
		   (!rule || member->book == header.book) && place_of(service) == member->placed))
		return;
	service_label(thread->slot, service,
		      why | borrowed << HOW_BORROWED_SHIFT | (is_running ? HOW_IS_RUNNING : 0), rule);
}

/* A number for a service that is to be started, with an account; 0: none is left. */
static __always_inline u32 new_service(u32 below)
{
	static const struct service_account nothing;
	u32 number = take_number(&header.next_service, SERVICES, free_services);

	if (!number)
		return 0;
	if (bpf_map_update_elem(&accounts, &number, &nothing, BPF_ANY)) {
		bpf_map_push_elem(&free_services, &number, BPF_ANY);
		return 0;
	}
	services[number & (SERVICES - 1)].heir = number;
	services[number & (SERVICES - 1)].known_as = below;
	services[number & (SERVICES - 1)].place = services[below & (SERVICES - 1)].place;
	services[number & (SERVICES - 1)].placing = services[below & (SERVICES - 1)].placing;
	return number;
}

/* By what its unit, if that was found just now, or its program is called. There is no stack left to look for it. */
static __always_inline void name_start(struct service_scratch *room, struct service_started *key, struct task_struct *task)
{
	if (key->each == EACH_UNIT && room->unit == key->value[0])
		return;
	room->unit = 0;
	__builtin_memset(room->start.name, 0, sizeof(room->start.name));
	if (key->each == EACH_EXE)
		bpf_probe_read_kernel_str(room->start.name, sizeof(room->start.name),
					  BPF_CORE_READ(task, mm, exe_file, f_path.dentry, d_name.name));
}

/* The service of this user, unit, program or client, below the rule's; SERVICE_NONE: it has none of that. */
static __noinline u32 started_service(struct service_member *member, struct service_rule *rule, struct task_struct *task)
{
	struct service_started key = { .below = heir_of(rule->service), .each = rule->each };
	struct service_scratch *room = scratch();
	struct service_start *known;
	u32 number;

	switch (rule->each) {
	case EACH_USER:
		key.value[0] = member->user;
		break;
	case EACH_UNIT:
		key.value[0] = member->unit;
		break;
	case EACH_EXE:
		key.value[0] = member->exe;
		break;
	default:
		key.value[0] = member->connection.client[0];
		key.value[1] = member->connection.client[1];
	}
	if (rule->each != EACH_USER && !key.value[0] && !key.value[1])
		return SERVICE_NONE;
	known = bpf_map_lookup_elem(&started_services, &key);
	if (known)
		return known->number;
	number = new_service(key.below);
	if (!number || !room)
		goto lost;
	name_start(room, &key, task);
	room->start.number = number;
	/* Where a processor's stock of memory was used up, an interrupt has filled it by the second time. */
	for (int times = 0; times < 2; times++) {
		if (!bpf_map_update_elem(&started_services, &key, &room->start, BPF_NOEXIST))
			return number;
		/* Another processor was faster. */
		known = bpf_map_lookup_elem(&started_services, &key);
		if (known)
			break;
	}
	bpf_map_push_elem(&free_services, &number, BPF_ANY);
	if (known)
		return known->number;
lost:
	lose(READ_ONCE(header.services), LOSS_SERVICES);
	return key.below;
}

/* What a rule says is done. On messages and files the thread works for somebody else from then on. */
static __always_inline void service_obey(struct thread_state *thread, struct task_struct *task,
					 struct service_rule *rule, u32 event, u32 peer, bool is_running)
{
	u32 borrowed = event >= EVENT_RECEIVE ? BORROWED_FOR_WORK : BORROWED_NOT;
	u32 service, why = event + WHY_FORK;

	if (rule->then == THEN_BELONGS)
		service = rule->service;
	else if (rule->then == THEN_ADOPTS_PEER && peer != SERVICE_NONE)
		service = peer;
	else if (rule->then == THEN_STARTS)
		service = started_service(member_of(thread), rule, task);
	else
		return;
	if (service == SERVICE_NONE)
		return;
	if (event == EVENT_FORK && rule->then == THEN_ADOPTS_PEER) {
		borrowed = BORROWED_FOR_WORK;
		why = WHY_ASKED;
	}
	if (borrowed && member_of(thread)->has_io_uring) {
		service = SERVICE_SHARED;
		why = WHY_IO_URING;
	}
	service_relabel(thread, heir_of(service), why, borrowed, rule->place + 1, is_running);
}

static __always_inline void question_of(struct service_question *question, struct service_member *member, u32 event,
					u32 peer)
{
	question->event = event;
	question->peer = peer == SERVICE_NONE ? peer : services[peer & (SERVICES - 1)].known_as;
	question->exe = member->exe;
	question->unit = member->unit;
	question->user = member->user;
	question->borrowed = member->borrowed;
	question->service = services[member->service & (SERVICES - 1)].known_as;
	if (event == EVENT_RECEIVE)
		question->connection = member->connection;
}

static __always_inline void service_ask_task(struct thread_state *thread, struct task_struct *task, u32 event, u32 peer,
					   bool is_running)
{
	struct service_question question = {};

	question_of(&question, member_of(thread), event, peer);
	ask_rules(&question, task);
	service_obey(thread, task, &question.best, event, peer, is_running);
}

/* Asks the rules about the thread in this slot, with the current task as its task. */
__noinline int service_ask(u32 slot, u32 event, u32 peer, u32 is_running)
{
	if (!(config.enabled & SERVICE))
		return 0;
	service_ask_task(thread_at(slot), bpf_get_current_task_btf(), event, peer, is_running);
	return 0;
}

/* What rules ask of what a process is. */
static __always_inline void service_identify(struct service_member *member, struct task_struct *task)
{
	u32 fields = books[header.book & 1].fields;

	member->user = BPF_CORE_READ(task, cred, euid.val);
	member->exe = fields & FIELD_EXE ? hash_of_program(task) : 0;
	member->unit = fields & FIELD_UNIT ? hash_of_unit(task) : 0;
}

static __always_inline void service_clear(struct service_member *member)
{
	u32 receipts = member->receipts, epoch = member->epoch;

	__builtin_memset(member, 0, sizeof(*member));
	/* What others have noted of the thread that had the slot before is not this one's. */
	member->receipts = receipts + 1;
	member->epoch = epoch + 1;
	member->since_ns = bpf_ktime_get_ns();
	member->labelled_ns = member->since_ns;
	member->book = header.book;
}

/* The part of service_adopt() that the verifier is to look at once. The thread's counters have just been read. */
__noinline int service_adopted(u32 slot)
{
	struct thread_state *thread = thread_at(slot);
	struct service_member *member = member_of(thread);
	struct task_struct *task = (void *)thread->task;

	if (!(config.enabled & SERVICE))
		return 0;
	member->why = WHY_FOUND;
	member->has_io_uring = !!BPF_CORE_READ(task, io_uring);
	service_identify(member, task);
	/* It has used nothing since. */
	member->is_new = 1;
	service_ask_task(thread, task, EVENT_FOUND, SERVICE_NONE, false);
	member->is_new = 0;
	return 0;
}

/* Takes in a thread that runs already. */
static __always_inline void service_adopt(struct thread_state *thread, struct task_struct *task)
{
	struct service_member *member = member_of(thread);

	service_clear(member);
	read_counters(&member->at, task);
	service_adopted(thread->slot);
}

/*
 * A new thread, with the label of the one that makes it, which runs here and is in slot `parent` (0: it has none). The
 * kernel has counted nothing of it yet. A global function, as the others below: the verifier looks at it once, and not
 * for each way to it.
 */
__noinline int service_born(u32 slot, u32 parent)
{
	struct thread_state *thread = thread_at(slot);
	/* Who makes it, who is what it is for now. */
	struct task_struct *task = bpf_get_current_task_btf();
	struct service_member *member = member_of(thread), *before;

	if (!(config.enabled & SERVICE))
		return 0;
	service_clear(member);
	member->is_new = 1;
	if (!parent) {
		member->why = WHY_FOUND;
		service_identify(member, task);
		service_ask(thread->slot, EVENT_FOUND, SERVICE_NONE, false);
		member->is_new = 0;
		return 0;
	}
	before = &members[parent & (THREADS - 1)];
	member->placed = before->placed;
	member->service = before->service;
	member->borrowed = before->borrowed;
	member->why = WHY_FORKED;
	member->rule = before->rule;
	member->book = before->book;
	member->user = before->user;
	member->exe = before->exe;
	member->unit = before->unit;
	if (thread->tgid == thread_at(parent)->tgid)
		member->has_io_uring = before->has_io_uring;
	if (books[header.book & 1].asked[EVENT_FORK])
		service_ask(thread->slot, EVENT_FORK, asked_by(before), false);
	member->is_new = 0;
	place_born(thread, member);
	return 0;
}

/* The thread that runs here has executed a program. */
__noinline int service_executed(u32 slot)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread = thread_at(slot);

	if (!(config.enabled & SERVICE))
		return 0;
	member_of(thread)->has_io_uring = 0;
	service_identify(member_of(thread), task);
	service_ask(slot, EVENT_EXEC, SERVICE_NONE, true);
	return 0;
}

/* Rules in force for the first time, or others: asked again of who runs already. From another processor, maybe. */
static __noinline void service_found(struct thread_state *thread, struct task_struct *task)
{
	struct service_member *member = member_of(thread);
	struct service_question question = {};
	u64 before, message;
	u32 service;

	service_identify(member, task);
	question_of(&question, member, EVENT_FOUND, SERVICE_NONE);
	ask_rules(&question, task);
	service = SERVICE_NONE;
	if (question.best.then == THEN_BELONGS)
		service = question.best.service;
	else if (question.best.then == THEN_STARTS)
		service = started_service(member, &question.best, task);
	before = READ_ONCE(member->message);
	/* What somebody has assigned counts for more. */
	if ((before & 0xffff) == MESSAGE_ASSIGN)
		return;
	/* Of older rules. */
	if (service == SERVICE_NONE) {
		__sync_val_compare_and_swap(&member->message, before, 0);
		return;
	}
	service = heir_of(service);
	message = MESSAGE_FOUND | service << MESSAGE_SERVICE_SHIFT |
		  (u64)(question.best.place + 1) << MESSAGE_VALUE_SHIFT;
	__sync_val_compare_and_swap(&member->message, before, message);
}

/* include/vdso/time64.h */
#define NSEC_PER_MSEC 1000000ULL

/* When somebody gave it the service: as long ago as the milliseconds say, of which the message has the lower 32 bits. */
static __always_inline u64 assigned_ns(u64 message, u64 now)
{
	u32 ago_ms = (u32)(now / NSEC_PER_MSEC) - (u32)(message >> MESSAGE_VALUE_SHIFT);

	return now - ago_ms * NSEC_PER_MSEC;
}

static __always_inline void service_read_message(struct thread_state *thread, struct task_struct *task, bool is_running)
{
	struct service_member *member = member_of(thread);
	u64 message = __sync_lock_test_and_set(&member->message, 0);
	u32 service = message >> MESSAGE_SERVICE_SHIFT & 0xffff, value = message >> MESSAGE_VALUE_SHIFT;
	u32 kind = message & 0xffff;

	if (kind == MESSAGE_ASSIGN || kind == MESSAGE_FOUND) {
		service_relabel(thread, heir_of(service), kind == MESSAGE_ASSIGN ? WHY_ASSIGNED : WHY_FOUND,
				kind == MESSAGE_ASSIGN ? BORROWED_BY_HAND : BORROWED_NOT,
				kind == MESSAGE_ASSIGN ? 0 : value, is_running);
		if (kind == MESSAGE_ASSIGN)
			member->labelled_ns = assigned_ns(message, bpf_ktime_get_ns());
	} else if (kind == MESSAGE_PEER && value == member->receipts) {
		service_ask(thread->slot, EVENT_RECEIVE, service, is_running);
	}
}

/* What others have left for the thread that runs here to find, or it may be another user's since its last call. */
__noinline int service_attend(u32 slot, u32 is_running)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread = thread_at(slot);
	struct service_member *member = member_of(thread);
	u32 user;

	if (!(config.enabled & SERVICE))
		return 0;
	if (member->message)
		service_read_message(thread, task, is_running);
	user = BPF_CORE_READ(task, cred, euid.val);
	if (user != member->user) {
		member->user = user;
		service_ask(thread->slot, EVENT_USER, SERVICE_NONE, is_running);
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

/* By which one the call sends, if it is one that does. */
static __always_inline u32 descriptor_of(u32 call, const struct pt_regs *regs)
{
	if (unlikely(call >= ABI_X32 * CALLS_PER_ABI))
		call -= ABI_X32 * CALLS_PER_ABI;
	else if (unlikely(call >= ABI_I386 * CALLS_PER_ABI))
		return call == ABI_I386 * CALLS_PER_ABI + SPLICE_32 ? regs->dx : regs->bx;
	return call == SPLICE_64 ? regs->dx : regs->di;
}

/* Also of a ring that another thread has set up. */
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

/* `before` is the call before this one, which has had its effect by now. */
static __always_inline void service_enter(struct thread_state *thread, const struct pt_regs *regs, u32 call, u32 before)
{
	struct service_member *member = member_of(thread);

	member->calls++;
	member->descriptor = descriptor_of(call, regs);
	if (unlikely(uses_io_uring(call)))
		member->has_io_uring = 1;
	if (unlikely(member->message || changes_user(before)))
		service_attend(thread->slot, true);
}

/* It leaves its processor, and may make no call for long. */
static __always_inline void service_leave(struct thread_state *thread, struct task_struct *task, bool sleeps,
					  bool gives_way)
{
	struct service_member *member = member_of(thread);

	if (unlikely(member->message))
		service_attend(thread->slot, false);
	if (unlikely(place_of(member->service) || member->placed))
		place_running(thread, member, task, sleeps, gives_way);
}

/* It is about to run. */
static __always_inline void service_return(struct thread_state *thread, struct task_struct *task)
{
	struct service_member *member = member_of(thread);

	if (member->moves) {
		member->came_cpu_ns = task->se.sum_exec_runtime;
		member->came_switches = task->nvcsw + task->nivcsw;
		member->came_ns = bpf_ktime_get_ns();
	}
	if (unlikely(member->placed))
		WRITE_ONCE(member->slept_ns, 0);
}

/* No more calls: what is left of its end is charged when the kernel lets the task go. */
static __noinline void service_exit(struct thread_state *thread, struct task_struct *task)
{
	member_of(thread)->version++;
	service_charge(thread, task, bpf_ktime_get_ns(), true);
	member_of(thread)->moves = 0;
	member_of(thread)->came_ns = 0;
	member_of(thread)->is_exiting = 1;
	member_of(thread)->version++;
}

/* A gated thread, in the members' iterator. */
static __always_inline void service_tell(struct seq_file *seq, struct thread_state *thread, struct task_struct *task)
{
	struct service_member *member = member_of(thread);
	struct service_member_record record;
	struct task_counters counters = {};
	u64 now = bpf_ktime_get_ns();
	u64 message = READ_ONCE(member->message);
	u32 version = READ_ONCE(member->version), kind = message & 0xffff;
	u32 level = BPF_CORE_READ(bpf_get_current_task_btf(), thread_pid, level);

	__builtin_memset(&record, 0, sizeof(record));
	/* As who reads them sees them. */
	record.pid = visible_pid(task, level);
	record.tgid = visible_pid(task->group_leader, level);
	record.slot = thread->slot;
	record.epoch = member->epoch;
	record.began_ns = task->start_boottime;
	record.used_for = member->service;
	record.service = member->service;
	record.why = member->why;
	record.borrowed = member->borrowed;
	record.rule = member->rule;
	record.book = member->book;
	record.user = member->user;
	record.labelled_ns = member->labelled_ns;
	counters_at(member, task, now, false, &counters);
#define TELL(field, value) record.since.field = value
	EACH_USED(TELL);
	if (kind == MESSAGE_ASSIGN || kind == MESSAGE_FOUND) {
		/* As it will be before it does anything more. */
		record.service = heir_of(message >> MESSAGE_SERVICE_SHIFT & 0xffff);
		record.why = kind == MESSAGE_ASSIGN ? WHY_ASSIGNED : WHY_FOUND;
		record.rule = kind == MESSAGE_ASSIGN ? 0 : message >> MESSAGE_VALUE_SHIFT;
		record.book = header.book;
		record.borrowed = kind == MESSAGE_ASSIGN ? BORROWED_BY_HAND : BORROWED_NOT;
		record.labelled_ns = kind == MESSAGE_ASSIGN ? assigned_ns(message, now) : 0;
	}
	/* It has changed meanwhile: its charge is in the accounts. */
	if ((version & 1) || version != READ_ONCE(member->version))
		__builtin_memset(&record.since, 0, sizeof(record.since));
	bpf_probe_read_kernel(record.comm, sizeof(record.comm), &task->comm);
	bpf_seq_write(seq, &record, sizeof(record));
}

#endif
