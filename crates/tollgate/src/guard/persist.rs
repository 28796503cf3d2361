//! Stores the baselines of tracked programs, loads what others have stored, and evicts profiles
//! that no process uses. Baselines are stored every minute if they have changed, when their
//! profiles are evicted, before a transition or an import, at a request, and when the session ends.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use kernel::gate::{Gate, Lock};
use kernel::guard::profile_table::ProfileTable;
use kernel::wire;

use super::activity::Activity;
use super::baseline::{Baseline, BaselineId};
use super::clock::unix_now;
use super::import::add;
use super::program_table::ProgramTable;
use super::store::{LockedStore, Store};
use super::tracked_program::TrackedProgram;
use super::transitions::{self, Transition, TransitionResult};
use crate::output::print_message;

/// Which programs are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SaveScope {
    /// Those that have made calls since they were last stored.
    Active,
    /// Those that have learned something or changed their state since they were last stored.
    Changed,
}

impl ProgramTable {
    /// Stores baselines. Tries all programs and returns the first failure. Afterwards, the guard
    /// also uses what other Tollgate processes have stored meanwhile.
    pub fn save(&mut self, gate: &Gate, which: SaveScope) -> Result<()> {
        let store = self.store.clone();
        let lock = store.lock()?;
        let slots: Vec<_> = self.programs.keys().copied().collect();
        let mut result = Ok(());
        for slot in slots {
            let Some((program, _)) = self.programs.get_mut(&slot) else { continue };
            result = result.and(save(&lock, program, &self.policy.wire, which));
            if program.in_store.has_more {
                let was_normal = program.profile.state() == wire::GUARD_NORMAL;
                let identity = program.identity();
                result =
                    result.and(identity.map_or(Ok(()), |identity| self.reload(gate, &identity)));
                self.log_learning_state(slot, was_normal);
            }
        }
        result
    }

    fn log_learning_state(&self, slot: u32, was_normal: bool) {
        let Some((program, _)) = self.programs.get(&slot) else { return };
        if was_normal && program.profile.state() != wire::GUARD_NORMAL {
            let title = program.title();
            let _ = print_message(&format!(
                "tollgate: {title} is in training again and not tested, because another Tollgate \
                process has stored it in that state"
            ));
        }
    }

    /// Stores the baselines at the end of the session. This waits for the lock for the full default
    /// time, because it is the last opportunity.
    pub fn save_at_end(&mut self) -> Result<()> {
        let store = Store::new(&self.policy.store);
        let lock = store.lock()?;
        let mut result = Ok(());
        for (program, _) in self.programs.values_mut() {
            result = result.and(save(&lock, program, &self.policy.wire, SaveScope::Active));
        }
        result
    }

    /// If only a few profiles are left for new programs, or for those of a user, stores programs
    /// that no process runs, and frees at most `MAX_EVICTED` of their profiles. Continues if one
    /// cannot be stored, and returns the first failure.
    pub fn evict_unused(&mut self, gate: &Gate) -> Result<()> {
        /// Several times the number of profiles that are made in advance
        /// ([`wire::GUARD_READY_PROFILES`]).
        const MIN_FREE: usize = 256;
        /// Storing them takes a while, and held processes may have to wait meanwhile.
        const MAX_EVICTED: usize = 32;
        let table = ProfileTable::new(gate);
        table.prune_program_keys()?;
        let is_full = self.programs.len() + MIN_FREE >= wire::GUARD_PROFILES as usize;
        let users = table.crowding_users()?;
        if !is_full && users.is_empty() {
            return Ok(());
        }
        let in_use = table.profiles_in_use();
        let is_unused = |(slot, (program, _)): &(&u32, &mut (TrackedProgram, Activity))| {
            (is_full || users.contains(&program.profile.user()))
                && program.identification.is_final()
                && !in_use.contains(slot)
        };
        let (mut result, mut saved) = (Ok(()), BTreeSet::new());
        let unused = self.programs.iter_mut().filter(is_unused).take(MAX_EVICTED);
        for (slot, (program, _)) in unused {
            match save(&self.store.lock()?, program, &self.policy.wire, SaveScope::Active) {
                Ok(()) => drop(saved.insert(*slot)),
                failed => result = result.and(failed),
            }
        }
        if saved.is_empty() {
            return result;
        }
        for slot in table.retire_profiles(&Lock::take()?, &saved)?.into_keys() {
            self.programs.remove(&slot);
            self.profile_slots.retain(|_, of_identity| *of_identity != slot);
        }
        result
    }

    /// Loads a program's baseline again after the store has received another one.
    pub fn reload(&mut self, gate: &Gate, identity: &BaselineId) -> Result<()> {
        let Some(slot) = self.profile_slots.get(identity).copied() else { return Ok(()) };
        let lock = Lock::take()?;
        let Some((mut program, activity)) = self.programs.remove(&slot) else { return Ok(()) };
        program.reset();
        // The program has no digest if the previous stored baseline could not be used.
        program.digest = Some(identity.digest);
        ProfileTable::new(gate).restart_windows(slot);
        let installed = self.install(&mut program, gate, &lock, identity);
        self.programs.insert(slot, (program, activity));
        installed
    }

    /// Applies a transition to the baselines of these programs, in the store and in the kernel.
    pub fn apply_transition(
        &mut self,
        gate: &Gate,
        transition: Transition,
        programs: &[String],
    ) -> Result<Vec<TransitionResult>> {
        self.save(gate, SaveScope::Active)?;
        let done = transitions::apply(&self.store, transition, programs)?;
        self.reload_all(gate, done)
    }

    /// Adds baselines to the store, and loads the changed ones into the kernel.
    pub fn import(
        &mut self,
        gate: &Gate,
        baselines: Vec<Baseline>,
        replace: bool,
    ) -> Result<Vec<TransitionResult>> {
        self.save(gate, SaveScope::Active)?;
        let done = add(&self.store, baselines, replace)?;
        self.reload_all(gate, done)
    }

    fn reload_all(
        &mut self,
        gate: &Gate,
        done: Vec<TransitionResult>,
    ) -> Result<Vec<TransitionResult>> {
        done.iter()
            .filter(|done| done.is_changed)
            .try_for_each(|done| self.reload(gate, &done.identity))?;
        Ok(done)
    }
}

fn save(
    store: &LockedStore<'_>,
    program: &mut TrackedProgram,
    parameters: &wire::guard_parameters,
    which: SaveScope,
) -> Result<()> {
    let Some(own) = program.baseline(parameters, unix_now()) else { return Ok(()) };
    let is_new = program.in_store.at.is_none();
    if is_new && !own.has_learned()
        || !program.in_store.needs_save(&own, which == SaveScope::Active)
    {
        return Ok(());
    }
    let title = program.title();
    let context = || format!("cannot store the baseline of {title}");
    // Another Tollgate process may have stored something meanwhile.
    let (mut baseline, has_more) =
        match store.load(&own.digest, own.scope.as_deref()).with_context(context)? {
            Some(stored) => program.in_store.merged_into(&own, &stored)?,
            None => (own.clone(), false),
        };
    store.save(&mut baseline).with_context(context)?;
    program.in_store.note(&own, baseline.saved);
    program.in_store.has_more = has_more;
    Ok(())
}
