//! A guarded program: its profile in the kernel, and the baseline that it came from and goes to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use kernel::profile::{self, Contents, Profile};
use kernel::wire;

use super::baseline::{ANY_OTHER, Baseline, Counts, Digest, Gain, Identity, Pair, State, Window};
use super::policy::Mode;
use super::unix_now;
use crate::report::call_name;

/// In the kernel, in use.
pub struct Program {
    pub profile: Profile,
    /// Where it was seen; none: it had ended before it could be looked at.
    pub path: Option<PathBuf>,
    pub digest: Option<Digest>,
    pub scope: Option<String>,
    /// As it was in the store when it was installed.
    pub stored: Option<Baseline>,
    /// Calls that are in it already.
    stored_calls: u64,
    pub saved: Saved,
    /// Calls that it had made before the baseline was there.
    pub early_calls: u64,
    first_seen: u64,
    /// Its sizes, and since when it has had these.
    changed: Option<((usize, usize), u64)>,
    /// When it is normal if it stays frozen, in unix seconds, and its freezing that this is of.
    normal_at: Option<(u32, u64)>,
    /// Slots of the calls behind the symbols, so far.
    calls: Vec<Option<u32>>,
    /// Symbols that normally follow each, as of so many forgettings.
    next: Option<(u32, BTreeMap<u8, BTreeSet<u8>>)>,
}

/// What of a program is in the store.
#[derive(Default)]
pub struct Saved {
    pub at: Option<u64>,
    /// Than the profile: what another Tollgate has stored.
    pub has_more: bool,
    counts: Counts,
    state: Option<State>,
    sizes: (usize, usize),
}

impl Saved {
    /// The profile's own baseline is in the file that was written at that time.
    pub fn note(&mut self, own: &Baseline, at: u64) {
        *self = Self {
            at: Some(at),
            has_more: false,
            counts: own.counts(),
            state: Some(own.state),
            sizes: sizes(own),
        };
    }

    pub fn differs(&self, own: &Baseline, also_calls: bool) -> bool {
        let is_idle = self.at.is_some() && self.counts.seen_calls == own.seen_calls;
        // It was normal, and learns again in this mode: only if it runs.
        if is_idle && own.state == State::Training {
            return false;
        }
        self.state != Some(own.state)
            || self.sizes != sizes(own)
            || also_calls && self.counts.seen_calls != own.seen_calls
    }

    /// What is to be stored where `stored` is, and whether that has something of another Tollgate's, which is kept.
    pub fn with(&self, own: &Baseline, stored: &Baseline) -> Result<(Baseline, bool)> {
        let mut all = own.clone();
        let mut gain = Gain::default();
        if Some(stored.saved) != self.at {
            gain = all.merge_since(stored, &self.counts)?;
        }
        all.saved = stored.saved;
        let has_more = gain != Gain::default() || all.state != own.state;
        Ok((all, has_more))
    }
}

impl Program {
    /// Without an identity nothing of it is stored.
    pub fn new(profile: Profile, path: Option<PathBuf>, identity: Option<Identity>) -> Self {
        let (digest, scope) = identity.map(|of| (of.digest, of.scope)).unzip();
        Self {
            profile,
            path,
            digest,
            scope: scope.flatten(),
            stored: None,
            stored_calls: 0,
            saved: Saved::default(),
            early_calls: 0,
            first_seen: unix_now(),
            changed: None,
            normal_at: None,
            calls: Vec::new(),
            next: None,
        }
    }

    /// None: nothing of it is stored.
    pub fn identity(&self) -> Option<Identity> {
        Some(Identity { digest: self.digest?, scope: self.scope.clone() })
    }

    /// Before another baseline is installed, or none.
    pub fn forget(&mut self) {
        self.profile.empty();
        self.stored = None;
        self.stored_calls = self.profile.read().calls;
        self.saved = Saved::default();
        (self.first_seen, self.changed) = (unix_now(), None);
        self.normal_at = None;
        self.calls.clear();
        self.next = None;
    }

