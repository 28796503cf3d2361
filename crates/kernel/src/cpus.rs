//! Pins threads to processors, and waits for what runs on processors.

use std::time::Duration;
use std::{mem, thread};

/// Makes every processor that this thread may use switch tasks once, so that each records the task
/// that runs on it.
///
/// The gate finds a thread by what `sched_switch` recorded. A thread that is attached while it runs
/// is not seen until it is switched in again. So this thread runs on each processor once, which
/// interrupts the thread there. Returns how many processors are online but could not be visited
/// (because of cpusets, or because they are isolated).
pub(crate) fn visit_all() -> u32 {
    // SAFETY: an all-zero cpu_set_t is an empty set.
    let mut before: libc::cpu_set_t = unsafe { mem::zeroed() };
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: `before` is a valid destination for the result.
    unsafe { libc::sched_getaffinity(0, size, &mut before) };
    let missed = online().into_iter().filter(|cpu| !run_on(*cpu)).count() as u32;
    // SAFETY: restores the set read above.
    unsafe { libc::sched_setaffinity(0, size, &before) };
    missed
}

/// The processors that are online.
pub(crate) fn online() -> Vec<usize> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    parse_cpu_list(&online).collect()
}

/// The numbers of a list such as "0-3,8".
pub(crate) fn parse_cpu_list(list: &str) -> impl Iterator<Item = usize> {
    list.trim()
        .split(',')
        .filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(first.parse().ok()?..=last.parse().ok()?)
        })
        .flatten()
}

/// Pins the calling thread to one processor. Returns false if it is not allowed there.
pub fn run_on(cpu: usize) -> bool {
    run_on_any(&[cpu])
}

/// How long to wait if membarrier(2) fails. By the end of this time, the BPF programs that ran at
/// its start have ended.
const FALLBACK_WAIT: Duration = Duration::from_millis(50);

/// The processors that the calling thread may use.
pub fn allowed() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is an empty set, and a valid destination for the result;
    // CPU_ISSET stays in bounds.
    unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &set)).collect()
    }
}

/// Pins the calling thread to a set of processors. Returns false if it is allowed on none of them.
pub fn run_on_any(cpus: &[usize]) -> bool {
    // SAFETY: an all-zero cpu_set_t is an empty set; CPU_SET stays in bounds for cpu < CPU_SETSIZE.
    unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        for cpu in cpus.iter().filter(|cpu| **cpu < libc::CPU_SETSIZE as usize) {
            libc::CPU_SET(*cpu, &mut set);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) == 0
    }
}

/// Waits until every BPF program that runs now has ended, on all processors.
pub fn wait_for_all() {
    // linux/membarrier.h. GLOBAL waits for an RCU grace period, which BPF programs delay.
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: takes two numbers.
    let waited = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) } == 0;
    // The call is refused by some seccomp filters, and on kernels with nohz_full processors (v6.18
    // kernel/sched/membarrier.c).
    if !waited {
        thread::sleep(FALLBACK_WAIT);
    }
}

/// The processor on which this thread runs.
pub fn current() -> usize {
    // SAFETY: a plain query.
    unsafe { libc::sched_getcpu() }.max(0) as usize
}

/// The number of processors for which per-CPU maps have values.
pub fn possible() -> usize {
    libbpf_rs::num_possible_cpus().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_ranges_and_numbers() {
        assert_eq!(parse_cpu_list("0-2,5\n").collect::<Vec<_>>(), [0, 1, 2, 5]);
        assert_eq!(parse_cpu_list("").count(), 0);
    }
}
