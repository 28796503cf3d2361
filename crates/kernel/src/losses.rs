//! A session's losses: its own, and those of sessions that took tasks over from it.

use std::collections::BTreeSet;

use libbpf_rs::{MapCore as _, MapFlags};
use zerocopy::IntoBytes as _;

use crate::cpus;
use crate::error::{ErrorContext, Result};
use crate::gate::{Gate, sum_over_cpus};
use crate::mapped_array::field;
use crate::rows::session_rows;
use crate::wire;

/// Counts in the order of [`LOSS_REASONS`].
pub type LossCounters = [u64; wire::LOSSES as usize];

/// Whose statistics a loss affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossReach {
    /// Also those of the sessions that the tasks came from.
    Shared,
    /// Only those of the session that counts it.
    Session,
}

/// Why something could not be recorded: a line of `bpf/wire/losses.h`.
#[derive(Debug)]
pub struct LossReason {
    pub reach: LossReach,
    /// As reports name it.
    pub text: &'static str,
}

/// In the order of `wire::loss`.
pub const LOSS_REASONS: [LossReason; wire::LOSSES as usize] =
    include!(concat!(env!("OUT_DIR"), "/losses.rs"));

fn key(session: u32, reason: usize) -> u32 {
    session * wire::LOSSES + reason as u32
}

fn add_shared(sums: &mut LossCounters, more: &LossCounters) {
    for ((sum, n), reason) in sums.iter_mut().zip(more).zip(&LOSS_REASONS) {
        if reason.reach == LossReach::Shared {
            *sum += n;
        }
    }
}

impl Gate {
    /// A session's losses since it began.
    pub fn losses(&self, session: u32) -> Result<LossCounters> {
        let mut sums = self.own_losses(session)?;
        add_shared(&mut sums, &self.sessions.read(session).inherited_losses);
        let takers: BTreeSet<_> = session_rows(self, session)
            .iter()
            .map(|group| self.groups.read(*group).session)
            .collect();
        for taker in takers.into_iter().filter(|taker| *taker != session) {
            add_shared(&mut sums, &self.own_losses(taker)?);
            add_shared(&mut sums, &self.sessions.read(taker).inherited_losses);
        }
        Ok(sums)
    }

    fn own_losses(&self, session: u32) -> Result<LossCounters> {
        let mut sums = LossCounters::default();
        for (reason, sum) in sums.iter_mut().enumerate() {
            *sum = sum_over_cpus(self.maps.get("losses"), key(session, reason))?;
        }
        Ok(sums)
    }

    /// Clears what earlier sessions of this number lost, when a session begins.
    pub(crate) fn clear_losses(&self, session: u32) -> Result<()> {
        let zero = vec![0_u64.as_bytes().to_vec(); cpus::possible()];
        for reason in 0..wire::LOSSES as usize {
            let map = self.maps.get("losses");
            let key = key(session, reason).to_ne_bytes();
            map.update_percpu(&key, &zero, MapFlags::ANY).doing("clearing the counts of losses")?;
        }
        Ok(())
    }

    /// When a session ends before those that its tasks came from, hands its losses over to them.
    pub(crate) fn hand_over_losses(&self, session: u32) -> Result<()> {
        let losses = self.losses(session)?;
        for heir in self.parent_sessions(session) {
            let mut sums = self.sessions.read(heir).inherited_losses;
            add_shared(&mut sums, &losses);
            // Only Tollgate processes write it, one at a time (Lock).
            field!(self.sessions, heir, inherited_losses).write(sums);
        }
        Ok(())
    }
}
