//! A guarded program: its profile in the kernel, the baseline that was loaded into the profile, and
//! the baseline that is stored from it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use ::guard::{AnomalyLimit, CountedAnomalies};
use anyhow::Result;
use kernel::guard::profile::{self, Contents, KernelProfile};
use kernel::wire;

use super::baseline::{
    ANY_OTHER, Baseline, BaselineCounters, BaselineId, BaselinePair, BaselineState, BaselineWindow,
    Digest, Gain, limited_paths,
};
use super::clock::unix_now;
use super::policy::Mode;
use super::report::with_scope;
use crate::call_name::call_name;
use crate::format::printable;

/// A program whose baseline is in use.
pub struct TrackedProgram {
    pub profile: KernelProfile,
    /// Where the program was seen.
    pub path: PathBuf,
    pub identification: Identification,
    /// One of its files is exempt.
    pub is_exempt: bool,
    pub digest: Option<Digest>,
    pub scope: Option<String>,
    /// The stored baseline that was installed.
    pub installed: Option<Baseline>,
    /// Calls of the profile that the stored baseline already counts.
    stored_calls: u64,
    pub in_store: StoredState,
    /// Calls that the program made before its baseline was installed.
    pub early_calls: u64,
    /// The anomalies that count towards the limit, with times in Unix seconds.
    pub counted: CountedAnomalies,
    first_seen: u64,
    /// The sizes of the baseline, and the time at which they last changed.
    changed: Option<((usize, usize), u64)>,
    /// The freeze count, and the time in Unix seconds at which the baseline becomes normal if it
    /// stays frozen until then.
    normal_at: Option<(u32, u64)>,
    /// The call of each symbol that is in use, as far as it has been read.
    calls: Vec<Option<u32>>,
    /// The wipe count at which the map was read, and the map: for each symbol, the symbols that
    /// normally follow it.
    next: Option<(u32, BTreeMap<u8, BTreeSet<u8>>)>,
}

/// Whether a program is identified by the content of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identification {
    /// Its file is to be opened.
    Opening,
    /// Its file is to be hashed.
    Hashing,
    Identified,
    /// It ended before its file could be opened.
    EndedTooSoon,
    TooLong,
    Unreadable,
}

impl Identification {
    /// Whether the program may be identified later.
    pub fn waits(self) -> bool {
        matches!(self, Self::Opening | Self::Hashing)
    }

    /// Whether nothing more is to be done about it.
    pub fn is_final(self) -> bool {
        !self.waits() && self != Self::EndedTooSoon
    }

    /// Why the program is not identified, for reports. `None` if it is.
    pub fn text(self) -> Option<&'static str> {
        match self {
            Self::Identified => None,
            Self::Opening | Self::Hashing => Some("not hashed yet"),
            Self::EndedTooSoon => Some("ended too soon"),
            Self::TooLong => Some("longer than 1 GiB"),
            Self::Unreadable => Some("not readable"),
        }
    }
}

/// The state of a program in the store.
#[derive(Default)]
pub struct StoredState {
    pub at: Option<u64>,
    /// The store has something that the profile lacks, because another Tollgate process stored it.
    pub has_more: bool,
    counts: BaselineCounters,
    state: Option<BaselineState>,
    sizes: (usize, usize),
}

impl StoredState {
    /// Records that the file written at that time contains the profile's own baseline.
    pub fn note(&mut self, own: &Baseline, at: u64) {
        *self = Self {
            at: Some(at),
            has_more: false,
            counts: own.counts(),
            state: Some(own.state),
            sizes: sizes(own),
        };
    }

    /// Whether the store lacks something of the profile's own baseline. With `also_calls`, a higher
    /// number of calls is enough.
    pub fn needs_save(&self, own: &Baseline, also_calls: bool) -> bool {
        let is_idle = self.at.is_some() && self.counts.seen_calls == own.seen_calls;
        // In learn mode, a normal baseline returns to training. This is stored only if the program
        // has made calls.
        if is_idle && own.state == BaselineState::Training {
            return false;
        }
        self.state != Some(own.state)
            || self.counts.counted_anomalies != own.counted_anomalies
            || self.sizes != sizes(own)
            || also_calls && self.counts.seen_calls != own.seen_calls
    }

