//! Threads that the kernel side wants in other control groups.

use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use libbpf_rs::{MapCore as _, MapHandle};
use zerocopy::FromBytes as _;

use crate::clock::now_ns;
use crate::error::{ErrorContext as _, Result};
use crate::gate::Gate;
use crate::mapped_array::{MappedArray, atomic_field};
use crate::ring::RingReader;
use crate::wire;

/// Their ring buffer, for one thread to read.
pub struct MigrationSource {
    ring: MapHandle,
    members: MappedArray<wire::service_member>,
}

/// How long a thread sleeps after a reply before it returns from its service's control group: one
/// millisecond, the resolution of [`Migrations::wait`].
pub const RETURN_DELAY: Duration = Duration::from_millis(1);

/// What to do with a thread that may return from its control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReturnDecision {
    Now,
    /// It has not slept for long enough.
    Later,
    /// It works again, or has ended.
    Never,
}

/// Read by the thread that made it.
pub struct Migrations {
    reader: RingReader,
    members: MappedArray<wire::service_member>,
}

impl MigrationSource {
    pub fn new(gate: &Gate) -> Result<Self> {
        let id = gate.maps.get("service_migrations").info().doing("numbering its maps")?.info.id;
        Ok(Self {
            ring: MapHandle::from_map_id(id).doing("opening the gate's maps")?,
            members: MappedArray::new(gate.maps.get(".bss.members"), wire::THREADS)?,
        })
    }
}

impl Migrations {
    pub fn new(source: MigrationSource) -> Result<Self> {
        let reader = RingReader::new(&source.ring, "opening the buffer of threads to be moved")?;
        Ok(Self { reader, members: source.members })
    }

    /// The requests that have arrived, once there are some or the time is over.
    pub fn wait(&self, longest: Duration) -> Vec<wire::service_migration> {
        let records = self.reader.wait(longest);
        let requests = records.iter().map(|bytes| wire::service_migration::read_from_prefix(bytes));
        requests.filter_map(|request| Some(request.ok()?.0)).collect()
    }

    /// What to do with a thread that may return from its control group.
    pub fn return_decision(&self, placement: &wire::service_migration) -> ReturnDecision {
        let (members, slot) = (&self.members, placement.slot);
        let leaving_began_ns = atomic_field!(members, slot, return_thread_ns);
        let has_answered = atomic_field!(members, slot, has_replied);
        let slept_ns = atomic_field!(members, slot, slept_ns);
        let slept = || Duration::from_nanos(slept_ns.load(Ordering::SeqCst));
        let is_at_work = || has_answered.load(Ordering::SeqCst) == 0 || slept().is_zero();
        let is_due = || slept() + RETURN_DELAY <= Duration::from_nanos(now_ns());
        let change = |from, to| {
            leaving_began_ns.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        // The slot may be another thread's by now.
        if leaving_began_ns.load(Ordering::SeqCst) != placement.began_ns {
            return ReturnDecision::Never;
        }
        if !is_at_work() && !is_due() {
            return ReturnDecision::Later;
        }
        // From here on, the thread makes a new request at its next sleep after a reply.
        if !change(placement.began_ns, 0) {
            return ReturnDecision::Never;
        }
        let placed = self.in_cgroup_of(placement);
        let before = placed.load(Ordering::SeqCst);
        let place = |from, to: u32| {
            placed.compare_exchange(from, to as u16, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        if is_at_work() {
            return ReturnDecision::Never;
        }
        if !is_due() {
            // The thread may have gone to sleep just before the reset, without a new request.
            return if change(0, placement.began_ns) {
                ReturnDecision::Later
            } else {
                ReturnDecision::Never
            };
        }
        if !place(before, wire::SERVICE_ROOT) {
            return ReturnDecision::Never;
        }
        if is_at_work() {
            // The thread may have taken itself for migrated just before: it requests its control
            // group again.
            place(wire::SERVICE_ROOT as u16, wire::CGROUP_UNKNOWN);
            return ReturnDecision::Never;
        }
        ReturnDecision::Now
    }

    fn in_cgroup_of(&self, placement: &wire::service_migration) -> &AtomicU16 {
        atomic_field!(self.members, placement.slot, in_cgroup_of)
    }

    /// Whether nothing else was requested since, and the thread still exists.
    pub fn is_current(&self, placement: &wire::service_migration) -> bool {
        self.in_cgroup_of(placement).load(Ordering::SeqCst) == placement.cgroup_of
    }

    /// Records a failed migration: it is requested again when the service is contended again.
    pub fn defer(&self, placement: &wire::service_migration) {
        let nowhere = wire::CGROUP_UNKNOWN as u16;
        let _ = self.in_cgroup_of(placement).compare_exchange(
            placement.cgroup_of,
            nowhere,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
    }
}
