//! CPU time of the whole machine.

use std::fs;

/// Nanoseconds since boot, of all processors together, without idle and stolen time; 0 if unknown.
pub fn busy_ns() -> u64 {
    of(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

/// proc(5): the ticks of the first line are user, nice, system, idle, iowait, irq, softirq and so
/// on.
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
    [0, 1, 2, 5, 6].into_iter().filter_map(|place| ticks.get(place)).sum::<u64>() * TICK_NS
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