    /// The baseline to store in place of `stored`, and whether it has something that another
    /// Tollgate process has stored.
    pub fn merged_into(&self, own: &Baseline, stored: &Baseline) -> Result<(Baseline, bool)> {
        let mut all = own.clone();
        let mut gain = Gain::default();
        if Some(stored.saved) != self.at {
            gain = all.merge_after(stored, &self.counts)?;
        }
        all.saved = stored.saved;
        let has_more = gain != Gain::default() || all.state != own.state;
        Ok((all, has_more))
    }
}

impl TrackedProgram {
    /// A program that has just started. As long as it is not identified, nothing of it is stored.
    pub fn new(profile: KernelProfile, path: PathBuf) -> Self {
        Self {
            profile,
            path,
            identification: Identification::Opening,
            is_exempt: false,
            digest: None,
            scope: None,
            installed: None,
            stored_calls: 0,
            in_store: StoredState::default(),
            early_calls: 0,
            counted: CountedAnomalies::default(),
            first_seen: unix_now(),
            changed: None,
            normal_at: None,
            calls: Vec::new(),
            next: None,
        }
    }

    /// From now on, the program has this identity.
    pub fn identify(&mut self, path: PathBuf, identity: &BaselineId) {
        self.path = path;
        self.identification = Identification::Identified;
        self.digest = Some(identity.digest);
        self.scope.clone_from(&identity.scope);
    }

    /// The program's identity. `None` if nothing of the program is stored.
    pub fn identity(&self) -> Option<BaselineId> {
        Some(BaselineId { digest: self.digest?, scope: self.scope.clone() })
    }

