//! Which processor a process runs on, and which processes run before others.

use std::fs;
use std::path::Path;

fn threads(pid: u32) -> impl Iterator<Item = i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    threads.flatten().filter_map(|thread| thread.file_name().to_str()?.parse().ok())
}

fn has_ended(thread: i32) -> bool {
    !Path::new(&format!("/proc/{thread}")).exists()
}

/// Keeps a process on one processor: the threads that it has, and those that these start.
pub fn pin(pid: u32, processor: usize) {
    for thread in threads(pid) {
        // SAFETY: a valid set of processors.
        let pinned = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(processor, &mut set);
            libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &set)
        };
        assert!(pinned == 0 || has_ended(thread), "processor {processor} is there");
    }
}

/// Gives all threads of a process a real-time priority (sched(7)): only threads of a higher one preempt
/// it.
pub fn run_first(pid: u32, priority: i32) {
    let parameter = libc::sched_param { sched_priority: priority };
    for thread in threads(pid) {
        // SAFETY: a valid parameter.
        let is_set = unsafe { libc::sched_setscheduler(thread, libc::SCHED_FIFO, &parameter) };
        assert!(is_set == 0 || has_ended(thread), "root may give {thread} a real-time priority");
    }
}

/// How often the first thread of a process lost its processor while it could go on.
pub fn preemptions(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    line.and_then(|number| number.trim().parse().ok()).expect("the kernel counts them")
}
