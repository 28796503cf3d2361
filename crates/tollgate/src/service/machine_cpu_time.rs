//! CPU time of the whole machine.

use std::fs;

/// The CPU time since boot in nanoseconds, over all processors, without idle and stolen time; 0 if
/// it is unknown.
pub fn busy_ns() -> u64 {
    of(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

/// Adds up ticks of the first line: user, nice, system, idle, iowait, irq, softirq and so on
/// (proc(5)).
fn of(stat: &str) -> u64 {
    const TICK_NS: u64 = 10_000_000;
    let ticks: Vec<u64> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_ascii_whitespace()
        .skip(1)
        .map_while(|word| word.parse().ok())
        .collect();
    [0, 1, 2, 5, 6].into_iter().filter_map(|index| ticks.get(index)).sum::<u64>() * TICK_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_no_work() {
        assert_eq!(of("cpu  1 2 3 1000 1000 4 5 1000 7 8\ncpu0 1 2 3\n"), 15 * 10_000_000);
        assert_eq!(of(""), 0);
    }
}
