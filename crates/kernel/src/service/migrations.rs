//! Migrations of threads: those that the kernel side requests, and returns from control groups.

use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use libbpf_rs::MapHandle;
use zerocopy::FromBytes as _;

use crate::clock::now_ns;
use crate::error::{ErrorContext as _, Result};
use crate::gate::Gate;
use crate::mapped_array::{MappedArray, atomic_field};
use crate::ring::RingReader;
use crate::wire;

/// The requests' ring buffer, to be given to the thread that makes a [`Migrations`] of it.
pub struct MigrationSource {
    ring: MapHandle,
    members: MappedArray<wire::service_member>,
}

/// How long a thread sleeps after a reply before it returns from its service's control group: one
/// millisecond, the resolution of [`Migrations::wait`].
pub const RETURN_DELAY: Duration = Duration::from_millis(1);

/// What to do with a thread that may return from its service's control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReturnDecision {
    /// Migrate it to the cgroup that it came from. The record of its cgroup says already that it is
    /// there.
    Now,
    /// Check it again, because it has not slept for long enough.
    Later,
    /// Discard the request, because the thread works again, has another request or has ended.
    Never,
}

/// The reader of requests. Only one thread can use it.
pub struct Migrations {
    reader: RingReader,
    /// By thread slot.
    members: MappedArray<wire::service_member>,
}

impl MigrationSource {
    /// Opens the gate's ring buffer. It must have only one reader at a time.
    pub fn new(gate: &Gate) -> Result<Self> {
        let id = gate.maps.id("service_migrations")?;
        Ok(Self {
            ring: MapHandle::from_map_id(id).doing("opening the gate's maps")?,
            members: MappedArray::new(gate.maps.get(".bss.members"), wire::THREADS)?,
        })
    }
}

impl Migrations {
    /// Prepares the ring buffer for reading by the calling thread.
    pub fn new(source: MigrationSource) -> Result<Self> {
        let reader = RingReader::new(&source.ring, "opening the buffer of migration requests")?;
        Ok(Self { reader, members: source.members })
    }

    /// Waits for requests, but at most for `timeout`. Returns those that have arrived.
    pub fn wait(&self, timeout: Duration) -> Vec<wire::service_migration> {
        let records = self.reader.wait(timeout);
        let requests = records.iter().map(|bytes| wire::service_migration::read_from_prefix(bytes));
        requests.filter_map(|request| Some(request.ok()?.0)).collect()
    }

    /// What to do with a thread that has requested its return. The thread may reply, receive or
    /// sleep again at any time while this decides.
    pub fn return_decision(&self, request: &wire::service_migration) -> ReturnDecision {
        let (members, slot) = (&self.members, request.slot);
        let requesting_thread_ns = atomic_field!(members, slot, return_thread_ns);
        let has_replied = atomic_field!(members, slot, has_replied);
        let slept_ns = atomic_field!(members, slot, slept_ns);
        let slept = || Duration::from_nanos(slept_ns.load(Ordering::SeqCst));
        let is_at_work = || has_replied.load(Ordering::SeqCst) == 0 || slept().is_zero();
        let is_due = || slept() + RETURN_DELAY <= Duration::from_nanos(now_ns());
        let replace_request = |from, to| {
            requesting_thread_ns
                .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
        };
        // The slot may be another thread's by now.
        if requesting_thread_ns.load(Ordering::SeqCst) != request.began_ns {
            return ReturnDecision::Never;
        }
        if !is_at_work() && !is_due() {
            return ReturnDecision::Later;
        }
        // From here on, the thread makes a new request at its next sleep after a reply.
        if !replace_request(request.began_ns, 0) {
            return ReturnDecision::Never;
        }
        let in_cgroup_of = self.in_cgroup_of(request);
        let previous = in_cgroup_of.load(Ordering::SeqCst);
        let record_cgroup = |from, to: u32| {
            in_cgroup_of
                .compare_exchange(from, to as u16, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
        };
        if is_at_work() {
            return ReturnDecision::Never;
        }
        if !is_due() {
            // The thread may have gone to sleep just before the request was removed, and has then
            // not made a new one.
            return if replace_request(0, request.began_ns) {
                ReturnDecision::Later
            } else {
                ReturnDecision::Never
            };
        }
        if !record_cgroup(previous, wire::SERVICE_ROOT) {
            return ReturnDecision::Never;
        }
        if is_at_work() {
            // The thread may have read, just before, that it was in its service's control group. If
            // its cgroup is recorded as unknown, it requests a migration to that group again.
            record_cgroup(wire::SERVICE_ROOT as u16, wire::CGROUP_UNKNOWN);
            return ReturnDecision::Never;
        }
        ReturnDecision::Now
    }

    fn in_cgroup_of(&self, request: &wire::service_migration) -> &AtomicU16 {
        atomic_field!(self.members, request.slot, in_cgroup_of)
    }

    /// Whether the request is the thread's latest one, and the thread still exists.
    pub fn is_current(&self, request: &wire::service_migration) -> bool {
        self.in_cgroup_of(request).load(Ordering::SeqCst) == request.cgroup_of
    }

    /// Records a failed migration. The kernel side requests it again when the service is contended
    /// again.
    pub fn defer(&self, request: &wire::service_migration) {
        let unknown = wire::CGROUP_UNKNOWN as u16;
        let _ = self.in_cgroup_of(request).compare_exchange(
            request.cgroup_of,
            unknown,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
    }
}
