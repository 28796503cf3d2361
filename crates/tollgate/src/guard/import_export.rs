//! Moves baselines between machines, as documents of several baselines (docs/guard.md).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::arguments::{ExportArguments, ImportArguments, MergeArguments};
use super::baseline::{Baseline, Digest};
use super::commands::is_served_by_daemon;
use super::import::add;
use super::requests::GuardRequest;
use super::resolve::select_all;
use super::store::Store;
use super::transitions::TransitionResult;
use crate::daemon_client::request_one;
use crate::document_input;
use crate::format::shown_path;
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

/// Writes baselines of the store as one export.
pub fn export(arguments: &ExportArguments) -> Result<ExitCode> {
    let mut output = Output::open(arguments.output.as_deref(), Output::Stdout)?;
    // After this call, the store has what a daemon knows.
    is_served_by_daemon(&arguments.socket, &arguments.store.folder)?;
    let store = Store::new(&arguments.store.folder);
    let stored = store.files()?.len();
    let all = store.load_all()?;
    let missing = stored.saturating_sub(all.len());
    // A backup must not be replaced by one that is not complete.
    if arguments.all && missing > 0 {
        bail!("{missing} of {stored} baselines cannot be read, so nothing is exported");
    }
    let chosen = match arguments.all {
        true => all,
        false => select_all(&arguments.programs, &all)?.into_iter().cloned().collect(),
    };
    output.write_json(&BaselineExport::new(chosen)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Merges several exports into one.
pub fn merge(arguments: &MergeArguments) -> Result<ExitCode> {
    let mut output = Output::open(arguments.output.as_deref(), Output::Stdout)?;
    output.refuse_inputs(&arguments.files)?;
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

/// Reads all files and merges the baselines of the same program.
fn read_all(files: &[PathBuf]) -> Result<Vec<Baseline>> {
    let mut all: BTreeMap<String, Baseline> = BTreeMap::new();
    for file in files {
        for baseline in read(file)? {
            match all.get_mut(&baseline.name()) {
                None => _ = all.insert(baseline.name(), baseline),
                Some(same) => _ = same.merge(&baseline).with_context(|| shown_path(file))?,
            }
        }
    }
    Ok(all.into_values().collect())
}

fn read(path: &Path) -> Result<Vec<Baseline>> {
    let export: BaselineExport = document_input::read(path, SCHEMA, "tollgate guard export")?;
    if checksum(&export.baselines)? != export.sha256 {
        bail!("{} was changed: its checksum does not match its baselines", shown_path(path));
    }
    for baseline in &export.baselines {
        baseline.check().with_context(|| {
            format!("{} has an unusable baseline, {}", shown_path(path), baseline.name())
        })?;
    }
    Ok(export.baselines)
}

fn checksum(baselines: &[Baseline]) -> Result<Digest> {
    Ok(Digest::of(&serde_json::to_vec(baselines)?))
}

#[cfg(test)]
mod tests {
    use super::super::baseline::tests::example;
    use super::*;

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
