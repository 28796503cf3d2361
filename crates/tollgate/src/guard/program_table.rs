//! The programs that a guard tracks: their profiles in the kernel, with the baselines of the store.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use kernel::gate::{Gate, Lock};
use kernel::guard::exempt_files::ExemptFiles;
use kernel::guard::profile_table::ProfileTable;
use kernel::wire;

use super::activity::Activity;
use super::baseline::{BaselineId, Digest};
use super::clock::unix_now;
use super::ended_programs::EndedPrograms;
use super::executed_files::ExecutedFiles;
use super::file_digests::FileDigests;
use super::identifier::{FileFacts, Found, Identifier, StartedProgram};
use super::policy::Policy;
use super::program_file::key;
use super::report::GuardedProgram;
use super::resolve::short_name;
use super::scopes::{MAX_SCOPES, SessionScopes, has_free_scope};
use super::store::Store;
use super::tracked_program::{Identification, TrackedProgram};
use crate::format::shown_path;
use crate::kernel_text;
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
    pub(super) digests: FileDigests,
    identifier: Identifier,
    pub(super) executed: ExecutedFiles,
    /// Programs whose files could not be opened any more.
    pub(super) ended: EndedPrograms,
    /// Programs whose files could not be hashed.
    unidentified: u64,
    /// The files at the selected paths, as the kernel side knows them.
    pub(super) selected_files: Vec<wire::guard_program>,
}

