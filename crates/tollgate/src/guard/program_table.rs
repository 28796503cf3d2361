//! The programs that a guard tracks: their profiles in the kernel, with the baselines of the store.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use kernel::gate::{Gate, Lock};
use kernel::guard::exempt_files::ExemptFiles;
use kernel::guard::profile_table::ProfileTable;
use kernel::wire;

use super::activity::Activity;
use super::baseline::{BaselineId, Digest};
use super::clock::unix_now;
use super::file_hasher::{FileHasher, StartedProgram};
use super::policy::Policy;
use super::program_file::{is_running, key, open_program, opened_path};
use super::report::GuardedProgram;
use super::resolve::short_name;
use super::scopes::{MAX_SCOPES, SessionScopes, has_free_scope};
use super::store::Store;
use super::tracked_program::TrackedProgram;
use crate::format::shown_path;
use crate::output::print_message;

/// The programs of a session, each with its profile and its activity.
pub struct ProgramTable {
    pub(super) policy: Policy,
    pub(super) store: Store,
    pub(super) session: u32,
    /// By profile slot.
    pub(super) programs: BTreeMap<u32, (TrackedProgram, Activity)>,
    pub(super) profile_slots: BTreeMap<BaselineId, u32>,
    pub(super) scopes: SessionScopes,
    pub(super) hasher: FileHasher,
    unidentified: u64,
}

/// A program whose file could be read.
pub struct IdentifiedProgram {
    pub path: PathBuf,
    pub metadata: fs::Metadata,
    /// `None` if the file was not hashed. The program is trained, but its baseline is not stored.
    pub identity: Option<BaselineId>,
}

impl ProgramTable {
    /// An empty table. It is an error if the store cannot be used.
    pub fn start(gate: &Gate, lock: &Lock, session: u32, policy: Policy) -> Result<Self> {
        let (store, scopes) = (Store::new(&policy.store), SessionScopes::new(policy.scope));
        // Without the store nothing could be learned, so no program could be guarded.
        store.lock()?;
        // From now on, the guard may have to release processes, and cannot wait long for the store.
        let store = store.with_lock_timeout(Duration::from_secs(1));
        ProfileTable::new(gate).make_profiles(lock)?;
        let exempt_files = ExemptFiles::new(gate, session);
        // A session of this number may have been killed.
        exempt_files.clear();
        for file in policy.selection.exempt_files() {
            let executors = policy.selection.executors(&file);
            exempt_files.set(&key(&file, session, 0), &executors)?;
        }
        Ok(Self {
            policy,
            store,
            session,
            programs: BTreeMap::new(),
            profile_slots: BTreeMap::new(),
            scopes,
            hasher: FileHasher::default(),
            unidentified: 0,
        })
    }

    /// The program with this profile slot.
    pub fn get(&self, slot: u32) -> Option<&TrackedProgram> {
        self.programs.get(&slot).map(|(program, _)| program)
    }

    /// The program with this profile slot, and its activity.
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut (TrackedProgram, Activity)> {
        self.programs.get_mut(&slot)
    }

    /// The number of programs that ended before their files could be opened.
    pub fn unidentified(&self) -> u64 {
        self.unidentified
    }

    /// Tracks the program of this profile slot and loads its baseline.
    pub fn track(
        &mut self,
        gate: &Gate,
        lock: &Lock,
        slot: u32,
        IdentifiedProgram { path, metadata, identity }: IdentifiedProgram,
    ) -> Result<()> {
        let mut program = TrackedProgram::new(
            ProfileTable::new(gate).profile(slot)?,
            Some(path),
            identity.clone(),
        );
        program.is_exempt = !self.policy.selection.executors(&metadata).is_empty();
        program.profile.set_identified();
        if let Some(identity) = identity {
            self.install(&mut program, gate, lock, &identity)?;
            self.profile_slots.insert(identity, slot);
        }
        self.programs.insert(slot, (program, Activity::default()));
        Ok(())
    }

