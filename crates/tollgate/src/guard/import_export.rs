//! Moves baselines between machines, as documents of several baselines (docs/guard.md).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::arguments::{ExportArguments, ImportArguments, MergeArguments};
use super::baseline::{Baseline, Digest, Gain};
use super::commands::is_served_by_daemon;
use super::requests::GuardRequest;
use super::resolve::{select_all, short_name, title};
use super::store::Store;
use super::transitions::TransitionResult;
use crate::daemon_client::request_one;
use crate::document_input;
use crate::output::Output;

const SCHEMA: &str = "tollgate.baselines/1";

#[derive(Serialize, Deserialize)]
struct BaselineExport {
    schema: String,
    /// The digest of the baselines as JSON without white space, so that a document may be indented.
    sha256: Digest,
    baselines: Vec<Baseline>,
}

impl BaselineExport {
    fn new(baselines: Vec<Baseline>) -> Result<Self> {
        Ok(Self { schema: SCHEMA.into(), sha256: checksum(&baselines)?, baselines })
    }
}

pub fn export(arguments: &ExportArguments) -> Result<ExitCode> {
    let mut output = Output::open(arguments.output.as_deref(), Output::Stdout)?;
    // After this call, the store has what a daemon knows.
    is_served_by_daemon(&arguments.socket, &arguments.store.folder)?;
    let all = Store::new(&arguments.store.folder).load_all()?;
    let chosen = match arguments.all {
        true => all,
        false => select_all(&arguments.programs, &all)?.into_iter().cloned().collect(),
    };
    output.write_json(&BaselineExport::new(chosen)?)?;
    Ok(ExitCode::SUCCESS)
}

pub fn merge(arguments: &MergeArguments) -> Result<ExitCode> {
    let mut output = Output::open(arguments.output.as_deref(), Output::Stdout)?;
    output.write_json(&BaselineExport::new(read_all(&arguments.files)?)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Imports through the daemon if one uses this store, so that the change applies at once.
pub fn import(arguments: &ImportArguments) -> Result<ExitCode> {
    let (baselines, replace) = (read_all(&arguments.files)?, arguments.replace);
    let done: Vec<TransitionResult> =
        if is_served_by_daemon(&arguments.socket, &arguments.store.folder)? {
            request_one(&arguments.socket, &GuardRequest::Import { baselines, replace })?
        } else {
            add(&Store::new(&arguments.store.folder), baselines, replace)?
        };
    done.iter().try_for_each(|done| Output::Stdout.write(&format!("{}\n", done.line)))?;
    Ok(ExitCode::SUCCESS)
}

/// Checks that all baselines can be used before it stores the first one.
pub fn add(
    store: &Store,
    baselines: Vec<Baseline>,
    replace: bool,
) -> Result<Vec<TransitionResult>> {
    let lock = store.lock()?;
    let mut changes = Vec::new();
    for baseline in baselines {
        let stored = lock.load(&baseline.digest, baseline.scope.as_deref())?;
        changes.push(change(stored, baseline, replace)?);
    }
    let save = |ImportChange { mut baseline, is_changed, words }| {
        if is_changed {
            lock.save(&mut baseline)?;
        }
        let line = format!("{} {}: {words}", title(&baseline), short_name(&baseline));
        Ok(TransitionResult { identity: baseline.identity(), is_changed, line })
    };
    changes.into_iter().map(save).collect()
}

struct ImportChange {
    baseline: Baseline,
    is_changed: bool,
    words: String,
}

fn change(stored: Option<Baseline>, imported: Baseline, replace: bool) -> Result<ImportChange> {
    let to = |baseline, words: &str| ImportChange {
        baseline,
        is_changed: true,
        words: words.to_owned(),
    };
    let Some(stored) = stored else { return Ok(to(imported, "new")) };
    if replace {
        // It must be later than the stored time as well, by which other processes detect a change.
        let saved = imported.saved.max(stored.saved);
        return Ok(to(Baseline { saved, ..imported }, "replaced"));
    }
    let mut merged = stored.clone();
    let gain = merged.merge(&imported)?;
    if gain == Gain::default() {
        // The counters stay as well, because the same file may be imported again.
        return Ok(ImportChange { baseline: stored, is_changed: false, words: "unchanged".into() });
    }
    let state = match merged.state.name() {
        state if state == stored.state.name() => String::new(),
        state => format!(", {state} now"),
    };
    let words = format!("merged (+{} pairs, +{} windows){state}", gain.pairs, gain.windows);
    Ok(to(merged, &words))
}

/// Reads all files and merges the baselines of the same program.
fn read_all(files: &[PathBuf]) -> Result<Vec<Baseline>> {
    let mut all: BTreeMap<String, Baseline> = BTreeMap::new();
    for file in files {
        for baseline in read(file)? {
            match all.get_mut(&baseline.name()) {
                None => _ = all.insert(baseline.name(), baseline),
                Some(same) => {
                    _ = same.merge(&baseline).with_context(|| file.display().to_string())?
                }
            }
        }
    }
    Ok(all.into_values().collect())
}

fn read(path: &Path) -> Result<Vec<Baseline>> {
    let export: BaselineExport = document_input::read(path, SCHEMA, "tollgate guard export")?;
    if checksum(&export.baselines)? != export.sha256 {
        bail!("{} was changed: its checksum does not match its baselines", path.display());
    }
    for baseline in &export.baselines {
        baseline.check().with_context(|| {
            format!("{} has an unusable baseline, {}", path.display(), baseline.name())
        })?;
    }
    Ok(export.baselines)
}

fn checksum(baselines: &[Baseline]) -> Result<Digest> {
    Ok(Digest::of(&serde_json::to_vec(baselines)?))
}

#[cfg(test)]
mod tests {
    use super::super::baseline::BaselineState;
    use super::super::baseline::tests::example;
    use super::*;

    fn words(stored: Option<Baseline>, imported: Baseline, replace: bool) -> (String, bool) {
        let change = change(stored, imported, replace).expect("alike");
        (change.words, change.is_changed)
    }

    #[test]
    fn import_adds_merges_or_changes_nothing() {
        let stored = Baseline { state: BaselineState::Normal, ..example() };
        assert_eq!(words(None, example(), false), ("new".into(), true));
        assert_eq!(words(Some(stored.clone()), example(), true), ("replaced".into(), true));
        assert_eq!(words(Some(stored.clone()), example(), false), ("unchanged".into(), false));
        let mut more = example();
        more.pairs[0].learned = 0b11;
        assert_eq!(
            words(Some(stored), more, false),
            ("merged (+1 pairs, +0 windows), frozen now".into(), true)
        );
    }

    #[test]
    fn changed_documents_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("export.json");
        let write = |export: &BaselineExport| {
            std::fs::write(&path, serde_json::to_string_pretty(export).expect("JSON"))
                .expect("written");
        };
        let mut export = BaselineExport::new(vec![example()]).expect("JSON");
        write(&export);
        assert_eq!(read(&path).expect("whole"), [example()]);
        export.baselines[0].pairs[0].earlier = 9;
        write(&export);
        let refusal = || format!("{:#}", read(&path).expect_err("faulty"));
        assert!(refusal().ends_with("was changed: its checksum does not match its baselines"));
        write(&BaselineExport::new(export.baselines).expect("JSON"));
        assert!(refusal().ends_with(": its pair 1 refers to call 9, but there are only 3"));
    }
}