    /// The stored baseline becomes the profile's. Returns what of it had no room.
    pub fn install(&mut self, baseline: Baseline, mode: Mode) -> usize {
        self.early_calls += self.profile.read().calls - self.stored_calls;
        self.saved.note(&baseline, baseline.saved);
        self.first_seen = baseline.first_seen;
        self.changed = Some((sizes(&baseline), baseline.last_changed));
        let contents = contents(&baseline, mode);
        let unfit = self.profile.add(&contents);
        if let State::Frozen { normal_at } = baseline.state {
            self.normal_at = Some((self.profile.freezings(), normal_at));
        }
        self.stored = Some(baseline);
        unfit
    }

    /// What froze long enough ago is normal.
    pub fn tick(&mut self, now: u64, normal_wait: Duration, mode: Mode) {
        if self.profile.state() != wire::GUARD_FROZEN {
            return;
        }
        let freezings = self.profile.freezings();
        let normal_at = match self.normal_at {
            Some((of, normal_at)) if of == freezings => normal_at,
            _ => now.saturating_add(normal_wait.as_secs()),
        };
        self.normal_at = Some((freezings, normal_at));
        if now > normal_at && mode != Mode::Learn {
            self.profile.normalize();
        }
    }

    /// The name of a symbol's call.
    pub fn call(&mut self, symbol: u8) -> String {
        let known = |calls: &[Option<u32>]| calls.get(usize::from(symbol) - 1).copied().flatten();
        if known(&self.calls).is_none() {
            self.calls = self.profile.contents().calls;
        }
        known(&self.calls).map_or_else(|| "any other".to_owned(), name)
    }

    /// What normally follows a call at once.
    pub fn expected_after(&mut self, symbol: u8) -> Vec<String> {
        let forgettings = self.profile.forgettings();
        if self.next.as_ref().is_none_or(|(of, _)| *of != forgettings) {
            let mut next = BTreeMap::<_, BTreeSet<_>>::new();
            for pair in self.profile.contents().pairs.iter().filter(|pair| pair.normal & 1 != 0) {
                next.entry(pair.earlier).or_default().insert(pair.current);
            }
            self.next = Some((forgettings, next));
        }
        let next = self.next.as_ref().and_then(|(_, next)| next.get(&symbol)).cloned().unwrap_or_default();
        next.into_iter().map(|symbol| self.call(symbol)).collect()
    }

    /// What is known now, to be stored; none: the file could not be read, so nobody would find it again.
    pub fn baseline(&mut self, wire: &wire::guard_parameters, now: u64) -> Option<Baseline> {
        let contents = self.profile.contents();
        let before = self.stored.as_ref();
        let state = match contents.state {
            wire::GUARD_NORMAL => State::Normal,
            wire::GUARD_FROZEN => {
                State::Frozen { normal_at: self.normal_at.map_or(now, |(_, normal_at)| normal_at) }
            }
            _ => State::Training,
        };
        let mut paths: BTreeSet<_> = before.map(|stored| stored.paths.clone()).unwrap_or_default();
        paths.extend(self.path.as_ref().map(|path| path.to_string_lossy().into_owned()));
        let places = Places::of(&contents);
        let mut baseline = Baseline {
            digest: self.digest?,
            scope: self.scope.clone(),
            paths,
            lookahead: wire.lookahead.into(),
            sequence: wire.sequence.into(),
            state,
            calls: places.names.clone(),
            pairs: contents.pairs.iter().map(|pair| places.pair(pair)).collect(),
            windows: contents.windows.iter().map(|window| places.window(window)).collect(),
            trained: contents.trained,
            changed_at: contents.changed_at,
            anomalies: contents.anomalies,
            seen_calls: contents.made - self.stored_calls + before.map_or(0, |stored| stored.seen_calls),
            first_seen: self.first_seen,
            last_changed: now,
            saved: 0,
        };
        let changed = self.changed.filter(|(before, _)| *before == sizes(&baseline));
        (_, baseline.last_changed) = *self.changed.insert(changed.unwrap_or((sizes(&baseline), now)));
        Some(baseline)
    }
}

