//! What one program normally does, in its durable form: docs/guard.md describes it.

mod digest;
mod form;
mod merge;

use std::collections::BTreeSet;

use ::guard::Parameters;
use serde::{Deserialize, Serialize};

pub use digest::Digest;
pub use form::Fault;
pub use merge::{Counts, Gain};

/// The kernel side has a byte a symbol, whose upper half it needs itself: 0 is no call, 127 any further one.
pub const MOST_CALLS: usize = 126;
/// In place of an index: a call that came when all symbols were given.
pub const ANY_OTHER: u8 = 127;

/// What a baseline is of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Identity {
    pub digest: Digest,
    pub scope: Option<String>,
}

/// A program is known by the content of its file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    pub digest: Digest,
    /// What it is of besides the content, such as a script, a unit or an image; None: the content alone.
    pub scope: Option<String>,
    /// Where the program was seen.
    pub paths: BTreeSet<String>,
    /// Calls in the windows of either model.
    pub lookahead: usize,
    pub sequence: usize,
    #[serde(flatten)]
    pub state: State,
    /// Names, in the order in which they were first seen.
    pub calls: Vec<String>,
    pub pairs: Vec<Pair>,
    pub windows: Vec<Window>,
    /// Calls since training began.
    pub trained: u64,
    /// `trained` when something new was learned last.
    pub changed_at: u64,
    /// Since it became normal.
    pub anomalies: u64,
    /// Calls ever.
    pub seen_calls: u64,
    /// Unix seconds, as all times here.
    pub first_seen: u64,
    pub last_changed: u64,
    pub saved: u64,
}

/// pH's states: `guard::State` with a time that outlives a boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum State {
    Training,
    Frozen { normal_at: u64 },
    Normal,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Frozen { .. } => "frozen",
            Self::Normal => "normal",
        }
    }
}

/// Bit i - 1 is set if `earlier` was seen i calls before `call`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Indices into the calls.
    pub call: u8,
    pub earlier: u8,
    /// pH's training array.
    pub learned: u8,
    /// pH's test array.
    pub normal: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Indices, the latest call last.
    pub calls: Vec<u8>,
    pub learned: bool,
    pub normal: bool,
}

/// Of the file in the store; its start is enough to name a baseline.
pub fn name(digest: &Digest, scope: Option<&str>) -> String {
    let content = &digest.to_string()[..32];
    match scope {
        Some(scope) => format!("{content}-{}", &Digest::of(scope.as_bytes()).to_string()[..16]),
        None => content.to_owned(),
    }
}

impl Baseline {
    pub fn identity(&self) -> Identity {
        Identity { digest: self.digest, scope: self.scope.clone() }
    }

    pub fn name(&self) -> String {
        name(&self.digest, self.scope.as_deref())
    }

    /// The name of a call, by its index.
    pub fn call(&self, index: u8) -> &str {
        self.calls.get(usize::from(index)).map_or("any other", String::as_str)
    }

    /// Calls since training began over those until something new was learned last: how sure it is that nothing new
    /// comes. None where nothing was learned.
    pub fn ratio(&self) -> Option<f64> {
        (self.changed_at > 0).then(|| self.trained as f64 / self.changed_at as f64)
    }

    pub fn has_learned(&self) -> bool {
        self.pairs.iter().any(|pair| pair.learned != 0) || self.windows.iter().any(|window| window.learned)
    }

    /// Whether anything would not be an anomaly.
    pub fn has_normal(&self) -> bool {
        self.pairs.iter().any(|pair| pair.normal != 0) || self.windows.iter().any(|window| window.normal)
    }

    /// What was learned is normal from now on (pH's start_normal), and what was so before stays: above the tolerize limit
    /// all that was learned is forgotten, also what is normal.
    pub fn normalize(&mut self) {
        for pair in &mut self.pairs {
            pair.learned |= pair.normal;
            pair.normal = pair.learned;
        }
        for window in &mut self.windows {
            window.learned |= window.normal;
            window.normal = window.learned;
        }
        self.anomalies = 0;
        (self.trained, self.changed_at) = (0, 0);
        self.state = State::Normal;
    }

    /// No longer normal, and nothing is forgotten (pH's stop_normal).
    pub fn tolerize(&mut self) {
        self.anomalies = 0;
        self.state = State::Training;
    }

