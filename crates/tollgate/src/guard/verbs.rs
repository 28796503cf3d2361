//! pH's commands, on stored baselines.

use std::process::ExitCode;

use anyhow::{Result, bail};

use super::arguments::Programs;
use super::baseline::{Baseline, State};
use super::select::{select_all, short_name, title};
use super::store::{Locked, Store};
use crate::format::number_of;
use crate::output::Output;

pub fn normalize(arguments: &Programs) -> Result<ExitCode> {
    for_each(arguments, |lock, mut baseline| {
        if !baseline.has_learned() {
            bail!(
                "{} {} has learned nothing: all that the program does would be an anomaly",
                title(&baseline),
                short_name(&baseline)
            );
        }
        baseline.normalize();
        lock.save(&mut baseline)?;
        let (pairs, windows) =
            (number_of(baseline.pairs.len(), "pair"), number_of(baseline.windows.len(), "window"));
        Ok(format!("normal from now on, with {pairs} and {windows}"))
    })
}

pub fn tolerize(arguments: &Programs) -> Result<ExitCode> {
    for_each(arguments, |lock, mut baseline| {
        let before = baseline.state;
        baseline.tolerize();
        lock.save(&mut baseline)?;
        Ok(match before {
            State::Training => "was training already; its anomalies are no longer counted".into(),
            before => format!("training again, no longer {}", before.name()),
        })
    })
}

pub fn sensitize(arguments: &Programs) -> Result<ExitCode> {
    for_each(arguments, |lock, mut baseline| {
        let before = (baseline.pairs.len(), baseline.windows.len());
        baseline.sensitize();
        lock.save(&mut baseline)?;
        let (pairs, windows) = (before.0 - baseline.pairs.len(), before.1 - baseline.windows.len());
        Ok(format!(
            "forgot what was learned; {} and {} of it were not normal",
            number_of(pairs, "pair"),
            number_of(windows, "window")
        ))
    })
}

pub fn reset(arguments: &Programs) -> Result<ExitCode> {
    for_each(arguments, |lock, baseline| {
        lock.remove(&baseline)?;
        Ok("deleted".into())
    })
}

/// All are found before the first is changed. A line each says what was done.
fn for_each(
    arguments: &Programs,
    change: impl Fn(&Locked<'_>, Baseline) -> Result<String>,
) -> Result<ExitCode> {
    let store = Store::new(&arguments.store.folder);
    let lock = store.lock()?;
    let all = lock.load_all()?;
    for baseline in select_all(&arguments.programs, &all)? {
        let done = change(&lock, baseline.clone())?;
        Output::Stdout.write(&format!("{} {}: {done}\n", title(baseline), short_name(baseline)))?;
    }
    Ok(ExitCode::SUCCESS)
}
