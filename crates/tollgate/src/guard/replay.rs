//! `tollgate guard replay`: what the guard would have reported about recorded traces.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ::guard::{CallVerdict, GuardThread, ModelKind, Parameters, Profile, auc, rate_at_least};
use anyhow::{Result, bail};

use super::arguments::{ModelOption, ReplayArguments};
use super::replay_report::{
    Label, ModelSummary, ReplayReport, ReplayedProcess, SCHEMA, Trained, text,
};
use super::traces::{CallTrace, Names, read};
use crate::output::Output;

/// Traces have no times. None are needed, because `trained` normalizes the profile without a wait.
const NOW: Duration = Duration::ZERO;

/// Trains a profile of each model, tests the other traces against it, and prints the result.
pub fn replay(arguments: &ReplayArguments) -> Result<ExitCode> {
    let mut output = Output::open(arguments.output.as_deref(), Output::Stdout)?;
    let inputs =
        [&arguments.train, &arguments.test_normal, &arguments.test_attack, &arguments.test];
    output.refuse_inputs(inputs.into_iter().flatten())?;
    let mut names = Names::default();
    let mut traces = |paths: &[PathBuf]| -> Result<Vec<CallTrace>> {
        let mut all = Vec::new();
        for path in paths {
            all.extend(read(path, &mut names)?);
        }
        Ok(all)
    };
    let train = traces(&arguments.train)?;
    let mut tests = Vec::new();
    for (label, paths) in [
        (Label::Normal, &arguments.test_normal),
        (Label::Attack, &arguments.test_attack),
        (Label::Unknown, &arguments.test),
    ] {
        tests.extend(traces(paths)?.into_iter().map(|trace| (label, trace)));
    }
    if tests.is_empty() {
        bail!("there are no traces to test: give --test, --test-normal or --test-attack");
    }
    let mut report = ReplayReport {
        schema: SCHEMA,
        trained: Trained {
            processes: train.len(),
            calls: train.iter().map(|trace| trace.calls.len() as u64).sum(),
        },
        models: BTreeMap::new(),
        processes: Vec::new(),
    };
    for kind in model_kinds(arguments) {
        let length = arguments.length.map_or(kind.default_length(), usize::from);
        let profile = trained(kind, length, arguments, &train);
        let own: Vec<_> = tests
            .iter()
            .map(|(label, trace)| replay_process(kind, *label, trace, &profile))
            .collect();
        report.models.insert(kind.name(), summary(length, profile.size(), arguments.at, &own));
        report.processes.extend(own);
    }
    match arguments.json {
        true => output.write_json(&report)?,
        false => output.write(&text(&report, arguments.top))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn model_kinds(arguments: &ReplayArguments) -> Vec<ModelKind> {
    match arguments.model {
        None => ModelKind::ALL.to_vec(),
        Some(ModelOption::Lookahead) => vec![ModelKind::Lookahead],
        Some(ModelOption::Sequence) => vec![ModelKind::Sequence],
    }
}

/// A profile that was trained on all the traces and then normalized.
fn trained(
    kind: ModelKind,
    length: usize,
    arguments: &ReplayArguments,
    train: &[CallTrace],
) -> Profile {
    let parameters = Parameters { delay_factor: arguments.delay_factor, ..Parameters::default() };
    let mut profile = Profile::new(&[(kind, length)], parameters);
    for trace in train {
        run(&mut profile, trace, |_, _| ());
    }
    profile.normalize();
    profile
}

/// Processes the calls of one trace. Traces can be run one after the other: each thread has its own
/// sequence, so the interleaving of processes does not matter to a profile.
fn run(profile: &mut Profile, trace: &CallTrace, mut on_call: impl FnMut(usize, &CallVerdict)) {
    let mut thread = GuardThread::default();
    let mut execs = trace.execs.iter().peekable();
    for (index, call) in trace.calls.iter().enumerate() {
        if execs.next_if_eq(&&index).is_some() {
            thread.reset();
        }
        let verdict = profile.process_syscall(&mut thread, *call, NOW);
        on_call(index, &verdict);
    }
}

/// Tests a process against a copy of the profile, so that no process changes what the next one is
/// tested against.
fn replay_process(
    kind: ModelKind,
    label: Label,
    trace: &CallTrace,
    profile: &Profile,
) -> ReplayedProcess {
    let mut profile = profile.clone();
    let mut process = ReplayedProcess {
        source: trace.source.clone(),
        pid: trace.pid,
        label,
        model: kind.name(),
        calls: trace.calls.len(),
        anomalies: 0,
        max_lfc: 0,
        delay_begins: None,
        delay_ns: 0,
    };
    run(&mut profile, trace, |index, verdict| {
        process.anomalies += u64::from(verdict.mismatches > 0);
        process.max_lfc = process.max_lfc.max(verdict.lfc);
        if !verdict.delay.is_zero() {
            process.delay_begins.get_or_insert(index + 1);
        }
        let delay_ns = u64::try_from(verdict.delay.as_nanos()).unwrap_or(u64::MAX);
        process.delay_ns = process.delay_ns.saturating_add(delay_ns);
    });
    process
}

fn summary(length: usize, size: usize, at: u32, processes: &[ReplayedProcess]) -> ModelSummary {
    let scores = |label: Label| -> Vec<u32> {
        processes
            .iter()
            .filter(|process| process.label == label)
            .map(|process| process.max_lfc)
            .collect()
    };
    let (normal, attacks) = (scores(Label::Normal), scores(Label::Attack));
    let rate = |scores: &[u32]| (!scores.is_empty()).then(|| rate_at_least(scores, at));
    ModelSummary {
        length,
        size,
        auc: auc(&normal, &attacks),
        detection: rate(&attacks),
        false_alarms: rate(&normal),
        at,
    }
}