fn sizes(baseline: &Baseline) -> (usize, usize) {
    (baseline.pairs.len(), baseline.windows.len())
}

/// As reports name it: those of other ABIs than x86-64 say so.
pub fn name(slot: u32) -> String {
    match call_name(slot) {
        (calls::Abi::X86_64, name) => name,
        (abi, name) => format!("{name} ({})", abi.as_str()),
    }
}

/// The slot of a call by [`name`].
fn slot(name: &str) -> Option<u32> {
    let slots = calls::Abi::ALL.into_iter().flat_map(|abi| {
        let base = abi as u32 * wire::CALLS_PER_ABI;
        base..base + wire::CALLS_PER_ABI
    });
    slots.into_iter().find(|slot| self::name(*slot) == name)
}

/// Which index of a baseline's calls a symbol is.
struct Places {
    names: Vec<String>,
    of_symbol: Vec<u8>,
}

impl Places {
    fn of(contents: &Contents) -> Self {
        let (mut names, mut of_symbol) = (Vec::new(), vec![ANY_OTHER; wire::GUARD_SYMBOLS as usize]);
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

    fn pair(&self, pair: &profile::Pair) -> Pair {
        Pair {
            call: self.index(pair.current),
            earlier: self.index(pair.earlier),
            learned: pair.learned,
            normal: pair.normal,
        }
    }

    fn window(&self, window: &profile::Window) -> Window {
        let calls = window.calls.iter().map(|symbol| self.index(*symbol)).collect();
        Window { calls, learned: window.learned, normal: window.normal }
    }
}

/// A baseline for a profile whose symbols are the baseline's indices and one.
fn contents(baseline: &Baseline, mode: Mode) -> Contents {
    let symbol = |index: u8| if index == ANY_OTHER { index } else { index + 1 };
    let state = match baseline.state {
        // It learns again.
        State::Normal if mode == Mode::Learn => wire::GUARD_TRAINING,
        State::Normal => wire::GUARD_NORMAL,
        State::Frozen { .. } => wire::GUARD_FROZEN,
        State::Training => wire::GUARD_TRAINING,
    };
    let pair = |pair: &Pair| profile::Pair {
        current: symbol(pair.call),
        earlier: symbol(pair.earlier),
        learned: pair.learned,
        normal: pair.normal,
    };
    let window = |window: &Window| profile::Window {
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
    fn names_lead_back_to_calls() {
        for call in [0, 59, 435, wire::CALLS_PER_ABI + 11, 2 * wire::CALLS_PER_ABI + 513, 570] {
            assert_eq!(slot(&name(call)), Some(call), "{}", name(call));
        }
        assert_eq!(slot("no such call"), None);
    }

    #[test]
    fn a_baseline_survives_a_profile() {
        let window = |calls: &[u8]| profile::Window { calls: calls.to_vec(), learned: true, normal: false };
        let before = Contents {
            state: wire::GUARD_TRAINING,
            // The second symbol was taken by two processors at once.
            calls: vec![Some(0), None, Some(3)],
            pairs: vec![profile::Pair { current: 3, earlier: 127, learned: 5, normal: 0 }],
            windows: vec![window(&[1, 3, 3, 127, 1, 1])],
            ..Contents::default()
        };
        let places = Places::of(&before);
        assert_eq!(places.names, ["read", "close"]);
        assert_eq!(
            places.pair(&before.pairs[0]),
            Pair { call: 1, earlier: ANY_OTHER, learned: 5, normal: 0 }
        );
        assert_eq!(places.window(&before.windows[0]).calls, [0, 1, 1, ANY_OTHER, 0, 0]);
    }
}
