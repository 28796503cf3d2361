//! `tollgate guard replay`: what the guard would have said of traces.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ::guard::{Kind, Parameters, Profile, Thread, Verdict, area, rate_from};
use anyhow::{Result, bail};

use super::arguments::ReplayArguments;
use super::report::{Label, Process, Report, SCHEMA, Summary, Trained, text};
use super::traces::{Names, Trace, read};
use crate::output::Output;

/// `--model`
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Model {
    /// Pairs of calls that were so many calls apart: pH's own
    Lookahead,
    /// Whole windows of calls: stide's
    Sequence,
}

/// Traces have no times; to a profile that a person normalized, none has passed.
const NOW: Duration = Duration::ZERO;

pub fn replay(arguments: &ReplayArguments) -> Result<ExitCode> {
    let mut output = Output::open(arguments.output.as_deref(), Output::Stdout)?;
    let mut names = Names::default();
    let mut traces = |paths: &[PathBuf]| -> Result<Vec<Trace>> {
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
        bail!("nothing is to be tested: --test, --test-normal or --test-attack names traces");
    }
    let mut report = Report {
        schema: SCHEMA,
        trained: Trained {
            processes: train.len(),
            calls: train.iter().map(|trace| trace.calls.len() as u64).sum(),
        },
        models: BTreeMap::new(),
        processes: Vec::new(),
    };
    for kind in kinds(arguments) {
        let length = arguments.length.map_or(kind.usual_length(), usize::from);
        let profile = trained(kind, length, arguments, &train);
        let own: Vec<_> = tests.iter().map(|(label, trace)| judged(kind, *label, trace, &profile)).collect();
        report.models.insert(kind.name(), summary(length, profile.size(), arguments.at, &own));
        report.processes.extend(own);
    }
    match arguments.json {
        true => output.write_json(&report)?,
        false => output.write(&text(&report, arguments.top))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn kinds(arguments: &ReplayArguments) -> Vec<Kind> {
    match arguments.model {
        None => Kind::ALL.to_vec(),
        Some(Model::Lookahead) => vec![Kind::Lookahead],
        Some(Model::Sequence) => vec![Kind::Sequence],
    }
}

/// Normal once it has seen all the traces.
fn trained(kind: Kind, length: usize, arguments: &ReplayArguments, train: &[Trace]) -> Profile {
    let parameters = Parameters { delay_factor: arguments.delay_factor, ..Parameters::default() };
    let mut profile = Profile::new(&[(kind, length)], parameters);
    for trace in train {
        run(&mut profile, trace, |_, _| ());
    }
    profile.normalize();
    profile
}

/// One process after the other: each thread has its own sequence, so their interleaving does not matter to a profile.
fn run(profile: &mut Profile, trace: &Trace, mut tell: impl FnMut(usize, &Verdict)) {
    let mut thread = Thread::default();
    let mut execs = trace.execs.iter().peekable();
    for (place, call) in trace.calls.iter().enumerate() {
        if execs.next_if_eq(&&place).is_some() {
            thread.wipe();
        }
        let verdict = profile.call(&mut thread, *call, NOW);
        tell(place, &verdict);
    }
}

/// Against a copy of the profile, so that no process changes what the next one is tested against.
fn judged(kind: Kind, label: Label, trace: &Trace, profile: &Profile) -> Process {
    let mut profile = profile.clone();
    let mut process = Process {
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
    run(&mut profile, trace, |place, verdict| {
        process.anomalies += u64::from(verdict.mismatches > 0);
        process.max_lfc = process.max_lfc.max(verdict.lfc);
        if !verdict.delay.is_zero() {
            process.delay_begins.get_or_insert(place + 1);
        }
        let delay_ns = u64::try_from(verdict.delay.as_nanos()).unwrap_or(u64::MAX);
        process.delay_ns = process.delay_ns.saturating_add(delay_ns);
    });
    process
}

fn summary(length: usize, size: usize, at: u32, processes: &[Process]) -> Summary {
    let scores = |label: Label| -> Vec<u32> {
        processes.iter().filter(|process| process.label == label).map(|process| process.max_lfc).collect()
    };
    let (normal, attacks) = (scores(Label::Normal), scores(Label::Attack));
    let rate = |scores: &[u32]| (!scores.is_empty()).then(|| rate_from(scores, at));
    Summary {
        length,
        size,
        auc: area(&normal, &attacks),
        detection: rate(&attacks),
        false_alarms: rate(&normal),
        at,
    }
}
