//! Reads the gate's clock, and the CPU time of threads.

use std::fs;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

/// The present time of CLOCK_MONOTONIC, in nanoseconds. The gate's programs read the same clock
/// (`bpf_ktime_get_ns`), also if this process is in a time namespace.
pub fn now_ns() -> u64 {
    let own = read(libc::CLOCK_MONOTONIC).as_nanos() as i128;
    (own - own_offset_ns()) as u64
}

/// What this process's time namespace adds to CLOCK_MONOTONIC.
fn own_offset_ns() -> i128 {
    static OFFSET: OnceLock<i128> = OnceLock::new();
    // The file has the offsets for children, which are those of this process since its execve
    // (time_namespaces(7)). Kernels without time namespaces do not have the file.
    *OFFSET.get_or_init(|| {
        let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        parse_offset(&offsets).unwrap_or_default()
    })
}

/// The offset of CLOCK_MONOTONIC in a line "monotonic SECONDS NANOSECONDS".
fn parse_offset(offsets: &str) -> Option<i128> {
    let line = offsets.lines().find_map(|line| line.strip_prefix("monotonic"))?;
    let mut numbers = line.split_whitespace().map(|number| number.parse().ok());
    let seconds: i128 = numbers.next()??;
    let nanoseconds: i128 = numbers.next()??;
    Some(seconds * 1_000_000_000 + nanoseconds)
}

/// The present time of CLOCK_BOOTTIME, in nanoseconds. /proc has the start of each thread by it.
pub fn boot_ns() -> u64 {
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

/// The time between two ticks of the kernel, at which it may count processor time. The coarse
/// clocks advance with the ticks (v6.18 kernel/time/posix-timers.c).
pub fn tick_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid destination for the result.
    unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &mut time) };
    time.tv_nsec as u64
}

fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid destination for the result.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_of_a_time_namespace_may_be_negative() {
        let offsets =
            "monotonic           100000         5\nboottime                 0         0\n";
        assert_eq!(parse_offset(offsets), Some(100_000_000_000_005));
        assert_eq!(parse_offset("monotonic -2 500000000\n"), Some(-1_500_000_000));
        assert_eq!(parse_offset("boottime 1 0\n"), None);
    }
}