    /// The program's path, as reports have it.
    pub fn path_text(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    /// The program's path and scope, for a message.
    pub fn title(&self) -> String {
        printable(&with_scope(&self.path_text(), self.scope.as_deref()))
    }

    /// Clears the program. Another baseline may be installed afterwards.
    pub fn reset(&mut self) {
        self.profile.empty();
        self.installed = None;
        self.stored_calls = self.profile.read().calls;
        self.in_store = StoredState::default();
        (self.first_seen, self.changed) = (unix_now(), None);
        self.normal_at = None;
        self.counted = CountedAnomalies::default();
        self.calls.clear();
        self.next = None;
    }

    /// Loads the stored baseline into the profile. Returns the number of pairs and windows that did
    /// not fit.
    pub fn install(&mut self, baseline: Baseline, mode: Mode) -> usize {
        self.early_calls += self.profile.read().calls - self.stored_calls;
        self.in_store.note(&baseline, baseline.saved);
        self.first_seen = baseline.first_seen;
        self.counted = CountedAnomalies {
            count: baseline.counted_anomalies,
            latest: Duration::from_secs(baseline.counted_at),
        };
        self.changed = Some((sizes(&baseline), baseline.last_changed));
        let contents = contents(&baseline, mode);
        let unfit = self.profile.add(&contents);
        if let BaselineState::Frozen { normal_at } = baseline.state {
            self.normal_at = Some((self.profile.freeze_count(), normal_at));
        }
        self.installed = Some(baseline);
        unfit
    }

    /// Makes the baseline normal if it has been frozen for long enough.
    pub fn tick(&mut self, now: u64, normal_wait: Duration, mode: Mode) {
        if self.profile.state() != wire::GUARD_FROZEN {
            return;
        }
        let freeze_count = self.profile.freeze_count();
        let normal_at = match self.normal_at {
            Some((of, normal_at)) if of == freeze_count => normal_at,
            _ => now.saturating_add(normal_wait.as_secs()),
        };
        self.normal_at = Some((freeze_count, normal_at));
        if now > normal_at && mode != Mode::Learn {
            self.profile.normalize();
            self.counted = CountedAnomalies::default();
        }
    }

    /// Counts an event of the program towards the anomaly limit. Returns whether its baseline
    /// returned to training because of it.
    pub fn count_anomaly(
        &mut self,
        event: &wire::guard_event,
        limit: &AnomalyLimit,
        tolerize_limit: u16,
        now: u64,
    ) -> bool {
        if !could_go_on(event) || self.profile.state() != wire::GUARD_NORMAL {
            return false;
        }
        // The gate has wiped the training data, so there is nothing to return to.
        if u16::from(event.lfc) > tolerize_limit {
            self.counted = CountedAnomalies::default();
            return false;
        }
        let retrains = limit.count(&mut self.counted, Duration::from_secs(now));
        if retrains {
            self.profile.tolerize();
        }
        retrains
    }

    /// The name of the call with this symbol.
    pub fn call(&mut self, symbol: u8) -> String {
        let known = |calls: &[Option<u32>]| calls.get(usize::from(symbol) - 1).copied().flatten();
        if known(&self.calls).is_none() {
            self.calls = self.profile.contents().calls;
        }
        known(&self.calls).map_or_else(|| "any other".to_owned(), name)
    }

    /// The calls that normally follow a call immediately.
    pub fn expected_after(&mut self, symbol: u8) -> Vec<String> {
        let wipe_count = self.profile.wipe_count();
        if self.next.as_ref().is_none_or(|(of, _)| *of != wipe_count) {
            let mut next = BTreeMap::<_, BTreeSet<_>>::new();
            for pair in self.profile.contents().pairs.iter().filter(|pair| pair.normal & 1 != 0) {
                next.entry(pair.earlier).or_default().insert(pair.current);
            }
            self.next = Some((wipe_count, next));
        }
        let next =
            self.next.as_ref().and_then(|(_, next)| next.get(&symbol)).cloned().unwrap_or_default();
        next.into_iter().map(|symbol| self.call(symbol)).collect()
    }

    /// The current baseline, to be stored. `None` if nothing of the program is stored, as in
    /// [`TrackedProgram::identity`].
    pub fn baseline(&mut self, wire: &wire::guard_parameters, now: u64) -> Option<Baseline> {
        let contents = self.profile.contents();
        let before = self.installed.as_ref();
        let state = match contents.state {
            wire::GUARD_NORMAL => BaselineState::Normal,
            wire::GUARD_FROZEN => BaselineState::Frozen {
                normal_at: self.normal_at.map_or(now, |(_, normal_at)| normal_at),
            },
            _ => BaselineState::Training,
        };
        let paths: BTreeSet<_> = before.map(|stored| stored.paths.clone()).unwrap_or_default();
        let paths = limited_paths(paths.into_iter().chain([self.path_text()]));
        let symbols = SymbolIndex::of(&contents);
        let mut baseline = Baseline {
            digest: self.digest?,
            scope: self.scope.clone(),
            paths,
            lookahead: wire.lookahead.into(),
            sequence: wire.sequence.into(),
            state,
            calls: symbols.names.clone(),
            pairs: contents.pairs.iter().map(|pair| symbols.pair(pair)).collect(),
            windows: contents.windows.iter().map(|window| symbols.window(window)).collect(),
            trained: contents.trained,
            changed_at: contents.changed_at,
            anomalies: contents.anomalies,
            counted_anomalies: self.counted.count,
            counted_at: self.counted.latest.as_secs(),
            seen_calls: contents.made - self.stored_calls
                + before.map_or(0, |stored| stored.seen_calls),
            first_seen: self.first_seen,
            last_changed: now,
            saved: 0,
        };
        let changed = self.changed.filter(|(before, _)| *before == sizes(&baseline));
        (_, baseline.last_changed) =
            *self.changed.insert(changed.unwrap_or((sizes(&baseline), now)));
        Some(baseline)
    }
}

/// Whether an anomaly of the program itself ended or stopped nothing for good. What an operator
/// has chosen to end must not become normal by being tried often.
fn could_go_on(event: &wire::guard_event) -> bool {
    u32::from(event.mismatches) & !wire::GUARD_DENOUNCED != 0
        && matches!(u32::from(event.action), wire::GUARD_OBSERVE | wire::GUARD_DELAY)
}

fn sizes(baseline: &Baseline) -> (usize, usize) {
    (baseline.pairs.len(), baseline.windows.len())
}

/// The name of a call in reports; calls of ABIs other than x86-64 carry the ABI's name.
pub fn name(slot: u32) -> String {
    match call_name(slot) {
        (calls::Abi::X86_64, name) => name,
        (abi, name) => format!("{name} ({})", abi.as_str()),
    }
}

/// The slot of the call with this [`name`].
fn slot(name: &str) -> Option<u32> {
    let slots = calls::Abi::ALL.into_iter().flat_map(|abi| {
        let base = abi as u32 * wire::CALLS_PER_ABI;
        base..base + wire::CALLS_PER_ABI
    });
    slots.into_iter().find(|slot| self::name(*slot) == name)
}

/// Maps symbols of a profile to indices of a baseline's calls.
struct SymbolIndex {
    names: Vec<String>,
    of_symbol: Vec<u8>,
}

impl SymbolIndex {
    fn of(contents: &Contents) -> Self {
        let (mut names, mut of_symbol) =
            (Vec::new(), vec![ANY_OTHER; wire::GUARD_SYMBOLS as usize]);
        for (symbol, call) in (1..).zip(&contents.calls) {
            if let Some(call) = call {
                of_symbol[symbol] = names.len() as u8;
                names.push(name(*call));
            }
        }
        Self { names, of_symbol }
    }

