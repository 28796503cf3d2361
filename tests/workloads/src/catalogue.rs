//! The sub-commands: name, arguments, what each does, and which of its calls may vary.

use crate::arguments::Arguments;
use crate::failure::Outcome;
use crate::{
    abi, beginning_calls, blocking, calls, children, command_server, consumer, datagrams, escapes,
    file_user, in_band, in_band_connections, in_band_isolation, in_band_lives, in_band_waiters,
    inherited, known_wakers, lives, load, odd_tasks, opener, outcomes, plugin_calls, reading,
    relay, requests, routine, seccomp, side_effects, signal_forker, signals, slowed_tasks,
    stopping_parents, tasks, tenants, tick_waits, waits, wake_ups,
};

pub struct Workload {
    pub name: &'static str,
    pub arguments: &'static str,
    pub about: &'static str,
    pub run: fn(Arguments) -> Outcome,
}

const fn workload(
    name: &'static str,
    arguments: &'static str,
    run: fn(Arguments) -> Outcome,
    about: &'static str,
) -> Workload {
    Workload { name, arguments, about, run }
}

#[rustfmt::skip]
pub const WORKLOADS: &[Workload] = &[
    workload("calls", "N [--threads T]", calls::calls,
        "Calls getppid N times, in total, from the only thread or split over T threads."),
    workload("calls-on-input", "N", calls::calls_on_input,
        "Calls getppid N times for each byte that it reads from stdin, until stdin ends."),
    workload("in-band-records", "", in_band::records,
        "Compares the in-band records of a few calls with what it knows of them."),
    workload("in-band-sleeps", "", in_band::sleeps,
        "Compares the in-band records of two calls that sleep with what it knows of them."),
    workload("in-band-concurrent", "N", in_band::concurrent,
        "Calls lseek N times, while a second thread reads the records of these calls."),
    workload("in-band-inherit", "", in_band_lives::inherit,
        "Has a thread, a child, and then another program read their own in-band records."),
    workload("in-band-rejected", "", in_band::rejected,
        "Compares the in-band record of a call that seccomp rejects with what it knows of it."),
    workload("in-band-vfork", "", in_band_lives::vfork,
        "Has a child that shares its memory read its in-band records."),
    workload("in-band-threads", "N", in_band_lives::threads,
        "Starts N threads, one after the other, that read their in-band records."),
    workload("in-band-waiters", "", in_band_waiters::waiters,
        "Compares how many threads wait beside it, in its in-band records, with what it knows."),
    workload("in-band-wait", "", in_band_waiters::wait,
        "Has in-band records, and sleeps where in-band-waiters do."),
    workload("in-band-renew", "", in_band_lives::renew,
        "Requests in-band records until it gets some, reads them until they are stale, and \
        requests others."),
    workload("in-band-until-stale", "", in_band_lives::until_stale,
        "Reads its in-band records, until they do not advance any more."),
    workload("in-band-isolation", "PID", in_band_isolation::isolation,
        "Tries to write to the memory of its in-band records, and to get that of process PID."),
    workload("in-band-before-exec", "0|1", in_band_connections::before_exec,
        "Requests in-band records, connects once more, and executes in-band-after-exec: in another \
        thread, if 1."),
    workload("in-band-after-exec", "SOCKET CHALLENGE MEMORY", in_band_connections::after_exec,
        "Compares its in-band records with those of the program before it, and tries to use its \
        connection."),
    workload("in-band-pid-reuse", "", in_band_connections::pid_reuse,
        "Has a child connect and end, and another one with its number use the connection."),
    workload("in-band-idle", "", in_band_connections::idle,
        "Opens connections without sending requests, and requests in-band records."),
    workload("in-band-impostor", "", in_band_connections::impostor,
        "Listens as Tollgate does, and requests in-band records of itself."),
    workload("named-threads", "NAME...", calls::named_threads,
        "Starts a thread for each NAME, which it gives itself; each calls getppid 10 times."),
    workload("threads", "N CALLS", calls::threads,
        "Starts N threads; each calls getppid CALLS times."),
    workload("short-threads", "N", calls::short_threads,
        "Starts N threads, 50 alive at once; each calls getppid 3 times."),
    workload("short-processes", "N", calls::short_processes,
        "Forks N children, 50 alive at once; each calls getppid 3 times."),
    workload("int80", "N", abi::int80,
        "Calls the 32-bit getpid by `int $0x80` and the 64-bit getppid alternately, N times each."),
    workload("x32", "N", abi::x32,
        "Calls getpid N times under its x32 number; a kernel without x32 may fail with ENOSYS."),
    workload("elf32", "FILE N", abi::elf32,
        "Writes to FILE a static i386 program that calls getpid N times and exits with status 0."),
    workload("seccomp", "N", seccomp::errno,
        "Has a seccomp filter fail N calls of getppid with EPERM, then calls getuid N times."),
    workload("seccomp-supervised", "N MS", seccomp::supervised,
        "Calls getppid N times; a supervisor of seccomp decides on each after MS ms: the first one \
        fails with EPERM, the second one continues, and so on. How many calls that takes varies."),
    workload("seccomp-trap", "N", seccomp::trap,
        "Has a seccomp filter turn N calls of getppid into handled SIGSYS signals."),
    workload("seccomp-kill", "", seccomp::kill,
        "Has a seccomp filter kill the process, by SIGSYS, at a call of getppid."),
    workload("signals", "N", signals::signals,
        "Sends itself SIGUSR1 N times by tgkill, and handles it: N calls of rt_sigreturn."),
    workload("nanosleep-restart", "", signals::nanosleep_restart,
        "Stops and continues a child in the middle of nanosleep: one call of restart_syscall."),
    workload("changed-restart", "", signals::changed_restart,
        "Reads 1 byte of a pipe; a handler interrupts this, and has the restarted call read 2."),
    workload("fork", "N", children::fork_only,
        "Forks N children, one after the other, that exit at once."),
    workload("fork-into", "FOLDER N", children::fork_into,
        "Forks N children in a control group of v2, one by one; each calls getppid 3 times."),
    workload("fork-exec", "N", children::fork_exec,
        "Forks N children, one after the other, that execute `workloads calls 1`."),
    workload("equal-numbers", "N", children::equal_numbers,
        "Forks N children with the same process number, one after the other, in a PID namespace of \
        their own: the first calls getppid 10 times, the second 20 times, and so on."),
    workload("vfork", "N", children::vfork,
        "Starts `workloads calls 1` N times by posix_spawn (CLONE_VM and CLONE_VFORK)."),
    workload("backend", "PORT|ADDRESS:PORT|PATH|@NAME|fd:N|udp:ADDRESS|sendto:ADDRESS [--forks N] \
        [--threads 1] [--children 1] [--io-uring CALL]", tenants::backend,
        "Works for tenants until one ends it, then prints how long it worked for each; with \
        --children, a child serves each request."),
    workload("assign", "PID SERVICE", tenants::assign,
        "Gives a process, itself if that is 0, to a service by the library, and says for which it \
        works then."),
    workload("call-plugin", "NAME TIMES", plugin_calls::call_plugin,
        "Opens and calls a daemon's plugin TIMES times by the library, each time with the bytes \
        that are its input, and \
         writes those of the plugin's output."),
    workload("relay", "PORT [--stuck 1]", relay::relay,
        "Serves two tenants at once with the backend at PORT; opens its connection for one, and \
        sends over it when it has \
         received from the other; or sends before, and is stuck in another send after."),
    workload("tenant", "PORT|ADDRESS:PORT|PATH|@NAME|fd:N|udp:ADDRESS|sendto:ADDRESS TAG MS \
        REQUESTS [PER-CONNECTION]", tenants::tenant,
        "Requests work of a backend, once a line comes from stdin; TAG z ends the backend."),
    workload("consumer", "", consumer::consumer,
        "Does what each line of its input says, and replies with a line: burn MS [THREADS], \
        sockets N, connect PORT N, \
         connections N, fork N, memory BYTES, send PORT BYTES, close."),
    workload("resolve", "ADDRESS NAME TIMES", datagrams::resolve,
        "Queries a name server TIMES times for a name, once a line comes from stdin."),
    workload("signal-forker", "MS", signal_forker::signal_forker,
        "Forks a child that works MS ms for each SIGUSR1 and SIGHUP, until SIGTERM, then prints \
        how long each worked."),
    workload("request-signal-forker", "PID SIGNAL TIMES", signal_forker::request,
        "Sends a signal-forker signals, once a line comes from stdin, each after the child for the \
        one before has ended."),
    workload("opener", "", opener::opener,
        "Opens files as its input says, a line each: an operation, and a path. opener.rs \
        lists the operations."),
    workload("exec-thread", "", children::exec_thread,
        "Executes `workloads calls 10` from a second thread while the leader is in pause()."),
    workload("daemon", "MS", children::daemon,
        "Leaves a daemon behind, which sleeps MS ms; prints the daemon's process id."),
    workload("sleep", "MS [TIMES]", blocking::sleep,
        "Sleeps MS ms, TIMES times (default 1); prints JSON."),
    workload("waits-for", "WHAT", known_wakers::waits_for,
        "Sleeps until a thread that has a name does something: pipe, mutex, robust-mutex, \
        pi-mutex, condition, child, socket, chain or kernel-mutex."),
    workload("pipe-block", "MS TIMES", blocking::pipe_block,
        "Blocks TIMES times in read(2) of a pipe that a child writes to each MS ms; prints JSON."),
    workload("load", "PORT CONNECTIONS MS PATH", load::load,
        "Requests PATH of a web server of this machine for MS ms, over each of CONNECTIONS \
        again as soon as the reply has come; prints JSON. How many calls that takes varies."),
    workload("slow-open", "DIR", blocking::slow_open,
        "Blocks 50 ms in the open and 50 ms in the read of a FIFO that it makes in DIR."),
    workload("lease", "FILE", file_user::lease,
        "Takes a write lease of FILE, prints \"leased\", and holds the lease until stdin ends."),
    workload("use-files", "DIR", file_user::use_files,
        "Reads and writes known numbers of bytes in files of DIR, pipes and sockets; prints JSON."),
    workload("spin-read", "TIMES", reading::spin_read,
        "Reads 64 MiB from /dev/zero TIMES times, one call each; prints JSON."),
    workload("spin-read-then-sleep", "TIMES MS", reading::spin_read_then_sleep,
        "Does as spin-read, prints nothing, and sleeps MS ms."),
    workload("starved", "TIMES CPU", reading::starved,
        "Does as spin-read on a CPU that it shares with 3 busy processes; prints JSON."),
    workload("mixed", "MS TIMES CPU", reading::mixed,
        "Sleeps MS ms and then reads TIMES times, 4 rounds of it, as starved does; prints JSON."),
    workload("compute", "MS", lives::compute,
        "Computes for MS ms without a call."),
    workload("compute-then-sleep", "MS", lives::compute_then_sleep,
        "Computes for MS ms without a call, and then sleeps MS ms in one."),
    workload("polled-ring", "", lives::polled_ring,
        "Sets up io_uring with a thread of the kernel that polls for requests, and pauses."),
    workload("ring-requests", "N", requests::requests,
        "Has io_uring carry out requests that end in each way; N of each that completes once."),
    workload("polled-ring-requests", "N", requests::polled,
        "Has io_uring carry out N requests that a thread of the kernel submits."),
    workload("shared-ring-requests", "N", requests::shared,
        "Has a child submit N requests, and execute `workloads calls 1`, with one in flight."),
    workload("compute-beside", "MS CPU", lives::compute_beside,
        "Does as compute on a CPU that it shares with 3 busy processes."),
    workload("compute-before-thread", "MS", lives::compute_before_thread,
        "Does as compute with a real-time priority, on a CPU for which a new thread waits."),
    workload("overslept", "MS", lives::overslept,
        "Sleeps MS ms on a CPU that another thread occupies from then on for twice as long."),
    workload("touch-fresh", "MS", lives::touch_fresh,
        "Maps fresh memory, writes to each of its pages and unmaps it, for MS ms."),
    workload("map-cold", "FILE", lives::map_cold,
        "Drops FILE from memory, and reads a byte of each page through a mapping; prints JSON."),
    workload("errors", "N", outcomes::errors,
        "Makes N calls each of openat, close and read that fail: ENOENT, EBADF, EAGAIN."),
    workload("faults", "PAGES", outcomes::faults,
        "Has one read(2) fault in PAGES fresh pages inside the kernel; prints JSON."),
    workload("busy-writer", "MS", outcomes::busy_writer,
        "Writes and reads back one byte through a pipe for MS ms; prints the number of rounds. \
         How many calls that takes varies."),
    workload("hang", "[--threads T]", signals::hang,
        "Blocks in pause() until it is killed, in its only thread or in T threads."),
    workload("leader-ends", "MS", signals::leader_ends,
        "Ends its first thread, and MS ms later the other one. How many calls that takes varies."),
    workload("routine", "ROUNDS ANOMALOUS", routine::routine,
        "Makes the same four calls ROUNDS times, then ANOMALOUS calls of other kinds; prints \
        \"done\"."),
    workload("orphaned-routine", "ROUNDS ANOMALOUS", routine::orphaned_routine,
        "As routine, in a second thread, when the first one has ended. How many calls that takes \
        varies."),
    workload("ends-on-request", "OWN ROUNDS ANOMALOUS", routine::ends_on_request,
        "As routine, but sends itself OWN SIGTERMs after the rounds. Without these, it makes \
        anomalous calls until a signal requests its end, and ANOMALOUS more in response; prints \
        \"saved\". How many calls that takes varies."),
    workload("interrupts-itself", "ROUNDS ANOMALOUS", escapes::interrupts_itself,
        "As routine, but presses Ctrl-C in its own terminal after each anomalous call, and then \
        sleeps 100 ms. How many calls that takes varies."),
    workload("traced-routine", "ROUNDS ANOMALOUS", escapes::traced_routine,
        "As routine, in a child that its parent traces and continues after each stop."),
    workload("stops-with-child", "[--group 1] [--late MS] PARENTS ROUNDS ANOMALOUS",
        stopping_parents::stops_with_child,
        "As routine, in a child of PARENTS nested processes. Like sudo, each of them stops itself, \
        or with --group its process group, MS ms after its child has stopped, and continues the \
        child afterwards."),
    workload("command-server", "[--threads T]", command_server::command_server,
        "Replies to each byte of its input with the same byte, after the four calls of `routine` \
        for a \"u\", and after a call of another kind for any other; T threads sleep 1.25 ms times \
        T again and again. At the end of its input it says how many of its waits and their \
        sleeps were interrupted."),
    workload("waits", "CALL [--timeout SECONDS]", waits::waits,
        "Waits in CALL for what never comes, on sockets with a timeout of their own; prints \
        \"EINTR\" if that ends it."),
    workload("alarms", "ROUNDS", routine::alarms,
        "Makes the same calls ROUNDS times while SIGALRM comes at irregular times, and handles it. \
         How many calls that takes varies."),
    workload("side-effect", "SIDE-EFFECT FOLDER PORT VICTIM", side_effects::side_effect,
        "Makes the same four calls 100 times, then one that does something to files of FOLDER, \
        the local PORT or the \
         process VICTIM, and exits with its errno; side_effects.rs lists them, and \"nothing\" is \
         one."),
    workload("sockets-in-threads", "THREADS TIMES", side_effects::sockets_in_threads,
        "Makes and closes a socket TIMES times in each of THREADS threads, none of which may \
        fail."),
    workload("own-tasks", "N MS", tasks::own_tasks,
        "Begins and ends N tasks with deadlines, each with MS ms of work; prints how many \
        nanoseconds of processor time they took."),
    workload("chained-tasks", "N", tasks::chained_tasks,
        "Begins N tasks, each where the one before ends: N + 2 calls of getppid."),
    workload("tasks-at-once", "N", tasks::tasks_at_once,
        "Begins N tasks; then another thread ends each twice, except the last one."),
    workload("tasks-of-types", "N", tasks::tasks_of_types,
        "Begins and ends a task of each of N types, and a task of one more type after each."),
    workload("nested-tasks", "MS", tasks::nested_tasks,
        "Works MS ms in a task, in one within it, and in the first one again; prints the \
        nanoseconds of both."),
    workload("handed-tasks", "N MS", tasks::handed_tasks,
        "Begins N tasks, for each of which another thread works MS ms; prints how many \
        nanoseconds of processor time they took. How many calls that takes varies."),
    workload("running-tasks", "N MS", tasks::running_tasks,
        "The same, but the other thread still works at the end of each task."),
    workload("created-tasks", "N MS", tasks::created_tasks,
        "Begins N tasks with a deadline of 20 ms, for each of which a new thread works MS ms; \
        prints how many nanoseconds of processor time they took."),
    workload("wake-ups", "KIND N", wake_ups::wake_ups,
        "Is woken N times by a descriptor: an epoll, a terminal, an event or a timer."),
    workload("beginning-calls", "N", beginning_calls::beginning_calls,
        "Makes each call that can begin a task N times, on objects that are ready."),
    workload("named-types", "N", tasks::named_types,
        "Reads a byte from stdin, and names N types of tasks."),
    workload("ticks", "N MS", tasks::ticks,
        "Works MS ms after each of N sleeps; prints how many nanoseconds of processor time that \
        took."),
    workload("ticks-with-replies", "N MS", tick_waits::with_replies,
        "Works MS ms before and after a wait for another thread, after each of N sleeps; prints \
        how many nanoseconds of processor time that took."),
    workload("ticks-with-help", "N MS", tick_waits::with_help,
        "The same as ticks-with-replies, but the other thread works MS ms during the wait; prints \
        the nanoseconds of both threads."),
    workload("ticks-with-reads", "N MS FILE", tick_waits::with_reads,
        "The same as ticks-with-replies, but it reads 256 KiB of FILE, which is not in the page \
        cache, in place of the wait; prints also how often it waited."),
    workload("timeouts", "N MS", tasks::timeouts,
        "Waits N times for 3 ms in poll; after each wait, works MS ms, calls a poll that does not \
        wait, and works MS ms again."),
    workload("read-keys", "DEVICE N", tasks::read_keys,
        "Reads events of an input device until N keys were pressed."),
    workload("replies", "N", tasks::replies,
        "Connects N times over TCP and receives a reply each time; prints the port of the server."),
    workload("orphaned-tasks", "N", tasks::orphaned_tasks,
        "Starts own-tasks N 0 and ends without waiting for it."),
    workload("exec-in-task", "N", tasks::exec_in_task,
        "Begins a task, and executes chained-tasks N without ending it."),
    workload("worked-messages", "N MS [--port PORT]", tasks::worked_messages,
        "Sends N messages over TCP to a thread that works MS ms for each; prints its port."),
    workload("slowed-tasks", "N PERIOD_MS DEADLINE_MS SEED", slowed_tasks::slowed_tasks,
        "Begins and ends N tasks, each with work for an emulated processor at its present speed; \
        prints how many met the deadline, and the nanoseconds at each speed, the fastest first."),
    workload("long-task", "N DEADLINE_MS", odd_tasks::long_task,
        "After N tasks on an emulated processor, runs one with three times the work; prints its \
        speed in MHz during most of the first third of the others' work, its speed at the end, \
        and its time divided by the deadline."),
    workload("waiting-task", "N DEADLINE_MS", odd_tasks::waiting_task,
        "The same, but the last task sleeps for a quarter of the deadline."),
    workload("urgent-task", "N DEADLINE_MS", odd_tasks::urgent_task,
        "The same, but the deadline of the last task is moved forwards during it."),
    workload("tasks-beside", "N DEADLINE_MS", odd_tasks::tasks_beside,
        "After N tasks, runs one on each of two emulated processors at the same time; prints the \
        speeds of both."),
    workload("tasks-overlap", "N", odd_tasks::tasks_overlap,
        "After N tasks, begins one on an emulated processor, and another one during it; prints the \
        speed in MHz with one, with two, and after the second one."),
    workload("forgotten-task", "MS", slowed_tasks::forgotten_task,
        "Begins a task, and sleeps MS ms without ending it."),
    workload("busy-pairs", "MS", slowed_tasks::busy_pairs,
        "On each processor, lets two threads wake each other in turn for MS ms."),
    workload("load-module", "FILE", slowed_tasks::load_module,
        "Loads a kernel module."),
    workload("inherited", "", inherited::inherited,
        "Prints which signals it ignores, its limits, and whether it has a timer."),
    workload("exit", "N", outcomes::exit,
        "Exits with status N."),
    workload("kill-self", "SIG", signals::kill_self,
        "Sends itself the signal with number SIG, at its default action; exits 0 if it survives."),
    workload("trace-me", "", signals::trace_me,
        "Has its parent trace it, sends itself SIGWINCH, and executes calls 7."),
];

pub fn help() -> String {
    let mut help = String::from(
        "Programs with known system-call behaviour, for tests.\n\n\
         Usage: workloads SUB-COMMAND [ARGUMENT]...\n\n\
         The number of calls of each kind is the same in every run, unless noted. Exit status:\n\
         0, or 2 for wrong arguments, or 1 if something else went wrong.\n",
    );
    for workload in WORKLOADS {
        let Workload { name, arguments, about, .. } = workload;
        let usage = format!("{name} {arguments}");
        help += &format!("\n  {}\n      {about}\n", usage.trim_end());
    }
    help
}