    /// Loads the stored baseline into the program's profile. If the stored baseline cannot be used,
    /// the program is trained, but its baseline is not stored.
    pub fn install(
        &self,
        program: &mut TrackedProgram,
        gate: &Gate,
        lock: &Lock,
        identity: &BaselineId,
    ) -> Result<()> {
        let baseline = match self.store.load(&identity.digest, identity.scope.as_deref()) {
            Ok(Some(baseline)) => baseline,
            Ok(None) => return Ok(()),
            // An error of one program's baseline must not affect the other programs.
            Err(error) => {
                let path = program.title();
                let _ = print_message(&format!(
                    "tollgate: the stored baseline of {path} cannot be used: {error:#}; it stays \
                    as it is, and what is learned now is not stored"
                ));
                program.digest = None;
                return Ok(());
            }
        };
        let wire::guard_parameters { lookahead, sequence, .. } = self.policy.wire;
        if (baseline.lookahead, baseline.sequence) != (lookahead.into(), sequence.into()) {
            let _ = print_message(&format!(
                "tollgate: the stored baseline of {} has windows of {} and {} calls instead of \
                {lookahead} and {sequence}: it stays as it is, and what is learned now is not \
                stored",
                short_name(&baseline),
                baseline.lookahead,
                baseline.sequence
            ));
            program.digest = None;
            return Ok(());
        }
        while baseline.windows.len() > program.profile.window_capacity()
            && ProfileTable::new(gate).add_overflow(lock, &mut program.profile)?
        {}
        let unfit = program.install(baseline, self.policy.mode);
        if unfit > 0 {
            // Otherwise, calls that only the missing part has would be anomalous.
            program.profile.tolerize();
            let _ = print_message(&format!(
                "tollgate: {unfit} pairs and windows of {} do not fit into its profile in the \
                kernel, so the program is not tested",
                program.title()
            ));
        }
        Ok(())
    }

    /// Handles the start of a program.
    pub fn on_program_start(
        &mut self,
        gate: &Gate,
        record: &wire::guard_program_record,
    ) -> Result<()> {
        let slot = record.profile_slot;
        let Some(file) = open_program(record) else { return self.track_unidentified(gate, slot) };
        let (metadata, path) = (file.metadata()?, opened_path(&file).unwrap_or_default());
        // Before the file is hashed, which may take long.
        let executors = self.policy.selection.executors(&metadata);
        ExemptFiles::new(gate, self.session).set(&record.program, &executors)?;
        ProfileTable::new(gate).profile(slot)?.set_identified();
        if !self.policy.selection.is_selected(&path, &metadata) {
            let (table, lock) = (ProfileTable::new(gate), Lock::take()?);
            table.share_profile(&lock, &record.program, slot, wire::GUARD_PROFILE_UNSELECTED)?;
            if self.policy.scope.is_some() {
                let unselected = wire::GUARD_PROFILE_UNSELECTED;
                table.insert_any_scope_key(&lock, &record.program, unselected)?;
            }
            return Ok(());
        }
        let (key, scope) = (record.program, self.scopes.of_record(record));
        match self.hasher.hash(StartedProgram {
            profile_slot: slot,
            pid: record.pid,
            key,
            file,
            path,
            metadata,
            scope,
        }) {
            Some((program, digest)) => self.on_hashed(gate, program, digest),
            None => Ok(()),
        }
    }