/// A program whose file could be read.
pub struct IdentifiedProgram {
    pub path: PathBuf,
    pub is_exempt: bool,
    pub identity: BaselineId,
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
        let digests = FileDigests::default();
        Ok(Self {
            identifier: Identifier::new(policy.selection.clone(), digests.clone()),
            policy,
            store,
            session,
            programs: BTreeMap::new(),
            profile_slots: BTreeMap::new(),
            scopes,
            digests,
            executed: ExecutedFiles::default(),
            ended: EndedPrograms::default(),
            unidentified: 0,
            selected_files: Vec::new(),
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
    pub fn ended_too_soon(&self) -> u64 {
        self.ended.programs
    }

    /// The number of programs whose files were not hashed, although they could be opened or the
    /// programs still run.
    pub fn unidentified(&self) -> u64 {
        self.unidentified
    }

    /// Tracks the program of this profile slot and loads its baseline.
    pub fn track(
        &mut self,
        gate: &Gate,
        lock: &Lock,
        slot: u32,
        IdentifiedProgram { path, is_exempt, identity }: IdentifiedProgram,
    ) -> Result<()> {
        let (mut program, activity) = match self.programs.remove(&slot) {
            Some(waiting) => waiting,
            None => {
                let profile = ProfileTable::new(gate).profile(slot)?;
                (TrackedProgram::new(profile, path.clone()), Activity::default())
            }
        };
        program.identify(path, &identity);
        program.is_exempt = is_exempt;
        program.profile.set_identified();
        self.install(&mut program, gate, lock, &identity)?;
        self.profile_slots.insert(identity, slot);
        self.programs.insert(slot, (program, activity));
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

    /// Handles the start of a program. Until its file is identified, its calls are learned.
    pub fn on_program_start(
        &mut self,
        gate: &Gate,
        record: &wire::guard_program_record,
    ) -> Result<()> {
        let path = PathBuf::from(kernel_text::path(&record.path));
        self.executed.set(&record.program, &path);
        let profile = ProfileTable::new(gate).profile(record.profile_slot)?;
        let program = TrackedProgram::new(profile, path);
        self.programs.insert(record.profile_slot, (program, Activity::default()));
        let scope = self.scopes.of_record(record);
        self.identifier.open(StartedProgram::new(record, scope));
        Ok(())
    }

    fn on_found(&mut self, gate: &Gate, program: StartedProgram, found: Found) -> Result<()> {
        let slot = program.record.profile_slot;
        match found {
            Found::Opened(facts, file) => {
                if !self.on_opened(gate, &program, &facts)? {
                    return Ok(());
                }
                self.set(slot, Identification::Hashing, Some(facts.path.clone()));
                if !self.identifier.hash(program, facts, file) {
                    self.leave_unidentified(slot, Identification::TooLong);
                }
            }
            Found::Hashed { facts, digest, is_certain } => {
                if self.on_opened(gate, &program, &facts)? {
                    return match digest {
                        Some(digest) => self.on_hashed(gate, program, facts, digest, is_certain),
                        None => {
                            self.set(slot, Identification::Opening, Some(facts.path));
                            self.leave_unidentified(slot, Identification::Unreadable);
                            Ok(())
                        }
                    };
                }
            }
            Found::Leased => {
                if self.identifier.retry(program).is_some() {
                    self.on_unopened(slot, Identification::Unreadable);
                }
            }
            Found::Unreadable => self.on_unopened(slot, Identification::Unreadable),
            Found::Gone => self.on_unopened(slot, Identification::EndedTooSoon),
        }
        Ok(())
    }

    /// Handles that the file of a program was opened. Returns whether the program is guarded.
    fn on_opened(
        &mut self,
        gate: &Gate,
        program: &StartedProgram,
        facts: &FileFacts,
    ) -> Result<bool> {
        let (key, slot) = (&program.record.program, program.record.profile_slot);
        // The path in the record may be shortened.
        self.executed.set(key, &facts.path);
        ExemptFiles::new(gate, self.session).set(key, &facts.executors)?;
        if let Some((program, _)) = self.programs.get(&slot) {
            program.profile.set_identified();
        }
        if !facts.is_selected {
            self.release(gate, slot, key)?;
        }
        Ok(facts.is_selected)
    }

    /// Frees the profile of a program that is not selected.
    fn release(&mut self, gate: &Gate, slot: u32, key: &wire::guard_program) -> Result<()> {
        let (table, lock) = (ProfileTable::new(gate), Lock::take()?);
        self.programs.remove(&slot);
        table.share_profile(&lock, key, slot, wire::GUARD_PROFILE_UNSELECTED)?;
        if self.policy.scope.is_some() {
            table.insert_any_scope_key(&lock, key, wire::GUARD_PROFILE_UNSELECTED)?;
        }
        Ok(())
    }

    fn set(&mut self, slot: u32, identification: Identification, path: Option<PathBuf>) {
        if let Some((program, _)) = self.programs.get_mut(&slot) {
            program.identification = identification;
            program.path = path.unwrap_or_else(|| program.path.clone());
        }
    }

    /// A program whose file was not hashed is trained, but its baseline is not stored.
    fn leave_unidentified(&mut self, slot: u32, why: Identification) {
        self.unidentified += 1;
        self.set(slot, why, None);
    }

    /// Handles that the file of a program could not be opened.
    fn on_unopened(&mut self, slot: u32, why: Identification) {
        let Some((program, _)) = self.programs.get(&slot) else { return };
        program.profile.set_identified();
        let is_selected = self.policy.selection.is_path_selected(&program.path);
        if is_selected && why != Identification::EndedTooSoon {
            self.leave_unidentified(slot, why);
            return;
        }
        self.ended.add(slot, is_selected);
        self.set(slot, Identification::EndedTooSoon, None);
    }

    fn on_hashed(
        &mut self,
        gate: &Gate,
        program: StartedProgram,
        facts: FileFacts,
        digest: Digest,
        is_certain: bool,
    ) -> Result<()> {
        let StartedProgram { record, scope, .. } = program;
        let (slot, key) = (record.profile_slot, record.program);
        let FileFacts { path, executors, .. } = facts;
        let is_exempt = !executors.is_empty();
        let lock = Lock::take()?;
        let mut identity = BaselineId { digest, scope };
        let too_many = !self.profile_slots.contains_key(&identity)
            && !has_free_scope(&identity, self.profile_slots.keys());
        if too_many {
            identity.scope = None;
            let _ = print_message(&format!(
                "tollgate: {} runs in more than {MAX_SCOPES} scopes: in further scopes it uses \
                the baseline without a scope",
                shown_path(&path)
            ));
        }
        let tracked = self.profile_slots.get(&identity).copied().filter(|tracked| *tracked != slot);
        let table = ProfileTable::new(gate);
        if too_many {
            table.insert_any_scope_key(&lock, &key, tracked.unwrap_or(slot))?;
        }
        let Some(tracked) = tracked else {
            table.settle(&lock, &key, slot)?;
            if !is_certain {
                // What it did may belong to another content, and its later executions may not.
                table.profile(slot)?.empty();
                table.restart_windows(slot);
            }
            return self.track(gate, &lock, slot, IdentifiedProgram { path, is_exempt, identity });
        };
        let calls = table.share_profile(&lock, &key, slot, tracked)?;
        let waited = self.programs.remove(&slot);
        if let Some((program, activity)) = self.programs.get_mut(&tracked) {
            program.early_calls += calls;
            // A copy may have started before the exempt program itself.
            program.is_exempt |= is_exempt;
            if let Some((_, before)) = waited {
                activity.merge(&before);
            }
        }
        Ok(())
    }

    /// Waits for the programs whose files are being opened or hashed, at most for `longest`. Gives
    /// up if nothing was read for the time `patience`.
    pub fn settle(&mut self, gate: &Gate, patience: Duration, longest: Duration) -> Result<()> {
        let until = Instant::now() + longest;
        while let Some((program, found)) = self.identifier.wait(patience, until) {
            self.on_found(gate, program, found)?;
        }
        let waits = |(program, _): &&(TrackedProgram, Activity)| program.identification.waits();
        self.unidentified += self.programs.values().filter(waits).count() as u64;
        Ok(())
    }

    /// As [`Identifier::deadline`].
    pub fn deadline(&self, longest: Duration) -> Duration {
        self.identifier.deadline(longest)
    }

    /// Tracks programs whose files were hashed, makes frozen baselines normal in time, and adds
    /// room to profiles.
    pub fn tend(&mut self, gate: &Gate) -> Result<()> {
        for (program, found) in self.identifier.found() {
            self.on_found(gate, program, found)?;
        }
        self.free_ended(gate)?;
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

    /// Frees the profiles of programs that ended before their files could be opened. What they did
    /// stays in the report.
    fn free_ended(&mut self, gate: &Gate) -> Result<()> {
        let Some(slots) = self.ended.due() else { return Ok(()) };
        for (slot, calls) in ProfileTable::new(gate).retire_profiles(&Lock::take()?, &slots)? {
            let activity = self.programs.remove(&slot).map(|(_, activity)| activity);
            self.ended.free(slot, calls, &activity.unwrap_or_default());
        }
        Ok(())
    }

    /// The programs that made calls, the most anomalous one first.
    pub fn reports(&self) -> Vec<GuardedProgram> {
        // Whether a program is selected may not be known yet.
        let selects = !self.policy.selection.selected.is_empty();
        let shown = self.programs.values().filter(|(program, _)| match program.identification {
            Identification::EndedTooSoon => false,
            Identification::Opening => !selects,
            _ => true,
        });
        let mut programs: Vec<_> =
            shown.map(|(program, activity)| program_report(program, activity)).collect();
        let waiting = self.ended.waiting().filter_map(|slot| self.programs.get(&slot));
        programs.push(self.ended.report(waiting.map(|(program, activity)| {
            (program.profile.read().calls, program.profile.bytes() as u64, activity)
        })));
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
        not_identified: program.identification.text().map(str::to_owned),
        digest: program.digest.map(|digest| digest.to_string()),
        scope: program.scope.clone(),
        state: state.into(),
        calls: contents.made,
        early_calls: program.early_calls,
        pairs: contents.pairs.len(),
        windows: contents.windows.len(),
        unlearned: program.profile.unlearned(),
        counted_anomalies: program.counted.count,
        bytes: program.profile.bytes() as u64,
        ..activity.report()
    }
}
