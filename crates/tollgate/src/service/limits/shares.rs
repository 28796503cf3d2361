//! A weight is a share of the machine. Control groups share out each processor by itself: of a service with one thread, beside
//! one with many on all processors, the weight counts on one of them only, where it meets a part of the other's. So a
//! service that has to wait, and has had less than its share of what they all had, counts for more for a while.

use std::collections::BTreeMap;

/// A service that has a control group, among those of the same parent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sharer {
    /// In whose group its group is; 0: in none's.
    pub within: u16,
    pub weight: u32,
    /// Of processors; infinite without a cap.
    pub most: f64,
    /// Since the step before: its own, and that of those below it.
    pub own: Had,
    pub below: Had,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Had {
    pub cpu_ns: u64,
    pub wait_ns: u64,
}

/// By what each service's weight is multiplied, and what it was set to.
#[derive(Debug, Default)]
pub struct Shares {
    factors: BTreeMap<u16, f64>,
    set: BTreeMap<u16, u32>,
}

/// On two processors, the fewest on which there is something to even out, it meets half of another's weight: with eight
/// times its own it has 16/17 of the one where it is.
const MOST: f64 = 8.0;
const STEP: f64 = 1.5;
/// Slower, where it has just what it is to have.
const BACK: f64 = 0.95;
/// Of a share: what a tick of the scheduler may be off in a step.
const WORTH_IT: f64 = 0.05;

impl Had {
    fn sum(self) -> u64 {
        self.cpu_ns + self.wait_ns
    }

    pub fn add(&mut self, more: Self) {
        self.cpu_ns += more.cpu_ns;
        self.wait_ns += more.wait_ns;
    }
}

impl Sharer {
    fn had(&self) -> Had {
        let mut had = self.own;
        had.add(self.below);
        had
    }
}

/// What each of these siblings is to have of what they all had: no more than it wanted, and the rest by weight among those
/// who wanted more (max-min fairness).
fn filled(mut siblings: Vec<(u16, &Sharer)>, elapsed_ns: u64) -> Vec<(u16, f64)> {
    let wanted = |one: &Sharer| (one.had().sum() as f64).min(one.most * elapsed_ns as f64);
    let weight = |one: &Sharer| f64::from(one.weight);
    let mut rest: f64 = siblings.iter().map(|(_, one)| one.had().cpu_ns as f64).sum();
    let mut shares = Vec::new();
    loop {
        let weights: f64 = siblings.iter().map(|(_, one)| weight(one)).sum();
        let level = rest / weights;
        let (content, others): (Vec<_>, Vec<_>) =
            siblings.into_iter().partition(|(_, one)| wanted(one) <= level * weight(one));
        if content.is_empty() {
            shares.extend(others.into_iter().map(|(number, one)| (number, level * weight(one))));
            return shares;
        }
        rest -= content.iter().map(|(_, one)| wanted(one)).sum::<f64>();
        shares.extend(content.into_iter().map(|(number, one)| (number, wanted(one))));
        siblings = others;
    }
}

impl Shares {
    pub fn is_even(&self) -> bool {
        self.factors.is_empty() && self.set.is_empty()
    }

    /// After `elapsed_ns`: the weights that are to be set.
    pub fn step(&mut self, all: &BTreeMap<u16, Sharer>, elapsed_ns: u64) -> Vec<(u16, u32)> {
        let mut siblings: BTreeMap<u16, Vec<(u16, &Sharer)>> = BTreeMap::new();
        for (number, one) in all {
            siblings.entry(one.within).or_default().push((*number, one));
        }
        let shares: BTreeMap<u16, f64> =
            siblings.into_values().flat_map(|siblings| filled(siblings, elapsed_ns)).collect();
        let mut wanted = Vec::new();
        for (number, one) in all {
            let before = self.factors.get(number).copied().unwrap_or(1.0);
            let share = shares[number];
            let (had, off) = (one.had(), WORTH_IT * share);
            let missing = share - had.cpu_ns as f64;
            // Those who work for the parent itself would have less beside it, and have no weight of their own.
            let is_beside_parent = all.get(&one.within).is_some_and(|parent| parent.own.sum() as f64 > off);
            let after = if missing.min(had.wait_ns as f64) > off && !is_beside_parent {
                before * STEP
            } else if -missing > off {
                before / STEP
            } else {
                before * BACK
            };
            let after = after.clamp(1.0, MOST);
            if after > 1.0 {
                self.factors.insert(*number, after);
            } else {
                self.factors.remove(number);
            }
            let weight = (f64::from(one.weight) * after) as u32;
            if weight != self.set.get(number).copied().unwrap_or(one.weight) {
                wanted.push((*number, weight));
            }
        }
        wanted
    }

