//! Merges two baselines of one program, for example from two machines.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use super::{
    ANY_OTHER, Baseline, BaselinePair, BaselineState, BaselineWindow, MAX_CALLS, limited_paths,
};

/// What a baseline gained from a merge with another one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gain {
    pub paths: usize,
    pub calls: usize,
    /// New pairs, and pairs at new distances.
    pub pairs: usize,
    pub windows: usize,
}

/// The counters of a baseline.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BaselineCounters {
    pub trained: u64,
    pub changed_at: u64,
    pub anomalies: u64,
    pub counted_anomalies: u64,
    pub seen_calls: u64,
}

impl Baseline {
    /// The counters, to be compared with later ones.
    pub fn counts(&self) -> BaselineCounters {
        let Self { trained, changed_at, anomalies, counted_anomalies, seen_calls, .. } = *self;
        BaselineCounters { trained, changed_at, anomalies, counted_anomalies, seen_calls }
    }

    /// Merges another baseline that shares a history with this one. `since` has the counters that
    /// this baseline had when it was last stored; what they count is added only once. If the other
    /// baseline was started anew since then, it contains nothing of the shared history.
    pub fn merge_after(&mut self, other: &Self, since: &BaselineCounters) -> Result<Gain> {
        let own = self.counts();
        let is_anew = other.trained < since.trained || other.changed_at < since.changed_at;
        let since = if is_anew { BaselineCounters::default() } else { *since };
        let gain = self.merge(other)?;
        let sum =
            |other: u64, own: u64, since: u64| other.saturating_add(own.saturating_sub(since));
        self.trained = sum(other.trained, own.trained, since.trained);
        self.anomalies = sum(other.anomalies, own.anomalies, since.anomalies);
        self.counted_anomalies =
            sum(other.counted_anomalies, own.counted_anomalies, since.counted_anomalies);
        self.seen_calls = sum(other.seen_calls, own.seen_calls, since.seen_calls);
        self.changed_at = if own.changed_at == since.changed_at {
            other.changed_at
        } else {
            self.trained.saturating_sub(own.trained.saturating_sub(own.changed_at))
        };
        Ok(gain)
    }

    /// Adds what another baseline has. Calls are matched by name, because their order differs from
    /// machine to machine. If the merge is refused, nothing is changed.
    pub fn merge(&mut self, other: &Self) -> Result<Gain> {
        self.check_compatible(other)?;
        let new_calls: Vec<_> =
            other.calls.iter().filter(|call| !self.calls.contains(call)).cloned().collect();
        if self.calls.len() + new_calls.len() > MAX_CALLS {
            bail!(
                "{}: together they have {} different calls, but at most {MAX_CALLS} are possible",
                self.name(),
                self.calls.len() + new_calls.len()
            );
        }
        let mut gain = Gain { calls: new_calls.len(), ..Gain::default() };
        self.calls.extend(new_calls);
        let indices: Vec<_> = other.calls.iter().map(|call| self.index(call)).collect();
        let own = |index: u8| indices.get(usize::from(index)).copied().unwrap_or(ANY_OTHER);
        gain.pairs = self.merge_pairs(&other.pairs, own);
        gain.windows = self.merge_windows(&other.windows, own);
        gain.paths = self.merge_paths(other);
        self.state = self.state.merged(other.state);
        for (sum, more) in [
            (&mut self.trained, other.trained),
            (&mut self.changed_at, other.changed_at),
            (&mut self.anomalies, other.anomalies),
            (&mut self.counted_anomalies, other.counted_anomalies),
            (&mut self.seen_calls, other.seen_calls),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.first_seen = self.first_seen.min(other.first_seen);
        self.last_changed = self.last_changed.max(other.last_changed);
        self.counted_at = self.counted_at.max(other.counted_at);
        self.saved = self.saved.max(other.saved);
        Ok(gain)
    }

    fn check_compatible(&self, other: &Self) -> Result<()> {
        if (self.digest, &self.scope) != (other.digest, &other.scope) {
            bail!(
                "{} and {} are baselines of different programs, which cannot be merged",
                self.name(),
                other.name()
            );
        }
        if (self.lookahead, self.sequence) != (other.lookahead, other.sequence) {
            bail!(
                "{}: one baseline has windows of {} and {} calls, the other of {} and {}; only \
                baselines with equal windows can be merged",
                self.name(),
                self.lookahead,
                self.sequence,
                other.lookahead,
                other.sequence
            );
        }
        Ok(())
    }

    fn index(&self, name: &str) -> u8 {
        let index = self.calls.iter().position(|call| call == name);
        index.map_or(ANY_OTHER, |index| index as u8)
    }

    fn merge_pairs(&mut self, others: &[BaselinePair], own: impl Fn(u8) -> u8) -> usize {
        let mut all: BTreeMap<_, _> = self
            .pairs
            .iter()
            .map(|pair| ((pair.call, pair.earlier), (pair.learned, pair.normal)))
            .collect();
        let mut gained = 0;
        for pair in others {
            let bits = all.entry((own(pair.call), own(pair.earlier))).or_default();
            let both = (bits.0 | pair.learned, bits.1 | pair.normal);
            gained += usize::from(*bits != both);
            *bits = both;
        }
        let pair =
            |((call, earlier), (learned, normal))| BaselinePair { call, earlier, learned, normal };
        self.pairs = all.into_iter().map(pair).collect();
        gained
    }

    fn merge_windows(&mut self, others: &[BaselineWindow], own: impl Fn(u8) -> u8) -> usize {
        let windows = std::mem::take(&mut self.windows);
        let mut all: BTreeMap<_, _> = windows
            .into_iter()
            .map(|window| (window.calls, (window.learned, window.normal)))
            .collect();
        let mut gained = 0;
        for window in others {
            let known =
                all.entry(window.calls.iter().map(|call| own(*call)).collect()).or_default();
            let both = (known.0 | window.learned, known.1 | window.normal);
            gained += usize::from(*known != both);
            *known = both;
        }
        let window = |(calls, (learned, normal))| BaselineWindow { calls, learned, normal };
        self.windows = all.into_iter().map(window).collect();
        gained
    }

    /// Selects the first paths in a fixed order, so that the order of merges does not matter.
    fn merge_paths(&mut self, other: &Self) -> usize {
        let before = self.paths.clone();
        self.paths = limited_paths(before.union(&other.paths).cloned());
        self.paths.difference(&before).count()
    }
}

impl BaselineState {
    /// The less certain of the two states.
    fn merged(self, other: Self) -> Self {
        match (self, other) {
            (Self::Training, _) | (_, Self::Training) => Self::Training,
            (Self::Frozen { normal_at: one }, Self::Frozen { normal_at: other }) => {
                Self::Frozen { normal_at: one.max(other) }
            }
            (Self::Normal, state) | (state, Self::Normal) => state,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::super::Digest;
    use super::super::tests::example;
    use super::*;

    type Known<'a> = (
        BTreeSet<&'a str>,
        BTreeMap<(&'a str, &'a str), (u8, u8)>,
        BTreeMap<Vec<&'a str>, (bool, bool)>,
        &'a BTreeSet<String>,
    );

    fn known(it: &Baseline) -> Known<'_> {
        let pair = |pair: &BaselinePair| {
            ((it.call(pair.call), it.call(pair.earlier)), (pair.learned, pair.normal))
        };
        let window = |window: &BaselineWindow| {
            let names = window.calls.iter().map(|call| it.call(*call)).collect();
            (names, (window.learned, window.normal))
        };
        (
            it.calls.iter().map(String::as_str).collect(),
            it.pairs.iter().map(pair).collect(),
            it.windows.iter().map(window).collect(),
            &it.paths,
        )
    }