    fn index(&self, symbol: u8) -> u8 {
        self.of_symbol[usize::from(symbol)]
    }

    fn pair(&self, pair: &profile::ProfilePair) -> BaselinePair {
        BaselinePair {
            call: self.index(pair.current),
            earlier: self.index(pair.earlier),
            learned: pair.learned,
            normal: pair.normal,
        }
    }

    fn window(&self, window: &profile::ProfileWindow) -> BaselineWindow {
        let calls = window.calls.iter().map(|symbol| self.index(*symbol)).collect();
        BaselineWindow { calls, learned: window.learned, normal: window.normal }
    }
}

/// The contents of a profile whose symbols are the baseline's indices plus one.
fn contents(baseline: &Baseline, mode: Mode) -> Contents {
    let symbol = |index: u8| if index == ANY_OTHER { index } else { index + 1 };
    let state = match baseline.state {
        // In learn mode, a normal baseline returns to training.
        BaselineState::Normal if mode == Mode::Learn => wire::GUARD_TRAINING,
        BaselineState::Normal => wire::GUARD_NORMAL,
        BaselineState::Frozen { .. } => wire::GUARD_FROZEN,
        BaselineState::Training => wire::GUARD_TRAINING,
    };
    let pair = |pair: &BaselinePair| profile::ProfilePair {
        current: symbol(pair.call),
        earlier: symbol(pair.earlier),
        learned: pair.learned,
        normal: pair.normal,
    };
    let window = |window: &BaselineWindow| profile::ProfileWindow {
        calls: window.calls.iter().map(|index| symbol(*index)).collect(),
        learned: window.learned,
        normal: window.normal,
    };
    Contents {
        state,
        calls: baseline.calls.iter().map(|name| slot(name)).collect(),
        pairs: baseline.pairs.iter().map(pair).collect(),
        windows: baseline.windows.iter().map(window).collect(),
        trained: baseline.trained,
        changed_at: baseline.changed_at,
        anomalies: baseline.anomalies,
        made: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_names_round_trip() {
        for call in [0, 59, 435, wire::CALLS_PER_ABI + 11, 2 * wire::CALLS_PER_ABI + 513, 570] {
            assert_eq!(slot(&name(call)), Some(call), "{}", name(call));
        }
        assert_eq!(slot("no such call"), None);
    }

    #[test]
    fn only_anomalies_of_processes_that_could_go_on_count() {
        let event = |mismatches, action: u32| wire::guard_event {
            mismatches,
            action: action as u8,
            ..wire::guard_event::default()
        };
        for (action, counts) in [
            (wire::GUARD_OBSERVE, true),
            (wire::GUARD_DELAY, true),
            (wire::GUARD_DENY, false),
            (wire::GUARD_STOP, false),
            (wire::GUARD_KILL, false),
        ] {
            assert_eq!(could_go_on(&event(1, action)), counts, "{action}");
        }
        // A hold of a normal call, and a call that only a plugin denounced.
        assert!(!could_go_on(&event(0, wire::GUARD_DELAY)));
        assert!(!could_go_on(&event(wire::GUARD_DENOUNCED as u16, wire::GUARD_OBSERVE)));
    }

    #[test]
    fn a_baseline_survives_a_profile() {
        let window = |calls: &[u8]| profile::ProfileWindow {
            calls: calls.to_vec(),
            learned: true,
            normal: false,
        };
        let before = Contents {
            state: wire::GUARD_TRAINING,
            // Two processors each took a symbol for the same call at the same time, so the second
            // symbol has no call.
            calls: vec![Some(0), None, Some(3)],
            pairs: vec![profile::ProfilePair { current: 3, earlier: 127, learned: 5, normal: 0 }],
            windows: vec![window(&[1, 3, 3, 127, 1, 1])],
            ..Contents::default()
        };
        let symbols = SymbolIndex::of(&before);
        assert_eq!(symbols.names, ["read", "close"]);
        assert_eq!(
            symbols.pair(&before.pairs[0]),
            BaselinePair { call: 1, earlier: ANY_OTHER, learned: 5, normal: 0 }
        );
        assert_eq!(symbols.window(&before.windows[0]).calls, [0, 1, 1, ANY_OTHER, 0, 0]);
    }
}
