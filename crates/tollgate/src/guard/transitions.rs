//! pH's commands on stored baselines, applied directly or by a daemon that uses the store.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use super::baseline::{Baseline, BaselineId, BaselineState};
use super::resolve::{select_all, short_name, title};
use super::store::{LockedStore, Store};
use crate::format::number_of;

/// A command that changes a stored baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transition {
    Normalize,
    Tolerize,
    Sensitize,
    Reset,
}

/// What was done to one baseline, as one line.
#[derive(Debug, Serialize, Deserialize)]
pub struct TransitionResult {
    pub identity: BaselineId,
    pub is_changed: bool,
    pub line: String,
}

/// Finds all baselines before it changes the first one.
pub fn apply(
    store: &Store,
    transition: Transition,
    programs: &[String],
) -> Result<Vec<TransitionResult>> {
    let lock = store.lock()?;
    let all = lock.load_all()?;
    select_all(programs, &all)?
        .into_iter()
        .map(|baseline| {
            let done = change(&lock, transition, baseline.clone())?;
            let line = format!("{} {}: {done}", title(baseline), short_name(baseline));
            Ok(TransitionResult { identity: baseline.identity(), is_changed: true, line })
        })
        .collect()
}

fn change(
    lock: &LockedStore<'_>,
    transition: Transition,
    mut baseline: Baseline,
) -> Result<String> {
    let (state, sizes) = (baseline.state, (baseline.pairs.len(), baseline.windows.len()));
    match transition {
        Transition::Normalize if !baseline.has_learned() && !baseline.has_normal() => bail!(
            "{} {} has learned nothing: every call of the program would be an anomaly",
            title(&baseline),
            short_name(&baseline)
        ),
        Transition::Normalize => baseline.normalize(),
        Transition::Tolerize => baseline.tolerize(),
        Transition::Sensitize => baseline.sensitize(),
        Transition::Reset => {
            lock.remove(&baseline)?;
            return Ok("deleted".into());
        }
    }
    lock.save(&mut baseline)?;
    let (pairs, windows) = (baseline.pairs.len(), baseline.windows.len());
    Ok(match transition {
        Transition::Normalize => format!(
            "normal from now on, with {} and {}",
            number_of(pairs, "pair"),
            number_of(windows, "window")
        ),
        Transition::Tolerize if state == BaselineState::Training => {
            "was in training already; its count of anomalies is reset".into()
        }
        Transition::Tolerize => format!("training again, no longer {}", state.name()),
        _ => format!(
            "wiped the training data: {} and {} that were not normal",
            number_of(sizes.0 - pairs, "pair"),
            number_of(sizes.1 - windows, "window")
        ),
    })
}