    /// Everything that does not depend on the order of symbols.
    fn rest(it: &Baseline) -> Baseline {
        Baseline { calls: Vec::new(), pairs: Vec::new(), windows: Vec::new(), ..it.clone() }
    }

    fn merged(one: &Baseline, other: &Baseline) -> Baseline {
        let mut all = one.clone();
        all.merge(other).expect("they are alike");
        all
    }

    /// Two baselines with a common history, each with calls that only it has seen.
    #[test]
    fn common_history_counts_once() {
        let of = |trained, changed_at, anomalies, seen_calls| Baseline {
            trained,
            changed_at,
            anomalies,
            seen_calls,
            ..example()
        };
        let begun = of(1000, 900, 3, 5000);
        let (mut one, other) = (of(1500, 900, 4, 5600), of(1200, 1100, 3, 5300));
        one.merge_after(&other, &begun.counts()).expect("alike");
        assert_eq!(one.counts(), of(1700, 1100, 4, 5900).counts());
        // The first one learned something new 100 trained calls ago.
        let (mut one, other) = (of(1500, 1400, 3, 5000), begun.clone());
        one.merge_after(&other, &begun.counts()).expect("alike");
        assert_eq!(one.counts(), of(1500, 1400, 3, 5000).counts());
        // The other one has been normalized, which reset its training counters.
        let (mut one, other) = (of(1500, 900, 3, 5000), of(0, 0, 0, 5000));
        one.merge_after(&other, &begun.counts()).expect("alike");
        assert!(one.trained == 1500 && one.changed_at == 900, "{:?}", one.counts());
    }

    fn states() -> impl Strategy<Value = BaselineState> {
        prop_oneof![
            Just(BaselineState::Training),
            Just(BaselineState::Normal),
            any::<u64>().prop_map(|normal_at| BaselineState::Frozen { normal_at })
        ]
    }

