//! Programs that have their baselines before they begin.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use kernel::gate::{Gate, Lock};
use kernel::wire;

use super::baseline::Identity;
use super::content::SHORT;
use super::file::{key, open_file, opened_path};
use super::live::{Guard, Known};
use super::scope::{Process, Scope, executed, has_room};

impl Guard {
    /// Before a command begins: its own program has its baseline from its first call on.
    pub fn expect_command(
        &mut self,
        gate: &Gate,
        lock: &Lock,
        command: &Path,
        words: &[OsString],
    ) -> Result<()> {
        let scope = self.scopes.of_process(|| Process::to_be(command, words));
        self.expect(gate, lock, &[(executed(command, words).0, scope)], u64::MAX)
    }

    /// Before processes are taken in: their programs have their baselines from then on. Returns the numbers of their
    /// scopes.
    pub fn expect_processes(&mut self, gate: &Gate, pids: &[u32]) -> Result<BTreeMap<u32, u64>> {
        let scopes: Vec<_> =
            pids.iter().map(|pid| self.scopes.of_process(|| Process::running(*pid))).collect();
        let numbers = pids.iter().copied().zip(scopes.iter().map(|scope| scope.number)).collect();
        let paths = pids.iter().map(|pid| PathBuf::from(format!("/proc/{pid}/exe")));
        self.expect(gate, &Lock::take()?, &paths.zip(scopes).collect::<Vec<_>>(), SHORT)?;
        Ok(numbers)
    }

    /// Programs that the store knows have their baselines before they begin.
    pub fn expect_stored(&mut self, gate: &Gate) -> Result<()> {
        /// For programs that are not known yet there is as much room again.
        const MOST: usize = wire::GUARD_PROFILES as usize / 2;
        let stored = self.store.load_all()?;
        let scope = |name: &Option<String>| match name {
            None => Some(Scope::default()),
            Some(name) => self.scopes.kind()?.stored(name),
        };
        let found = stored.iter().filter_map(|baseline| Some((baseline, scope(&baseline.scope)?)));
        let paths = found.flat_map(|(baseline, scope)| {
            baseline.paths.iter().map(move |path| (PathBuf::from(path), scope.clone()))
        });
        let paths: Vec<_> = paths.take(MOST).collect();
        self.expect(gate, &Lock::take()?, &paths, SHORT)
    }

    /// Those of at most `longest` bytes; what is longer is met when it begins.
    fn expect(
        &mut self,
        gate: &Gate,
        lock: &Lock,
        programs: &[(PathBuf, Scope)],
        longest: u64,
    ) -> Result<()> {
        let mut expected: Vec<(wire::guard_program, Known)> = Vec::new();
        let (mut seen, mut spared) = (BTreeSet::new(), Vec::new());
        for (path, scope) in programs {
            // What cannot be read now is met when it begins, or fails to.
            let Ok((file, metadata)) = open_file(path) else { continue };
            if metadata.len() > longest || !seen.insert((metadata.dev(), metadata.ino(), scope.number)) {
                continue;
            }
            let path = opened_path(&file).unwrap_or_else(|| path.clone());
            let Some(digest) = self.reader.digest(&file, &metadata) else { continue };
            let identity = Identity { digest, scope: scope.name.clone() };
            if self.policy.selection.is_spared(&metadata) {
                spared.push(identity.clone());
            }
            // A copy shares the profile of the first when it begins.
            let is_first = !self.places.contains_key(&identity)
                && !expected.iter().any(|(_, other)| other.identity.as_ref() == Some(&identity));
            let others = expected.iter().filter_map(|(_, other)| other.identity.as_ref());
            if is_first
                && has_room(&identity, self.places.keys().chain(others))
                && self.policy.selection.is_chosen(&path, &metadata)
            {
                let key = key(&metadata, self.session, scope.number);
                expected.push((key, Known { path, metadata, identity: Some(identity) }));
            }
        }
        let (keys, programs): (Vec<_>, Vec<_>) = expected.into_iter().unzip();
        let places = gate.give_profiles(lock, &keys)?;
        for (place, known) in places.into_iter().zip(programs) {
            self.admit(gate, lock, place, known)?;
        }
        // The first may be a copy that anybody made of one that is never held.
        for place in spared.iter().filter_map(|identity| self.places.get(identity)) {
            if let Some((program, _)) = self.programs.get(place) {
                program.profile.spare();
            }
        }
        Ok(())
    }
}
