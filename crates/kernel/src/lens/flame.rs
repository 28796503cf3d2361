//! Timers that sample what the processors do in the kernel.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

use libbpf_rs::Link;

use crate::cpus;
use crate::error::{ErrorContext as _, Result};
use crate::gate::{Gate, TimerProgram};
use crate::wire;

/// The shortest period of a timer: a sample takes some microseconds of it.
const MIN_PERIOD_NS: u64 = 1_000_000;

/// The part of `struct perf_event_attr` that all kernels have (include/uapi/linux/perf_event.h,
/// `PERF_ATTR_SIZE_VER0`).
#[repr(C)]
struct EventAttributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config_1: u64,
}

const PERF_TYPE_SOFTWARE: u32 = 1;
/// A timer of the kernel. Unlike the counters of the processor, virtual machines have it.
const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
/// The bits of `exclude_user`, `exclude_hv` and `exclude_idle`: the timer only counts while the
/// kernel works for a task.
const ONLY_KERNEL: u64 = 1 << 4 | 1 << 6 | 1 << 7;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;

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
        let mut links = Vec::new();
        for cpu in online {
            match open_timer(cpu, period) {
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

fn open_timer(cpu: usize, period_ns: u64) -> io::Result<OwnedFd> {
    let attributes = EventAttributes {
        kind: PERF_TYPE_SOFTWARE,
        size: size_of::<EventAttributes>() as u32,
        config: PERF_COUNT_SW_CPU_CLOCK,
        sample_period: period_ns,
        sample_type: 0,
        read_format: 0,
        flags: ONLY_KERNEL,
        wakeup_events: 0,
        breakpoint_type: 0,
        config_1: 0,
    };
    let (all_tasks, no_group): (libc::pid_t, libc::c_int) = (-1, -1);
    // SAFETY: the structure has the size that it names, and the kernel only reads it.
    let event = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            all_tasks,
            cpu as libc::c_int,
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if event < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that only this process owns.
    Ok(unsafe { OwnedFd::from_raw_fd(event as i32) })
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