    fn on_hashed(
        &mut self,
        gate: &Gate,
        program: StartedProgram,
        digest: Option<Digest>,
    ) -> Result<()> {
        // While a program runs, nobody can write to its file.
        let is_certain = !program.changes_unseen() || is_running(program.pid, &program.metadata);
        let StartedProgram { profile_slot: slot, key, path, metadata, scope, .. } = program;
        let lock = Lock::take()?;
        let mut identity = digest.map(|digest| BaselineId { digest, scope });
        let is_one_too_many = |identity: &BaselineId| {
            !self.profile_slots.contains_key(identity)
                && !has_free_scope(identity, self.profile_slots.keys())
        };
        let too_many = identity.as_ref().is_some_and(is_one_too_many);
        if let Some(identity) = identity.as_mut().filter(|_| too_many) {
            identity.scope = None;
            let _ = print_message(&format!(
                "tollgate: {} runs in more than {MAX_SCOPES} scopes: in further scopes it uses \
                the baseline without a scope",
                shown_path(&path)
            ));
        }
        let tracked =
            identity.as_ref().and_then(|identity| self.profile_slots.get(identity)).copied();
        let tracked = tracked.filter(|tracked| *tracked != slot);
        if too_many {
            ProfileTable::new(gate).insert_any_scope_key(&lock, &key, tracked.unwrap_or(slot))?;
        }
        let Some(tracked) = tracked else {
            ProfileTable::new(gate).settle(&lock, &key, slot)?;
            if !is_certain {
                // What it did may belong to another content, and its later executions may not.
                ProfileTable::new(gate).profile(slot)?.empty();
                ProfileTable::new(gate).restart_windows(slot);
            }
            return self.track(gate, &lock, slot, IdentifiedProgram { path, metadata, identity });
        };
        let calls = ProfileTable::new(gate).share_profile(&lock, &key, slot, tracked)?;
        if let Some((program, _)) = self.programs.get_mut(&tracked) {
            program.early_calls += calls;
            // A copy may have started before the exempt program itself.
            program.is_exempt |= !self.policy.selection.executors(&metadata).is_empty();
        }
        Ok(())
    }

    /// Tracks a program that ended before its file could be opened. Without an identity, what it
    /// learns is not stored.
    fn track_unidentified(&mut self, gate: &Gate, slot: u32) -> Result<()> {
        self.unidentified += 1;
        let program = TrackedProgram::new(ProfileTable::new(gate).profile(slot)?, None, None);
        program.profile.set_identified();
        self.programs.insert(slot, (program, Activity::default()));
        Ok(())
    }

    /// Tracks programs whose files the thread has hashed, makes frozen baselines normal in time,
    /// and adds room to profiles.
    pub fn tend(&mut self, gate: &Gate) -> Result<()> {
        for (program, digest) in self.hasher.finished() {
            self.on_hashed(gate, program, digest)?;
        }
        let now = unix_now();
        let (mode, wait) = (self.policy.mode, self.policy.normal_wait);
        for (program, _) in self.programs.values_mut() {
            program.tick(now, wait, mode);
        }
        let is_small = |(program, _): &(TrackedProgram, Activity)| program.profile.needs_overflow();
        let table = ProfileTable::new(gate);
        if table.needs_profiles() || self.programs.values().any(is_small) {
            let lock = Lock::take()?;
            for (program, _) in self.programs.values_mut().filter(|entry| is_small(entry)) {
                table.add_overflow(&lock, &mut program.profile)?;
            }
            table.make_profiles(&lock)?;
        }
        Ok(())
    }

    /// The programs that made calls, the most anomalous one first.
    pub fn reports(&self) -> Vec<GuardedProgram> {
        let entries = self.programs.values();
        let mut programs: Vec<_> =
            entries.map(|(program, activity)| program_report(program, activity)).collect();
        programs.sort_by_key(|program| {
            (std::cmp::Reverse(program.anomalies), std::cmp::Reverse(program.calls))
        });
        programs.retain(|program| program.calls > 0);
        programs
    }
}

fn program_report(program: &TrackedProgram, activity: &Activity) -> GuardedProgram {
    let contents = program.profile.contents();
    let state = match contents.state {
        wire::GUARD_NORMAL => "normal",
        wire::GUARD_FROZEN => "frozen",
        _ => "training",
    };
    GuardedProgram {
        path: program.path_text(),
        digest: program.digest.map(|digest| digest.to_string()),
        scope: program.scope.clone(),
        state: state.into(),
        calls: contents.made,
        early_calls: program.early_calls,
        pairs: contents.pairs.len(),
        windows: contents.windows.len(),
        unlearned: program.profile.unlearned(),
        anomalies: activity.anomalies,
        max_lfc: activity.max_lfc,
        holds: activity.holds,
        held_ns: activity.held_ns,
        killed: activity.killed,
        refused: activity.refused,
        unheld: activity.unheld,
        counted_anomalies: program.counted.count,
        retrained: activity.retrained,
        bytes: program.profile.bytes() as u64,
    }
}
