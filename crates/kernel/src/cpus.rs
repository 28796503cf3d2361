//! Visiting processors.

use std::mem;

/// Makes every processor that this thread may use switch tasks once, so that each notes who runs there.
///
/// The gate knows a thread by what `sched_switch` left behind. A thread that is taken in while it runs
/// is not seen until it is switched in again; being interrupted by a visitor does that. Returns how many
/// processors are online but could not be visited (cpusets, isolated processors).
pub fn visit_all() -> u32 {
    // SAFETY: an all-zero cpu_set_t is an empty set.
    let mut before: libc::cpu_set_t = unsafe { mem::zeroed() };
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: `before` is a valid place for the result.
    unsafe { libc::sched_getaffinity(0, size, &mut before) };
    // SAFETY: a plain query.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.max(1) as usize;
    let mut missed = 0;
    for cpu in 0..online {
        missed += u32::from(!run_on(cpu));
    }
    // SAFETY: restores the set read above.
    unsafe { libc::sched_setaffinity(0, size, &before) };
    missed
}

/// Pins the calling thread to one processor; false: not allowed there.
pub fn run_on(cpu: usize) -> bool {
    // SAFETY: an all-zero cpu_set_t is an empty set; CPU_SET stays in bounds for cpu < CPU_SETSIZE.
    unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        if cpu >= libc::CPU_SETSIZE as usize {
            return false;
        }
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) == 0
    }
}

/// Waits until every processor has left the BPF programs it was in.
pub fn wait_for_all() {
    // linux/membarrier.h; GLOBAL waits for an RCU grace period, which BPF programs delay.
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: takes two numbers. Where a filter refuses it, what is in flight counts a moment later.
    unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
}

/// The processor this thread runs on.
pub fn current() -> usize {
    // SAFETY: a plain query.
    unsafe { libc::sched_getcpu() }.max(0) as usize
}

/// How many processors the per-CPU maps have values for.
pub fn possible() -> usize {
    libbpf_rs::num_possible_cpus().unwrap_or(1)
}
