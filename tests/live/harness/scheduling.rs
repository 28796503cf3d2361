//! Which processor a process runs on, which processes run before others, and when none runs.

use std::fs;
use std::ops::RangeInclusive;

use super::job::{is_running, threads_of};

/// Applies a change to each thread of a process. A thread may end meanwhile.
#[track_caller]
fn for_each_thread(pid: u32, what: &str, change: impl Fn(i32) -> i32) {
    let threads = threads_of(pid);
    assert!(!threads.is_empty(), "{pid} has ended");
    for thread in threads {
        assert!(change(thread as i32) == 0 || !is_running(thread), "{what} of thread {thread}");
    }
}

/// Keeps a process on one processor: its threads, and those that they start.
#[track_caller]
pub fn pin(pid: u32, processor: usize) {
    for_each_thread(pid, "the processor", |thread| {
        // SAFETY: a valid set of processors.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(processor, &mut set);
            libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &set)
        }
    });
}

/// Gives all threads of a process a real-time priority (sched(7)): only threads of a higher one
/// preempt it.
#[track_caller]
pub fn run_first(pid: u32, priority: i32) {
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: a valid parameter.
    let set = |thread| unsafe { libc::sched_setscheduler(thread, libc::SCHED_FIFO, &parameter) };
    for_each_thread(pid, "the priority", set);
}

/// How often the first thread of a process was preempted.
pub fn preemptions(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    line.and_then(|number| number.trim().parse().ok()).expect("the kernel counts them")
}

/// The time so far, in ns, in these columns of the first line of /proc/stat (proc(5)), which has
/// ticks.
fn stat_ns(columns: RangeInclusive<usize>) -> u64 {
    let stat = fs::read_to_string("/proc/stat").expect("/proc is mounted");
    let (first, number) = (*columns.start(), columns.count());
    let ticks = stat.split_whitespace().skip(first).take(number);
    ticks.map(|ticks| ticks.parse::<u64>().expect("a number")).sum::<u64>() * tick_ns()
}

/// The time so far, in ns, in which the host ran something else than this virtual machine.
pub fn stolen_ns() -> u64 {
    stat_ns(8..=8)
}

/// The same, and that of interrupts: what the CPU clocks of threads do not include.
pub fn unaccounted_ns() -> u64 {
    stat_ns(6..=8)
}

/// The length of the kernel's ticks in user space, in ns.
pub fn tick_ns() -> u64 {
    // SAFETY: takes a number.
    1_000_000_000 / unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as u64
}
