//! Baselines between machines: documents of several, which docs/guard.md describes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::arguments::{ExportArguments, ImportArguments, MergeArguments};
use super::baseline::{Baseline, Digest, Gain};
use super::control::Request;
use super::remote::serves;
use super::select::{select_all, short_name, title};
use super::store::Store;
use super::verbs::Done;
use crate::daemon::control::answer;
use crate::input;
use crate::output::Output;

const SCHEMA: &str = "tollgate.baselines/1";

#[derive(Serialize, Deserialize)]
struct Export {
    schema: String,
    /// Of the baselines as JSON without blanks, so that a document may be indented.
    sha256: Digest,
    baselines: Vec<Baseline>,
}

impl Export {
    fn new(baselines: Vec<Baseline>) -> Result<Self> {
        Ok(Self { schema: SCHEMA.into(), sha256: checksum(&baselines)?, baselines })
    }
}

pub fn export(arguments: &ExportArguments) -> Result<ExitCode> {
    let mut output = Output::open(arguments.output.as_deref(), Output::Stdout)?;
    // What a daemon knows is in the store then.
    serves(&arguments.socket, &arguments.store.folder)?;
    let all = Store::new(&arguments.store.folder).load_all()?;
    let chosen = match arguments.all {
        true => all,
        false => select_all(&arguments.programs, &all)?.into_iter().cloned().collect(),
    };
    output.write_json(&Export::new(chosen)?)?;
    Ok(ExitCode::SUCCESS)
}

pub fn merge(arguments: &MergeArguments) -> Result<ExitCode> {
    let mut output = Output::open(arguments.output.as_deref(), Output::Stdout)?;
    output.write_json(&Export::new(read_all(&arguments.files)?)?)?;
    Ok(ExitCode::SUCCESS)
}

/// By the daemon, if one uses this store, which goes by them at once.
pub fn import(arguments: &ImportArguments) -> Result<ExitCode> {
    let (baselines, replace) = (read_all(&arguments.files)?, arguments.replace);
    let done: Vec<Done> = if serves(&arguments.socket, &arguments.store.folder)? {
        answer(&arguments.socket, &Request::Import { baselines, replace })?
    } else {
        add(&Store::new(&arguments.store.folder), baselines, replace)?
    };
    done.iter().try_for_each(|done| Output::Stdout.write(&format!("{}\n", done.line)))?;
    Ok(ExitCode::SUCCESS)
}

/// All can be used before the first is stored.
pub fn add(store: &Store, baselines: Vec<Baseline>, replace: bool) -> Result<Vec<Done>> {
    let lock = store.lock()?;
    let mut changes = Vec::new();
    for baseline in baselines {
        let stored = lock.load(&baseline.digest, baseline.scope.as_deref())?;
        changes.push(change(stored, baseline, replace)?);
    }
    let save = |Change { mut baseline, is_changed, words }| {
        if is_changed {
            lock.save(&mut baseline)?;
        }
        let line = format!("{} {}: {words}", title(&baseline), short_name(&baseline));
        Ok(Done { identity: baseline.identity(), is_changed, line })
    };
    changes.into_iter().map(save).collect()
}

struct Change {
    baseline: Baseline,
    is_changed: bool,
    words: String,
}

fn change(stored: Option<Baseline>, imported: Baseline, replace: bool) -> Result<Change> {
    let to = |baseline, words: &str| Change { baseline, is_changed: true, words: words.to_owned() };
    let Some(stored) = stored else { return Ok(to(imported, "new")) };
    if replace {
        // Also later than that, by which others know.
        let saved = imported.saved.max(stored.saved);
        return Ok(to(Baseline { saved, ..imported }, "replaced"));
    }
    let mut merged = stored.clone();
    let gain = merged.merge(&imported)?;
    if gain == Gain::default() {
        // Also its counters: the same file may be imported again.
        return Ok(Change { baseline: stored, is_changed: false, words: "unchanged".into() });
    }
    let state = match merged.state.name() {
        state if state == stored.state.name() => String::new(),
        state => format!(", {state} now"),
    };
    let words = format!("merged (+{} pairs, +{} windows){state}", gain.pairs, gain.windows);
    Ok(to(merged, &words))
}

/// One a program, merged where several are of the same.
fn read_all(files: &[PathBuf]) -> Result<Vec<Baseline>> {
    let mut all: BTreeMap<String, Baseline> = BTreeMap::new();
    for file in files {
        for baseline in read(file)? {
            match all.get_mut(&baseline.name()) {
                None => _ = all.insert(baseline.name(), baseline),
                Some(same) => _ = same.merge(&baseline).with_context(|| file.display().to_string())?,
            }
        }
    }
    Ok(all.into_values().collect())
}

fn read(path: &Path) -> Result<Vec<Baseline>> {
    let export: Export = input::read(path, SCHEMA, "tollgate guard export")?;
    if checksum(&export.baselines)? != export.sha256 {
        bail!("{} was changed: its checksum is not that of its baselines", path.display());
    }
    for baseline in &export.baselines {
        baseline
            .check()
            .with_context(|| format!("{} has an unusable baseline, {}", path.display(), baseline.name()))?;
    }
    Ok(export.baselines)
}

fn checksum(baselines: &[Baseline]) -> Result<Digest> {
    Ok(Digest::of(&serde_json::to_vec(baselines)?))
}

#[cfg(test)]
mod tests {
    use super::super::baseline::State;
    use super::super::baseline::tests::example;
    use super::*;

    fn words(stored: Option<Baseline>, imported: Baseline, replace: bool) -> (String, bool) {
        let change = change(stored, imported, replace).expect("alike");
        (change.words, change.is_changed)
    }

    #[test]
    fn what_is_imported_is_new_merged_or_nothing_new() {
        let stored = Baseline { state: State::Normal, ..example() };
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
        let write = |export: &Export| {
            std::fs::write(&path, serde_json::to_string_pretty(export).expect("JSON")).expect("written");
        };
        let mut export = Export::new(vec![example()]).expect("JSON");
        write(&export);
        assert_eq!(read(&path).expect("whole"), [example()]);
        export.baselines[0].pairs[0].earlier = 9;
        write(&export);
        let refusal = || format!("{:#}", read(&path).expect_err("faulty"));
        assert!(refusal().ends_with("was changed: its checksum is not that of its baselines"));
        write(&Export::new(export.baselines).expect("JSON"));
        assert!(refusal().ends_with(": its pair 1 names call 9, and there are only 3"));
    }
}
