//! What services and threads have used.

use zerocopy::{FromBytes, IntoBytes, KnownLayout};

use crate::wire;

/// What a service or a thread has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct ServiceUsage {
    /// Time on a processor.
    pub cpu_ns: u64,
    /// Time spent waiting for a processor.
    pub wait_ns: u64,
    /// Time asleep.
    pub blocked_ns: u64,
    /// System calls.
    pub calls: u64,
    /// Voluntary context switches.
    pub switches: u64,
    /// Involuntary context switches.
    pub preemptions: u64,
    /// Page faults without storage access.
    pub minor_faults: u64,
    /// Page faults that had to read from storage.
    pub major_faults: u64,
    /// Bytes that calls have read, from whatever kind of file.
    pub read_bytes: u64,
    /// Bytes that calls have written, to whatever kind of file.
    pub written_bytes: u64,
    /// Bytes that had to be read from storage.
    pub storage_read_bytes: u64,
    /// Bytes that will have to be written to storage.
    pub storage_written_bytes: u64,
    /// Bytes received by sockets.
    pub received_bytes: u64,
    /// Bytes sent by sockets.
    pub sent_bytes: u64,
    /// How often usage was charged.
    pub charges: u64,
    /// Replies to requests of other services, by threads that worked for this one when they
    /// replied.
    pub shared_replies: u64,
}

impl ServiceUsage {
    pub(super) fn new(account: &wire::service_account) -> Self {
        let wire::service_account {
            task,
            present_ns,
            calls,
            received_bytes,
            sent_bytes,
            charges,
            shared_replies,
        } = *account;
        Self {
            cpu_ns: task.cpu_ns,
            wait_ns: task.wait_ns,
            blocked_ns: present_ns.wrapping_sub(task.cpu_ns).wrapping_sub(task.wait_ns),
            calls,
            switches: task.switches,
            preemptions: task.preemptions,
            minor_faults: task.minor_faults,
            major_faults: task.major_faults,
            read_bytes: task.read_bytes,
            written_bytes: task.written_bytes,
            storage_read_bytes: task.storage_read_bytes,
            storage_written_bytes: task.storage_written_bytes,
            received_bytes,
            sent_bytes,
            charges,
            shared_replies,
        }
    }

    fn as_array_mut(&mut self) -> [&mut u64; 16] {
        let values: &mut [u64; 16] = zerocopy::transmute_mut!(self);
        values.each_mut()
    }

    /// Adds usage. A value may be below zero for a moment, as a two's complement. This happens if a
    /// binding changes between two ticks: the thread is then charged by the clock, which may be
    /// ahead of the scheduler's accounting.
    pub fn add(&mut self, mut other: Self) {
        for (sum, more) in self.as_array_mut().into_iter().zip(other.as_array_mut()) {
            *sum = sum.wrapping_add(*more);
        }
    }

    /// Replaces values below zero by zero.
    pub fn non_negative(mut self) -> Self {
        self.as_array_mut()
            .into_iter()
            .filter(|value| **value > i64::MAX as u64)
            .for_each(|value| *value = 0);
        self
    }

    /// Replaces each value that is less than in an earlier report by the value of that report.
    pub fn monotonic_from(mut self, mut earlier: Self) -> Self {
        for (now, earlier) in self.as_array_mut().into_iter().zip(earlier.as_array_mut()) {
            *now = (*now).max(*earlier);
        }
        self
    }
}