    /// It has this weight now, and `own` in the file.
    pub fn note(&mut self, number: u16, weight: u32, own: u32) {
        if weight == own {
            self.set.remove(&number);
        } else {
            self.set.insert(number, weight);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ELAPSED: u64 = 100_000_000;

    fn sharer(cpu_ms: u64, wait_ms: u64) -> Sharer {
        let [cpu_ns, wait_ns] = [cpu_ms, wait_ms].map(|ms| ms * 1_000_000);
        let own = Had { cpu_ns, wait_ns };
        Sharer { within: 0, weight: 100, most: f64::INFINITY, own, below: Had::default() }
    }

    /// Of the second and the third service.
    fn weights_after(steps: usize, shares: &mut Shares, all: [Sharer; 2]) -> [u32; 2] {
        let all: BTreeMap<u16, Sharer> = [2, 3].into_iter().zip(all).collect();
        for _ in 0..steps {
            for (number, weight) in shares.step(&all, ELAPSED) {
                shares.note(number, weight, all[&number].weight);
            }
        }
        [2, 3].map(|number| shares.set.get(&number).copied().unwrap_or(all[&number].weight))
    }

    #[test]
    fn who_waits_below_its_share_counts_for_more_until_it_does_not() {
        let mut shares = Shares::default();
        let lacking = [sharer(66, 34), sharer(134, 900)];
        assert_eq!(weights_after(1, &mut shares, lacking), [150, 100]);
        assert_eq!(weights_after(20, &mut shares, lacking), [800, 100], "no more than that");
        let too_much = [sharer(170, 30), sharer(30, 900)];
        assert_eq!(weights_after(6, &mut Shares::default(), lacking)[0], 800);
        assert_eq!(weights_after(2, &mut shares, too_much)[0], 355);
        let content = [sharer(98, 2), sharer(102, 900)];
        assert_eq!(weights_after(40, &mut shares, content), [100, 100]);
        assert!(shares.is_even());
    }

    #[test]
    fn who_wants_little_leaves_the_rest_to_the_others() {
        let idle = sharer(1, 0);
        let capped = Sharer { most: 0.1, ..sharer(10, 300) };
        for third in [idle, capped] {
            let all = [(2, sharer(60, 400)), (3, sharer(39, 200)), (4, third)].into();
            assert_eq!(Shares::default().step(&all, ELAPSED), [(3, 150)], "{third:?}");
        }
    }

    #[test]
    fn nobody_else_counts_for_more() {
        for all in [
            // It wants no more; it has its share; it has its cap.
            [sharer(10, 0), sharer(190, 900)],
            [sharer(100, 50), sharer(100, 900)],
            [Sharer { most: 0.2, ..sharer(20, 80) }, sharer(180, 900)],
            // Alone: the other one is asleep, or within another's group.
            [sharer(50, 50), sharer(0, 0)],
            [sharer(50, 50), Sharer { within: 4, ..sharer(150, 900) }],
        ] {
            assert_eq!(weights_after(5, &mut Shares::default(), all), [100, 100], "{all:?}");
        }
    }

    #[test]
    fn nobody_counts_for_more_beside_its_parents_own_work() {
        let lacking = [sharer(66, 34), sharer(134, 900)].map(|one| Sharer { within: 4, ..one });
        let after = |parents: Had| {
            let parent = Sharer { own: parents, ..sharer(0, 0) };
            let all = [(2, lacking[0]), (3, lacking[1]), (4, parent)].into();
            Shares::default().step(&all, ELAPSED)
        };
        assert_eq!(after(Had::default()), [(2, 150)]);
        assert_eq!(after(Had { cpu_ns: 1_000_000, wait_ns: 30_000_000 }), []);
    }

    #[test]
    fn a_share_goes_by_weights() {
        let heavy = Sharer { weight: 300, ..sharer(120, 60) };
        assert_eq!(weights_after(1, &mut Shares::default(), [heavy, sharer(80, 900)]), [450, 100]);
        let light = Sharer { weight: 30, ..sharer(50, 60) };
        assert_eq!(weights_after(1, &mut Shares::default(), [light, sharer(150, 900)])[0], 30);
    }

    #[test]
    fn what_could_not_be_set_is_to_be_set_the_next_time() {
        let all = [(2, sharer(66, 34)), (3, sharer(134, 900))].into();
        let mut shares = Shares::default();
        assert_eq!(shares.step(&all, ELAPSED), [(2, 150)]);
        assert_eq!(shares.step(&all, ELAPSED), [(2, 225)]);
        shares.note(2, 225, 100);
        let nobody = [(2, sharer(0, 0)), (3, sharer(0, 0))].into();
        for _ in 0..20 {
            shares.step(&nobody, ELAPSED);
        }
        assert_eq!(shares.step(&nobody, ELAPSED), [(2, 100)]);
        assert_eq!(shares.step(&nobody, ELAPSED), [(2, 100)]);
    }
}
