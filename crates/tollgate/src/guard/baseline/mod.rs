//! The stored form of a baseline, which says what one program normally does (docs/guard.md).

mod digest;
mod format;
mod merge;

use std::collections::BTreeSet;

use ::guard::Parameters;
use serde::{Deserialize, Deserializer, Serialize};

pub use digest::Digest;
pub use format::FormatError;
pub use merge::{BaselineCounters, Gain};

/// A symbol of the kernel side has 7 bits. Two of its 128 values are reserved: 0 stands for no
/// call, and 127 for any further call.
pub const MAX_CALLS: usize = 126;
/// The maximum number of paths of a baseline. Without a limit, a program that is seen at ever new
/// paths would have ever more of them.
const MAX_PATHS: usize = 16;
/// Stands for a call that was first made when all symbols were in use.
pub const ANY_OTHER: u8 = 127;

/// The folders of installed programs (file-hierarchy(7); /nix and /snap of these two). On a usual
/// system, other users than root cannot add files to them themselves.
const SYSTEM_FOLDERS: [&str; 8] =
    ["/bin/", "/lib/", "/lib64/", "/nix/", "/opt/", "/sbin/", "/snap/", "/usr/"];

/// The order in which paths are kept and shown: those of installed programs come first, so that
/// copies of a program do not hide its name.
fn path_order(path: &str) -> (bool, &str) {
    (!SYSTEM_FOLDERS.iter().any(|folder| path.starts_with(folder)), path)
}

/// The first paths, as many as a baseline may have.
pub fn limited_paths(paths: impl Iterator<Item = String>) -> BTreeSet<String> {
    let mut paths: Vec<_> = paths.collect();
    paths.sort_by(|one, other| path_order(one).cmp(&path_order(other)));
    paths.dedup();
    paths.into_iter().take(MAX_PATHS).collect()
}

fn deserialize_paths<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeSet<String>, D::Error> {
    Ok(limited_paths(Vec::deserialize(from)?.into_iter()))
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The program, and optionally the scope, of a baseline.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BaselineId {
    pub digest: Digest,
    pub scope: Option<String>,
}

/// A baseline. Its program is identified by the content of the program's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    pub digest: Digest,
    /// Further restriction of the baseline, such as a script, a unit or an image. `None` if only
    /// the content counts.
    pub scope: Option<String>,
    /// Where the program was seen.
    #[serde(deserialize_with = "deserialize_paths")]
    pub paths: BTreeSet<String>,
    /// Number of calls in the windows of the two models.
    pub lookahead: usize,
    pub sequence: usize,
    #[serde(flatten)]
    pub state: BaselineState,
    /// Names of calls, in the order in which they were first seen.
    pub calls: Vec<String>,
    pub pairs: Vec<BaselinePair>,
    pub windows: Vec<BaselineWindow>,
    /// Calls since training began.
    pub trained: u64,
    /// The value of `trained` when something new was last learned.
    pub changed_at: u64,
    /// Anomalies since the baseline became normal.
    pub anomalies: u64,
    /// How many of them count towards the anomaly limit, and the time of the latest of these.
    /// Without any, they are not written, so that the checksums of earlier exports hold.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub counted_anomalies: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub counted_at: u64,
    /// All calls that the program has ever made.
    pub seen_calls: u64,
    /// In Unix seconds, like all times here.
    pub first_seen: u64,
    pub last_changed: u64,
    pub saved: u64,
}

/// pH's states: `guard::State` with a time that survives a reboot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum BaselineState {
    Training,
    Frozen { normal_at: u64 },
    Normal,
}

impl BaselineState {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Frozen { .. } => "frozen",
            Self::Normal => "normal",
        }
    }
}

/// A lookahead pair. Bit i - 1 of an array is set if `earlier` was seen i calls before `call`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaselinePair {
    /// Indices into the calls.
    pub call: u8,
    pub earlier: u8,
    /// pH's training array.
    pub learned: u8,
    /// pH's test array.
    pub normal: u8,
}

