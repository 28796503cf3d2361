//! Reads the gate's clock, and the CPU time of threads.

use std::time::{Duration, SystemTime};

/// The present time of CLOCK_MONOTONIC, in nanoseconds. The gate's programs read the same clock
/// (`bpf_ktime_get_ns`).
pub fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC).as_nanos() as u64
}

/// The present time of CLOCK_BOOTTIME, in nanoseconds. /proc has the start of each thread by it.
pub(crate) fn boot_ns() -> u64 {
    read(libc::CLOCK_BOOTTIME).as_nanos() as u64
}

/// The time of day that corresponds to a past time of [`now_ns`].
pub fn wall_clock(at_ns: u64) -> SystemTime {
    SystemTime::now() - Duration::from_nanos(now_ns().saturating_sub(at_ns))
}

/// The CPU time that this thread has used.
pub fn thread_time() -> Duration {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid destination for the result.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
