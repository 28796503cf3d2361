//! `tollgate guard show`: stored baselines as text and as JSON (docs/guard.md).

mod followers;
mod text;

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use super::arguments::GuardShowArguments;
use super::baseline::{Baseline, BaselineState, Digest};
use super::clock::unix_now;
use super::commands::is_served_by_daemon;
use super::resolve::select;
use super::store::Store;
use crate::output::Output;
use followers::{CallFollowers, successors};

#[derive(Serialize)]
struct Listing<'a> {
    schema: &'static str,
    baselines: Vec<BaselineSummary<'a>>,
}

#[derive(Serialize)]
struct Single<'a> {
    schema: &'static str,
    #[serde(flatten)]
    summary: BaselineSummary<'a>,
    successors: Vec<CallFollowers<'a>>,
}

#[derive(Serialize)]
struct BaselineSummary<'a> {
    /// A prefix of the name is enough to select the baseline.
    name: String,
    digest: Digest,
    scope: Option<&'a str>,
    paths: &'a BTreeSet<String>,
    #[serde(flatten)]
    state: BaselineState,
    seen_calls: u64,
    distinct_calls: usize,
    pairs: usize,
    windows: usize,
    anomalies: u64,
    trained: u64,
    changed_at: u64,
    /// `trained` divided by `changed_at`; null if nothing new was learned.
    ratio: Option<f64>,
    first_seen: u64,
    last_changed: u64,
    saved: u64,
}

impl<'a> From<&'a Baseline> for BaselineSummary<'a> {
    fn from(it: &'a Baseline) -> Self {
        Self {
            name: it.name(),
            digest: it.digest,
            scope: it.scope.as_deref(),
            paths: &it.paths,
            state: it.state,
            seen_calls: it.seen_calls,
            distinct_calls: it.calls.len(),
            pairs: it.pairs.len(),
            windows: it.windows.len(),
            anomalies: it.anomalies,
            trained: it.trained,
            changed_at: it.changed_at,
            ratio: it.ratio(),
            first_seen: it.first_seen,
            last_changed: it.last_changed,
            saved: it.saved,
        }
    }
}

/// Prints all stored baselines, or one of them.
pub fn show(arguments: &GuardShowArguments) -> Result<ExitCode> {
    let result = &arguments.result;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    // After this call, the store has what a daemon knows.
    is_served_by_daemon(&arguments.socket, &arguments.store.folder)?;
    let store = Store::new(&arguments.store.folder);
    let mut all = store.load_all()?;
    all.sort_by(|a, b| (&a.paths, &a.scope, a.digest).cmp(&(&b.paths, &b.scope, b.digest)));
    match &arguments.program {
        None if result.json => output.write_json(&Listing {
            schema: "tollgate.guard.baselines/1",
            baselines: all.iter().map(BaselineSummary::from).collect(),
        })?,
        None => output.write(&text::list(&all, store.folder(), result.top, unix_now()))?,
        Some(program) => {
            let baseline = select(program, &all)?;
            let successors = successors(baseline);
            match result.json {
                true => output.write_json(&Single {
                    schema: "tollgate.guard.baseline/1",
                    summary: baseline.into(),
                    successors,
                })?,
                false => output.write(&text::one(baseline, &successors, result.top, unix_now()))?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