/// A window of stide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaselineWindow {
    /// Indices into the calls, the latest call last.
    pub calls: Vec<u8>,
    pub learned: bool,
    pub normal: bool,
}

/// The name of the file in the store. The start of the name is enough to select a baseline.
pub fn name(digest: &Digest, scope: Option<&str>) -> String {
    let content = &digest.to_string()[..32];
    match scope {
        Some(scope) => format!("{content}-{}", &Digest::of(scope.as_bytes()).to_string()[..16]),
        None => content.to_owned(),
    }
}

impl Baseline {
    /// The path by which it is shown. `None`: none is known.
    pub fn main_path(&self) -> Option<&str> {
        self.paths.iter().map(String::as_str).min_by_key(|path| path_order(path))
    }

    /// The program, and optionally the scope, of this baseline.
    pub fn identity(&self) -> BaselineId {
        BaselineId { digest: self.digest, scope: self.scope.clone() }
    }

    /// The name of the baseline's file in the store, without the suffix.
    pub fn name(&self) -> String {
        name(&self.digest, self.scope.as_deref())
    }

    /// The name of the call with this index.
    pub fn call(&self, index: u8) -> &str {
        self.calls.get(usize::from(index)).map_or("any other", String::as_str)
    }

    /// The calls since training began, divided by those until something new was last learned: a
    /// measure of how certain it is that nothing new follows. `None` if nothing has been learned.
    pub fn ratio(&self) -> Option<f64> {
        (self.changed_at > 0).then(|| self.trained as f64 / self.changed_at as f64)
    }

    /// Whether there is any training data.
    pub fn has_learned(&self) -> bool {
        self.pairs.iter().any(|pair| pair.learned != 0)
            || self.windows.iter().any(|window| window.learned)
    }

    /// Whether any call at all could be normal.
    pub fn has_normal(&self) -> bool {
        self.pairs.iter().any(|pair| pair.normal != 0)
            || self.windows.iter().any(|window| window.normal)
    }

    /// Adds all training data to the normal data (pH's start_normal). What was normal before stays
    /// normal, even if the training data has since been wiped, as happens above the tolerize limit.
    pub fn normalize(&mut self) {
        for pair in &mut self.pairs {
            pair.learned |= pair.normal;
            pair.normal = pair.learned;
        }
        for window in &mut self.windows {
            window.learned |= window.normal;
            window.normal = window.learned;
        }
        self.reset_anomalies();
        (self.trained, self.changed_at) = (0, 0);
        self.state = BaselineState::Normal;
    }

    /// Returns to training and wipes nothing (pH's stop_normal).
    pub fn tolerize(&mut self) {
        self.reset_anomalies();
        self.state = BaselineState::Training;
    }

    fn reset_anomalies(&mut self) {
        (self.anomalies, self.counted_anomalies, self.counted_at) = (0, 0, 0);
    }

    /// Wipes the training data and keeps what is normal, as pH does above its tolerize limit.
    pub fn sensitize(&mut self) {
        for pair in &mut self.pairs {
            pair.learned = 0;
        }
        for window in &mut self.windows {
            window.learned = false;
        }
        self.drop_unknown();
        self.reset_anomalies();
        (self.trained, self.changed_at) = (0, 0);
    }

    fn drop_unknown(&mut self) {
        self.pairs.retain(|pair| pair.learned | pair.normal != 0);
        self.windows.retain(|window| window.learned || window.normal);
    }
}

