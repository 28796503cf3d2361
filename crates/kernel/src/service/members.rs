//! The threads that work for services: their bindings, and the control groups they are in.

use std::sync::atomic::{AtomicU16, Ordering};

use super::service_maps::{KernelServices, records};
use super::usage::ServiceUsage;
use crate::clock::now_ns;
use crate::error::Result;
use crate::gate::IteratorKind;
use crate::mapped_array::atomic_field;
use crate::wire;

/// A thread, and the service that it works for.
#[derive(Debug, Clone)]
pub struct Member {
    /// The thread, as this process's PID namespace numbers it.
    pub pid: u32,
    /// Its process, numbered likewise.
    pub tgid: u32,
    slot: u32,
    epoch: u16,
    /// When the thread began (CLOCK_BOOTTIME). This distinguishes it from another thread of the
    /// same number.
    pub began_ns: u64,
    /// The thread's name (comm).
    pub command: String,
    /// The service that it works for, or one whose successor it works for.
    pub service: u16,
    /// One of [`wire::service_why`].
    pub why: u8,
    /// One of [`wire::service_binding`].
    pub binding: u8,
    /// The precedence of the rule that decided, if a rule did. It is a rule of `ruleset`.
    pub rule: Option<usize>,
    /// The number of the ruleset by which the binding was decided.
    pub ruleset: u32,
    /// The effective user.
    pub user: u32,
    /// When the thread was bound (CLOCK_MONOTONIC). `None` means: when the ruleset became active.
    pub bound_ns: Option<u64>,
    /// Usage that was not charged yet.
    pub uncharged: ServiceUsage,
    /// The service that `uncharged` will be charged to. It may differ from `service`.
    pub uncharged_for: u16,
}

impl KernelServices {
    /// All members, with their uncharged usage until now.
    pub fn members(&self) -> Result<Vec<Member>> {
        let output = self.iterators.run(IteratorKind::Members)?;
        Ok(records(&output).iter().map(member).collect())
    }

    fn in_cgroup_of(&self, slot: u32) -> &AtomicU16 {
        atomic_field!(self.members, slot, in_cgroup_of)
    }

    /// Migrates a thread to the control group of a service, without a request of the kernel side.
    /// `migrate` does this, and returns whether the thread was migrated. If the kernel side makes a
    /// request meanwhile, that one stays recorded.
    pub fn migrate_with(&self, member: &Member, service: u16, migrate: impl FnOnce() -> bool) {
        let is_unchanged = || self.members.read(member.slot).epoch == member.epoch;
        let previous = self.in_cgroup_of(member.slot).load(Ordering::SeqCst);
        if is_unchanged() && migrate() && is_unchanged() {
            let _ = self.in_cgroup_of(member.slot).compare_exchange(
                previous,
                service,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
        }
    }

    /// Records that all threads are in the cgroups that they came from, except those in the control
    /// groups of services for which `remains` is true.
    pub fn reset_cgroups(&self, remains: impl Fn(u16) -> bool) {
        for slot in 1..wire::THREADS {
            let service = self.members.read(slot).in_cgroup_of;
            let is_known =
                service != wire::SERVICE_ROOT as u16 && service != wire::CGROUP_UNKNOWN as u16;
            if is_known && !remains(service) {
                self.in_cgroup_of(slot).store(wire::SERVICE_ROOT as u16, Ordering::SeqCst);
            }
        }
    }

    /// Assigns a thread to a service, from its next call or switch on. Returns `false` if the
    /// member has changed, because its slot may belong to another thread by now.
    pub fn assign(&self, member: &Member, service: u16) -> bool {
        if self.members.read(member.slot).epoch != member.epoch {
            return false;
        }
        let message = u64::from(wire::MESSAGE_ASSIGN)
            | u64::from(service) << wire::MESSAGE_SERVICE_SHIFT
            | (now_ns() / 1_000_000) << wire::MESSAGE_VALUE_SHIFT;
        atomic_field!(self.members, member.slot, message).store(message, Ordering::SeqCst);
        true
    }
}

fn member(record: &wire::service_member_record) -> Member {
    Member {
        pid: record.pid,
        tgid: record.tgid,
        slot: record.slot,
        epoch: record.epoch,
        began_ns: record.began_ns,
        command: wire::text(&record.comm),
        service: record.service,
        why: record.why,
        binding: record.binding,
        rule: (record.rule as usize).checked_sub(1),
        ruleset: record.ruleset,
        user: record.user,
        bound_ns: (record.bound_ns != 0).then_some(record.bound_ns),
        uncharged: ServiceUsage::new(&record.since),
        uncharged_for: record.used_for,
    }
}