    fn baselines() -> impl Strategy<Value = Baseline> {
        let names: Vec<_> = ["read", "write", "open", "close", "read (i386)", "syscall_570"].into();
        let calls = (Just(names).prop_shuffle(), 1_usize..=6);
        (calls, states(), any::<[u32; 4]>(), any::<[u64; 3]>()).prop_flat_map(
            |((names, many), state, counters, times)| {
                let index = || {
                    (0..=many)
                        .prop_map(move |index| if index == many { ANY_OTHER } else { index as u8 })
                };
                let pairs =
                    prop::collection::btree_map((index(), index()), any::<(u8, u8)>(), 0..12);
                let windows = prop::collection::btree_map(
                    prop::collection::vec(index(), 3),
                    any::<(bool, bool)>(),
                    0..8,
                );
                let paths = prop::collection::btree_set("/[a-z]{1,2}", 0..20);
                (pairs, windows, paths).prop_map(move |(pairs, windows, paths)| Baseline {
                    calls: names[..many].iter().map(|name| (*name).to_owned()).collect(),
                    pairs: pairs
                        .into_iter()
                        .map(|((call, earlier), (learned, normal))| BaselinePair {
                            call,
                            earlier,
                            learned,
                            normal,
                        })
                        .collect(),
                    windows: windows
                        .into_iter()
                        .map(|(calls, (learned, normal))| BaselineWindow { calls, learned, normal })
                        .collect(),
                    paths: limited_paths(paths.into_iter()),
                    state,
                    trained: counters[0].into(),
                    changed_at: counters[1].into(),
                    anomalies: counters[2].into(),
                    seen_calls: counters[3].into(),
                    first_seen: times[0],
                    last_changed: times[1],
                    saved: times[2],
                    ..example()
                })
            },
        )
    }

    proptest! {
        #[test]
        fn the_order_of_two_does_not_matter(a in baselines(), b in baselines()) {
            let (ab, ba) = (merged(&a, &b), merged(&b, &a));
            prop_assert_eq!(known(&ab), known(&ba));
            prop_assert_eq!(rest(&ab), rest(&ba));
            prop_assert!(ab.check().is_ok());
        }

        #[test]
        fn the_order_of_three_does_not_matter(
            a in baselines(),
            b in baselines(),
            c in baselines(),
        ) {
            let (left, right) = (merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
            prop_assert_eq!(known(&left), known(&right));
            prop_assert_eq!(rest(&left), rest(&right));
        }

        #[test]
        fn the_same_again_adds_nothing(a in baselines(), b in baselines()) {
            let once = merged(&a, &b);
            let mut twice = once.clone();
            prop_assert_eq!(twice.merge(&b).expect("alike"), Gain::default());
            prop_assert_eq!(known(&once), known(&twice));
            prop_assert_eq!(once.state, twice.state);
        }

        #[test]
        fn texts_are_read_as_they_are_written(a in baselines()) {
            let text = a.to_text().expect("JSON");
            prop_assert_eq!(Baseline::from_text(text.as_bytes()).expect("whole"), a);
        }
    }

    #[test]
    fn calls_go_by_name_and_gains_are_counted() {
        let mut here = example();
        let there = Baseline {
            calls: ["close", "mmap", "open"].map(str::to_owned).into(),
            pairs: vec![
                // Close after open at distance 2, which is known, and at distance 1, which is new.
                BaselinePair { call: 0, earlier: 2, learned: 0b11, normal: 0 },
                BaselinePair { call: 1, earlier: 0, learned: 0b1, normal: 0 },
            ],
            windows: vec![BaselineWindow { calls: vec![2, 0, 1], learned: true, normal: false }],
            paths: ["/opt/example".to_owned()].into(),
            ..example()
        };
        let gain = here.merge(&there).expect("alike");
        assert_eq!(gain, Gain { paths: 1, calls: 1, pairs: 2, windows: 1 });
        assert_eq!(here.calls, ["open", "read", "close", "mmap"]);
        assert!(here.pairs.contains(&BaselinePair {
            call: 2,
            earlier: 0,
            learned: 0b11,
            normal: 0
        }));
        assert!(here.windows.contains(&BaselineWindow {
            calls: vec![0, 2, 3],
            learned: true,
            normal: false
        }));
        assert_eq!((here.trained, here.seen_calls), (1000, 24_690));
    }

    #[test]
    fn merge_refuses_different_programs() {
        let refusal = |other: Baseline| {
            let mut baseline = example();
            let error = baseline.merge(&other).expect_err("unlike").to_string();
            assert_eq!(baseline, example());
            error
        };
        let other = Baseline { digest: Digest::of(b"other"), ..example() };
        assert!(refusal(other).contains("are baselines of different programs"));
        let other = Baseline { scope: Some("script".into()), ..example() };
        assert!(refusal(other).contains("are baselines of different programs"));
        let other = Baseline { lookahead: 6, ..example() };
        assert!(refusal(other).contains("windows of 9 and 3 calls, the other of 6 and 3"));
        let other =
            Baseline { calls: (0..124).map(|n| format!("syscall_{n}")).collect(), ..example() };
        assert!(
            refusal(other)
                .contains("together they have 127 different calls, but at most 126 are possible")
        );
    }
}
