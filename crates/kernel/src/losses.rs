//! The losses of a session: its own, and some of those of sessions that took tasks over from it.

use std::collections::BTreeSet;

use libbpf_rs::{MapCore as _, MapFlags};
use zerocopy::IntoBytes as _;

use crate::cpus;
use crate::error::{ErrorContext, Result};
use crate::gate::{Gate, sum_over_cpus};
use crate::mapped_array::field;
use crate::rows::session_rows;
use crate::wire;

/// The number of losses for each reason, in the order of [`LOSS_REASONS`].
pub type LossCounters = [u64; wire::LOSSES as usize];

/// The sessions whose statistics a loss affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LossReach {
    /// Also the sessions from which the tasks were taken over.
    Shared,
    /// Also those of them that have a lens.
    Lens,
    /// Only the session that counts it.
    Session,
}

/// Why something could not be counted or recorded: a line of `bpf/wire/losses.h`.
#[derive(Debug)]
pub struct LossReason {
    reach: LossReach,
    /// The reason as reports have it.
    pub text: &'static str,
}

/// All reasons, in the order of `wire::loss`.
pub const LOSS_REASONS: [LossReason; wire::LOSSES as usize] =
    include!(concat!(env!("OUT_DIR"), "/losses.rs"));

fn key(session: u32, reason: usize) -> u32 {
    session * wire::LOSSES + reason as u32
}

fn add_shared(sums: &mut LossCounters, more: &LossCounters) {
    for ((sum, n), reason) in sums.iter_mut().zip(more).zip(&LOSS_REASONS) {
        if reason.reach != LossReach::Session {
            *sum += n;
        }
    }
}

impl Gate {
    /// The losses since the session began that affect its statistics.
    pub fn losses(&self, session: u32) -> Result<LossCounters> {
        let mut sums = self.own_and_shared_losses(session)?;
        if self.sessions.read(session).mask & wire::LENS == 0 {
            let own = self.own_losses(session)?;
            for ((sum, n), reason) in sums.iter_mut().zip(own).zip(&LOSS_REASONS) {
                if reason.reach == LossReach::Lens {
                    *sum = n;
                }
            }
        }
        Ok(sums)
    }

    fn own_and_shared_losses(&self, session: u32) -> Result<LossCounters> {
        let mut sums = self.own_losses(session)?;
        add_shared(&mut sums, &self.sessions.read(session).inherited_losses);
        add_shared(&mut sums, &self.inner_losses(session)?);
        Ok(sums)
    }

    /// The losses of the sessions that have taken tasks over from this one.
    fn inner_losses(&self, session: u32) -> Result<LossCounters> {
        let mut sums = LossCounters::default();
        let takers: BTreeSet<_> =
            session_rows(self, session).iter().map(|row| self.rows.read(*row).session).collect();
        for taker in takers.into_iter().filter(|taker| *taker != session) {
            add_shared(&mut sums, &self.own_losses(taker)?);
            add_shared(&mut sums, &self.sessions.read(taker).inherited_losses);
        }
        Ok(sums)
    }

    /// Keeps the losses of the sessions that have taken tasks over from this one, which is about
    /// to be detached. What they lose from then on does not concern it.
    pub(crate) fn keep_inner_losses(&self, session: u32) -> Result<()> {
        let more = self.inner_losses(session)?;
        let mut sums = self.sessions.read(session).inherited_losses;
        add_shared(&mut sums, &more);
        field!(self.sessions, session, inherited_losses).write(sums);
        Ok(())
    }

    fn own_losses(&self, session: u32) -> Result<LossCounters> {
        let mut sums = LossCounters::default();
        for (reason, sum) in sums.iter_mut().enumerate() {
            *sum = sum_over_cpus(self.maps.get("losses"), key(session, reason))?;
        }
        Ok(sums)
    }

    /// The threads of the session itself that could not be gated, because the table was full.
    pub fn threads_not_gated(&self, session: u32) -> Result<u64> {
        let key = key(session, wire::LOSS_THREADS_FULL as usize);
        sum_over_cpus(self.maps.get("losses"), key)
    }

    /// Clears the losses of earlier sessions of this number, when a session begins.
    pub(crate) fn clear_losses(&self, session: u32) -> Result<()> {
        let zero = vec![0_u64.as_bytes().to_vec(); cpus::possible()];
        for reason in 0..wire::LOSSES as usize {
            let map = self.maps.get("losses");
            let key = key(session, reason).to_ne_bytes();
            map.update_percpu(&key, &zero, MapFlags::ANY).doing("clearing the counts of losses")?;
        }
        Ok(())
    }

    /// Adds a session's losses to those of its parent sessions, when it ends before them.
    pub(crate) fn hand_over_losses(&self, session: u32) -> Result<()> {
        let losses = self.own_and_shared_losses(session)?;
        for parent in self.parent_sessions(session) {
            let mut sums = self.sessions.read(parent).inherited_losses;
            add_shared(&mut sums, &losses);
            // Only the process that has the lock writes this field.
            field!(self.sessions, parent, inherited_losses).write(sums);
        }
        Ok(())
    }
}
