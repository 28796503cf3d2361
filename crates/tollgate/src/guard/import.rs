//! Adds imported baselines to the store.

use anyhow::Result;

use super::baseline::{Baseline, Gain};
use super::resolve::{short_name, title};
use super::store::Store;
use super::transitions::TransitionResult;

/// Stores the first baseline only after a check that all of them can be used.
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
        // The time must not be earlier than the stored one, because other processes detect a change
        // by it.
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
}
