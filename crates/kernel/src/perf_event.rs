//! Events of perf on one processor (perf_event_open(2)).

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

/// The types of events that every kernel has (include/uapi/linux/perf_event.h).
pub const PERF_TYPE_HARDWARE: u32 = 0;
/// Events that the kernel counts.
pub const PERF_TYPE_SOFTWARE: u32 = 1;
/// Tracepoints.
pub const PERF_TYPE_TRACEPOINT: u32 = 2;

/// The cycles of a processor, an event of [`PERF_TYPE_HARDWARE`].
pub const PERF_COUNT_HW_CPU_CYCLES: u64 = 0;
/// A timer of the kernel, an event of [`PERF_TYPE_SOFTWARE`]. Unlike the counters of the processor,
/// virtual machines have it.
pub const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;

/// In [`PerfEvent::flags`]: the event always counts, or has an error.
pub const PINNED: u64 = 1 << 2;
/// The bits of `exclude_user`, `exclude_hv` and `exclude_idle`: the event only counts while the
/// kernel works for a task.
pub const ONLY_KERNEL: u64 = 1 << 4 | 1 << 6 | 1 << 7;

const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;

/// An event that counts for all tasks of a processor.
#[derive(Debug, Clone, Copy, Default)]
pub struct PerfEvent {
    /// The type, as the kernel numbers it.
    pub kind: u32,
    /// Which event of the type.
    pub config: u64,
    /// A sample is taken after so many counts; 0: never.
    pub sample_period: u64,
    /// The bits above.
    pub flags: u64,
}

/// The part of `struct perf_event_attr` that all kernels have (include/uapi/linux/perf_event.h,
/// `PERF_ATTR_SIZE_VER0`).
#[repr(C)]
struct Attributes {
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

impl PerfEvent {
    /// Opens the event on a processor.
    ///
    /// # Errors
    /// What perf_event_open(2) returns: `ENOENT` if the machine does not have the event, `ENODEV`
    /// if the processor is offline.
    pub fn open(&self, cpu: u32) -> io::Result<OwnedFd> {
        let attributes = Attributes {
            kind: self.kind,
            size: size_of::<Attributes>() as u32,
            config: self.config,
            sample_period: self.sample_period,
            sample_type: 0,
            read_format: 0,
            flags: self.flags,
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
}