/// The ratio above which a baseline freezes.
pub fn freezing_ratio() -> f64 {
    let (factor, denominator) = Parameters::default().normal_factor;
    factor as f64 / denominator as f64
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn paths_of_copies_do_not_hide_the_name_of_a_program() {
        let copies = (0..20).map(|number| format!("/home/user/{number:02}"));
        let paths = limited_paths(copies.chain(["/usr/bin/bash".to_owned()]));
        assert_eq!((paths.len(), paths.contains("/usr/bin/bash")), (MAX_PATHS, true));
        assert!(paths.contains("/home/user/14") && !paths.contains("/home/user/15"));
        let baseline = Baseline { paths, ..example() };
        assert_eq!(baseline.main_path(), Some("/usr/bin/bash"));
    }

    /// Learned: open read close, then another read; normal: open read.
    pub(in crate::guard) fn example() -> Baseline {
        let pair = |call, earlier, learned, normal| BaselinePair { call, earlier, learned, normal };
        Baseline {
            digest: Digest::of(b"example"),
            scope: None,
            paths: ["/usr/bin/example".to_owned()].into(),
            lookahead: 9,
            sequence: 3,
            state: BaselineState::Frozen { normal_at: 1_700_600_000 },
            calls: ["open", "read", "close"].map(str::to_owned).into(),
            pairs: vec![
                pair(1, 0, 0b1, 0b1),
                pair(2, 0, 0b10, 0),
                pair(2, 1, 0b1, 0),
                pair(1, 2, 0b1, 0),
                pair(0, 2, 0, 0b1),
            ],
            windows: vec![
                BaselineWindow { calls: vec![0, 1, 2], learned: true, normal: false },
                BaselineWindow { calls: vec![1, 1, ANY_OTHER], learned: false, normal: true },
            ],
            trained: 500,
            changed_at: 100,
            anomalies: 3,
            counted_anomalies: 2,
            counted_at: 1_700_000_050,
            seen_calls: 12_345,
            first_seen: 1_700_000_000,
            last_changed: 1_700_000_100,
            saved: 1_700_000_200,
        }
    }

    #[test]
    fn paths_are_limited_when_they_are_read() {
        let mut many = example();
        many.paths = (0..1000).map(|n| format!("/opt/{n:04}")).collect();
        let text = many.to_text().expect("JSON");
        let read = Baseline::from_text(text.as_bytes()).expect("a baseline");
        assert_eq!(read.paths.len(), MAX_PATHS);
        assert_eq!(read.paths.last().map(String::as_str), Some("/opt/0015"));
    }

    #[test]
    fn normalize_makes_learned_normal() {
        let mut baseline = example();
        baseline.normalize();
        assert_eq!(
            (baseline.state, baseline.anomalies, baseline.ratio()),
            (BaselineState::Normal, 0, None)
        );
        assert!(baseline.pairs.iter().all(|pair| pair.learned == pair.normal));
        // These include what was normal and has not been learned again.
        assert_eq!((baseline.pairs.len(), baseline.windows.len()), (5, 2));
    }

    #[test]
    fn tolerize_continues_training() {
        let mut baseline = example();
        baseline.tolerize();
        let unlike = Baseline {
            state: BaselineState::Training,
            anomalies: 0,
            counted_anomalies: 0,
            counted_at: 0,
            ..example()
        };
        assert_eq!(baseline, unlike);
    }

    #[test]
    fn sensitize_wipes_training_only() {
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
    fn freeze_ratio_matches_the_reference() {
        let parameters = Parameters::default();
        for (trained, changed_at) in [(400, 100), (401, 100), (41, 10), (7, 7)] {
            let baseline = Baseline { trained, changed_at, ..example() };
            let is_above = baseline.ratio().is_some_and(|ratio| ratio > freezing_ratio());
            assert_eq!(
                is_above,
                parameters.freezes(trained, trained - changed_at),
                "{trained} {changed_at}"
            );
        }
    }

    #[test]
    fn file_names_depend_on_scope() {
        let alone = example();
        let script = Baseline { scope: Some("backup.py".into()), ..example() };
        assert_eq!(alone.name(), &alone.digest.to_string()[..32]);
        assert!(script.name().starts_with(&format!("{}-", alone.name())));
        assert_eq!(script.name().len(), 49);
    }
}
