//! pH's commands, on stored baselines: of the store by itself, or by a daemon that has them in use.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use super::baseline::{Baseline, Identity, State};
use super::select::{select_all, short_name, title};
use super::store::{Locked, Store};
use crate::format::number_of;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    Normalize,
    Tolerize,
    Sensitize,
    Reset,
}

/// What was done to one baseline, in a line.
#[derive(Debug, Serialize, Deserialize)]
pub struct Done {
    pub identity: Identity,
    pub is_changed: bool,
    pub line: String,
}

/// All are found before the first is changed.
pub fn apply(store: &Store, verb: Verb, programs: &[String]) -> Result<Vec<Done>> {
    let lock = store.lock()?;
    let all = lock.load_all()?;
    select_all(programs, &all)?
        .into_iter()
        .map(|baseline| {
            let done = change(&lock, verb, baseline.clone())?;
            let line = format!("{} {}: {done}", title(baseline), short_name(baseline));
            Ok(Done { identity: baseline.identity(), is_changed: true, line })
        })
        .collect()
}

fn change(lock: &Locked<'_>, verb: Verb, mut baseline: Baseline) -> Result<String> {
    let (state, sizes) = (baseline.state, (baseline.pairs.len(), baseline.windows.len()));
    match verb {
        Verb::Normalize if !baseline.has_learned() && !baseline.has_normal() => bail!(
            "{} {} has learned nothing: all that the program does would be an anomaly",
            title(&baseline),
            short_name(&baseline)
        ),
        Verb::Normalize => baseline.normalize(),
        Verb::Tolerize => baseline.tolerize(),
        Verb::Sensitize => baseline.sensitize(),
        Verb::Reset => {
            lock.remove(&baseline)?;
            return Ok("deleted".into());
        }
    }
    lock.save(&mut baseline)?;
    let (pairs, windows) = (baseline.pairs.len(), baseline.windows.len());
    Ok(match verb {
        Verb::Normalize => format!(
            "normal from now on, with {} and {}",
            number_of(pairs, "pair"),
            number_of(windows, "window")
        ),
        Verb::Tolerize if state == State::Training => {
            "was training already; its anomalies are no longer counted".into()
        }
        Verb::Tolerize => format!("training again, no longer {}", state.name()),
        _ => format!(
            "forgot what was learned; {} and {} of it were not normal",
            number_of(sizes.0 - pairs, "pair"),
            number_of(sizes.1 - windows, "window")
        ),
    })
}
