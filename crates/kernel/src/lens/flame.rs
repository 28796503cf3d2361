//! Timers that sample what the processors do in the kernel.

use libbpf_rs::Link;

use crate::cpus;
use crate::error::{ErrorContext as _, Result};
use crate::gate::{Gate, TimerProgram};
use crate::perf_event::{ONLY_KERNEL, PERF_COUNT_SW_CPU_CLOCK, PERF_TYPE_SOFTWARE, PerfEvent};
use crate::wire;

/// The shortest period of a timer: a sample takes some microseconds of it.
const MIN_PERIOD_NS: u64 = 1_000_000;

/// Samples the processor time of a session's threads in calls, until it is dropped.
pub struct CpuSampler {
    /// Before the program, because the links use it.
    _links: Vec<Link>,
    _program: TimerProgram,
    /// The time that a sample stands for.
    pub period_ns: u64,
}

/// The time between two samples of a processor. All processors together have at most `FLAME_RATE`
/// samples a second.
fn period_ns(processors: usize) -> u64 {
    (processors as u64 * 1_000_000_000 / u64::from(wire::FLAME_RATE)).max(MIN_PERIOD_NS)
}

impl CpuSampler {
    /// Starts a timer on each processor that is online.
    pub fn start(gate: &Gate, session: u32) -> Result<Self> {
        let program = gate.load_timer()?;
        let online = cpus::online();
        let period = period_ns(online.len());
        let timer = PerfEvent {
            kind: PERF_TYPE_SOFTWARE,
            config: PERF_COUNT_SW_CPU_CLOCK,
            sample_period: period,
            flags: ONLY_KERNEL,
        };
        let mut links = Vec::new();
        for cpu in online {
            match timer.open(cpu as u32) {
                Ok(event) => links.push(program.attach(event, session)?),
                // The processor went offline.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                failed => {
                    failed.doing("start a timer of a processor")?;
                }
            }
        }
        Ok(Self { _links: links, _program: program, period_ns: period })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_processors_together_have_a_limit() {
        assert_eq!(period_ns(1), 1_000_000);
        assert_eq!(period_ns(2), 1_000_000);
        let period = period_ns(128);
        assert_eq!(128 * 1_000_000_000 / period, u64::from(wire::FLAME_RATE));
    }
}