    /// What was learned is forgotten, what is normal stays (as pH does above its tolerize limit).
    pub fn sensitize(&mut self) {
        for pair in &mut self.pairs {
            pair.learned = 0;
        }
        for window in &mut self.windows {
            window.learned = false;
        }
        self.drop_unknown();
        self.anomalies = 0;
        (self.trained, self.changed_at) = (0, 0);
    }

    fn drop_unknown(&mut self) {
        self.pairs.retain(|pair| pair.learned | pair.normal != 0);
        self.windows.retain(|window| window.learned || window.normal);
    }
}

/// A baseline freezes above this ratio.
pub fn freezing_ratio() -> f64 {
    let (factor, denominator) = Parameters::default().normal_factor;
    factor as f64 / denominator as f64
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Learned: open read close, then another read; normal: open read.
    pub(in crate::guard) fn example() -> Baseline {
        let pair = |call, earlier, learned, normal| Pair { call, earlier, learned, normal };
        Baseline {
            digest: Digest::of(b"example"),
            scope: None,
            paths: ["/usr/bin/example".to_owned()].into(),
            lookahead: 9,
            sequence: 3,
            state: State::Frozen { normal_at: 1_700_600_000 },
            calls: ["open", "read", "close"].map(str::to_owned).into(),
            pairs: vec![
                pair(1, 0, 0b1, 0b1),
                pair(2, 0, 0b10, 0),
                pair(2, 1, 0b1, 0),
                pair(1, 2, 0b1, 0),
                pair(0, 2, 0, 0b1),
            ],
            windows: vec![
                Window { calls: vec![0, 1, 2], learned: true, normal: false },
                Window { calls: vec![1, 1, ANY_OTHER], learned: false, normal: true },
            ],
            trained: 500,
            changed_at: 100,
            anomalies: 3,
            seen_calls: 12_345,
            first_seen: 1_700_000_000,
            last_changed: 1_700_000_100,
            saved: 1_700_000_200,
        }
    }

    #[test]
    fn normalized_what_was_learned_is_normal() {
        let mut baseline = example();
        baseline.normalize();
        assert_eq!((baseline.state, baseline.anomalies, baseline.ratio()), (State::Normal, 0, None));
        assert!(baseline.pairs.iter().all(|pair| pair.learned == pair.normal));
        // What was normal and not learned again, too.
        assert_eq!((baseline.pairs.len(), baseline.windows.len()), (5, 2));
    }

    #[test]
    fn tolerized_it_learns_on() {
        let mut baseline = example();
        baseline.tolerize();
        let unlike = Baseline { state: State::Training, anomalies: 0, ..example() };
        assert_eq!(baseline, unlike);
    }

    #[test]
    fn sensitized_it_has_learned_nothing_and_keeps_its_normal() {
        let mut baseline = example();
        baseline.sensitize();
        assert!(!baseline.has_learned());
        assert_eq!((baseline.state, baseline.trained, baseline.anomalies), (example().state, 0, 0));
        let normal: Vec<_> =
            baseline.pairs.iter().map(|pair| (pair.call, pair.earlier, pair.normal)).collect();
        assert_eq!(normal, [(1, 0, 1), (0, 2, 1)]);
        assert_eq!(baseline.windows.len(), 1);
    }

    #[test]
    fn the_ratio_is_the_one_by_which_the_reference_freezes() {
        let parameters = Parameters::default();
        for (trained, changed_at) in [(400, 100), (401, 100), (41, 10), (7, 7)] {
            let baseline = Baseline { trained, changed_at, ..example() };
            let is_above = baseline.ratio().is_some_and(|ratio| ratio > freezing_ratio());
            assert_eq!(is_above, parameters.freezes(trained, trained - changed_at), "{trained} {changed_at}");
        }
    }

    #[test]
    fn names_tell_scopes_apart() {
        let alone = example();
        let script = Baseline { scope: Some("backup.py".into()), ..example() };
        assert_eq!(alone.name(), &alone.digest.to_string()[..32]);
        assert!(script.name().starts_with(&format!("{}-", alone.name())));
        assert_eq!(script.name().len(), 49);
    }
}
