//! Loads baselines before their programs start.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use kernel::gate::{Gate, Lock};
use kernel::guard::profile_table::ProfileTable;
use kernel::wire;

use super::baseline::BaselineId;
use super::file_hasher::MAX_INLINE_BYTES;
use super::program_file::{key, open_file, opened_path};
use super::program_table::{IdentifiedProgram, ProgramTable};
use super::scopes::{ProcessInfo, Scope, has_free_scope, interpreter_of_script};

impl ProgramTable {
    /// Preloads the baseline of a command's own program, so that it applies from the program's
    /// first call on.
    pub fn preload_command(
        &mut self,
        gate: &Gate,
        lock: &Lock,
        command: &Path,
        words: &[OsString],
    ) -> Result<()> {
        let scope = self.scopes.of_process(|| ProcessInfo::for_command(command, words));
        self.preload(gate, lock, &[(interpreter_of_script(command, words).0, scope)], u64::MAX)
    }

    /// Preloads the baselines of processes that the session is about to attach. Returns the numbers
    /// of their scopes.
    pub fn preload_processes(&mut self, gate: &Gate, pids: &[u32]) -> Result<BTreeMap<u32, u64>> {
        let scopes: Vec<_> =
            pids.iter().map(|pid| self.scopes.of_process(|| ProcessInfo::from_pid(*pid))).collect();
        let numbers = pids.iter().copied().zip(scopes.iter().map(|scope| scope.number)).collect();
        let paths = pids.iter().map(|pid| PathBuf::from(format!("/proc/{pid}/exe")));
        self.preload(
            gate,
            &Lock::take()?,
            &paths.zip(scopes).collect::<Vec<_>>(),
            MAX_INLINE_BYTES,
        )?;
        Ok(numbers)
    }

    /// Preloads the baselines of all programs in the store.
    pub fn preload_stored(&mut self, gate: &Gate) -> Result<()> {
        /// The other half of the profiles is for programs that are not in the store.
        const MAX_PRELOADED: usize = wire::GUARD_PROFILES as usize / 2;
        let stored = self.store.load_all()?;
        let scope = |name: &Option<String>| match name {
            None => Some(Scope::default()),
            Some(name) => self.scopes.kind()?.of_baseline_name(name),
        };
        let found = stored.iter().filter_map(|baseline| Some((baseline, scope(&baseline.scope)?)));
        let paths = found.flat_map(|(baseline, scope)| {
            baseline.paths.iter().map(move |path| (PathBuf::from(path), scope.clone()))
        });
        let paths: Vec<_> = paths.take(MAX_PRELOADED).collect();
        self.preload(gate, &Lock::take()?, &paths, MAX_INLINE_BYTES)
    }

    /// Preloads programs of at most `max_bytes`; a longer one gets its baseline when it starts.
    fn preload(
        &mut self,
        gate: &Gate,
        lock: &Lock,
        programs: &[(PathBuf, Scope)],
        max_bytes: u64,
    ) -> Result<()> {
        let mut preloaded: Vec<(wire::guard_program, IdentifiedProgram)> = Vec::new();
        let (mut seen, mut exempt) = (BTreeSet::new(), Vec::new());
        for (path, scope) in programs {
            // A program that cannot be read now gets its baseline when it starts, if it can start
            // at all.
            let Ok((file, metadata)) = open_file(path) else { continue };
            if metadata.len() > max_bytes
                || !seen.insert((metadata.dev(), metadata.ino(), scope.number))
            {
                continue;
            }
            let path = opened_path(&file).unwrap_or_else(|| path.clone());
            let Some(digest) = self.hasher.digest(&file, &metadata) else { continue };
            let identity = BaselineId { digest, scope: scope.name.clone() };
            if !self.policy.selection.executors(&metadata).is_empty() {
                exempt.push(identity.clone());
            }
            // Only the first of several copies is preloaded. The others share its profile when they
            // start.
            let is_first = !self.profile_slots.contains_key(&identity)
                && !preloaded.iter().any(|(_, other)| other.identity.as_ref() == Some(&identity));
            let others = preloaded.iter().filter_map(|(_, other)| other.identity.as_ref());
            if is_first
                && has_free_scope(&identity, self.profile_slots.keys().chain(others))
                && self.policy.selection.is_selected(&path, &metadata)
            {
                let key = key(&metadata, self.session, scope.number);
                let program = IdentifiedProgram { path, metadata, identity: Some(identity) };
                preloaded.push((key, program));
            }
        }
        let (keys, programs): (Vec<_>, Vec<_>) = preloaded.into_iter().unzip();
        let slots = ProfileTable::new(gate).assign_profiles(lock, &keys)?;
        for (slot, program) in slots.into_iter().zip(programs) {
            self.track(gate, lock, slot, program)?;
        }
        // An exempt program may share the profile of a copy.
        for slot in exempt.iter().filter_map(|identity| self.profile_slots.get(identity)) {
            if let Some((program, _)) = self.programs.get_mut(slot) {
                program.is_exempt = true;
            }
        }
        Ok(())
    }
}
