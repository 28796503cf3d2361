//! Loads baselines before their programs start.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use kernel::gate::{Gate, Lock};
use kernel::guard::profile_table::ProfileTable;
use kernel::wire;

use super::baseline::{BaselineId, Digest};
use super::file_digests::{FileDigests, MAX_HASHED_BYTES, ReadProgress};
use super::filter::ProgramFilter;
use super::program_file::{key, opened_path};
use super::program_table::{IdentifiedProgram, ProgramTable};
use super::scopes::{ProcessInfo, Scope, has_free_scope, interpreter_of_script};
use crate::helper_thread::results_within;
use crate::regular_file::open_regular;

/// Of programs that others have chosen, those up to this size are preloaded. Hashing such a file
/// takes some hundredths of a second.
const MAX_PRELOADED_BYTES: u64 = 16 << 20;
/// For how long at most the guard waits for one file that others have chosen.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// The same for a file that root has named: for a long file on a slow disk.
const LONGEST_WAIT_FOR_NAMED: Duration = Duration::from_secs(60);

/// A file whose baseline is to be loaded.
struct PreloadedFile {
    path: PathBuf,
    metadata: Metadata,
    digest: Digest,
    scope: Scope,
    is_exempt: bool,
    is_selected: bool,
}

/// Reads files of programs.
struct FileReader {
    selection: ProgramFilter,
    digests: FileDigests,
    max_bytes: u64,
    seen: BTreeSet<(u64, u64, u64)>,
}

impl FileReader {
    /// `None` for a program that cannot be read now, or that was read already. It gets its baseline
    /// when it starts, if it can start at all.
    fn read(&mut self, path: &Path, scope: Scope) -> Option<PreloadedFile> {
        let (file, metadata) = open_regular(path).ok()?;
        if metadata.len() > self.max_bytes
            || !self.seen.insert((metadata.dev(), metadata.ino(), scope.number))
        {
            return None;
        }
        let path = opened_path(&file).unwrap_or_else(|| path.to_owned());
        let digest = self.digests.get_or_read(&file, &metadata, &ReadProgress::default())?;
        let is_exempt = !self.selection.executors(&metadata).is_empty();
        let is_selected = self.selection.is_selected(&path, &metadata);
        Some(PreloadedFile { path, metadata, digest, scope, is_exempt, is_selected })
    }
}

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
        let program = vec![(interpreter_of_script(command, words).0, scope)];
        self.preload(gate, lock, program, u64::MAX, LONGEST_WAIT_FOR_NAMED)
    }

    /// Preloads the baselines of processes that the session is about to attach. Returns the numbers
    /// of their scopes.
    pub fn preload_processes(&mut self, gate: &Gate, pids: &[u32]) -> Result<BTreeMap<u32, u64>> {
        let (processes, needs_info) = (pids.to_vec(), self.scopes.kind().is_some());
        let infos: BTreeMap<_, _> = results_within(LONGEST_WAIT, move |to| {
            for pid in processes.iter().filter(|_| needs_info) {
                if to.send((*pid, ProcessInfo::from_pid(*pid))).is_err() {
                    break;
                }
            }
        })
        .into_iter()
        .collect();
        let mut numbers = BTreeMap::new();
        let mut programs = Vec::new();
        let mut infos = infos;
        for pid in pids {
            let info = infos.remove(pid).unwrap_or_default();
            let scope = self.scopes.of_process(|| info);
            numbers.insert(*pid, scope.number);
            programs.push((PathBuf::from(format!("/proc/{pid}/exe")), scope));
        }
        self.preload(gate, &Lock::take()?, programs, MAX_PRELOADED_BYTES, LONGEST_WAIT)?;
        Ok(numbers)
    }

    /// Preloads the baselines of the selected programs, whatever their files are now.
    pub fn preload_selected(&mut self, gate: &Gate, longest_wait: Duration) -> Result<()> {
        let selected = self.policy.selection.selected.iter();
        let programs: Vec<_> = selected.map(|path| (path.clone(), Scope::default())).collect();
        self.preload(gate, &Lock::take()?, programs, MAX_HASHED_BYTES, longest_wait)
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
        self.preload(gate, &Lock::take()?, paths, MAX_PRELOADED_BYTES, LONGEST_WAIT)
    }

    /// Preloads programs of at most `max_bytes`; a longer one gets its baseline when it starts. So
    /// do those after a file that takes longer than `longest_wait`.
    fn preload(
        &mut self,
        gate: &Gate,
        lock: &Lock,
        programs: Vec<(PathBuf, Scope)>,
        max_bytes: u64,
        longest_wait: Duration,
    ) -> Result<()> {
        if programs.is_empty() {
            return Ok(());
        }
        let mut reader = FileReader {
            selection: self.policy.selection.clone(),
            digests: self.digests.clone(),
            max_bytes,
            seen: BTreeSet::new(),
        };
        let files = results_within(longest_wait, move |to| {
            for (path, scope) in programs {
                // Also for a file that is not preloaded, so that the wait begins anew.
                if to.send(reader.read(&path, scope)).is_err() {
                    break;
                }
            }
        });
        let mut preloaded: Vec<(wire::guard_program, IdentifiedProgram)> = Vec::new();
        let mut exempt = Vec::new();
        for file in files.into_iter().flatten() {
            let PreloadedFile { path, metadata, digest, scope, is_exempt, is_selected } = file;
            let identity = BaselineId { digest, scope: scope.name };
            if is_exempt {
                exempt.push(identity.clone());
            }
            // Only the first of several copies is preloaded. The others share its profile when they
            // start.
            let is_first = !self.profile_slots.contains_key(&identity)
                && !preloaded.iter().any(|(_, other)| other.identity == identity);
            let others = preloaded.iter().map(|(_, other)| &other.identity);
            if is_first
                && has_free_scope(&identity, self.profile_slots.keys().chain(others))
                && is_selected
            {
                let key = key(&metadata, self.session, scope.number);
                self.executed.set(&key, &path);
                preloaded.push((key, IdentifiedProgram { path, is_exempt, identity }));
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
