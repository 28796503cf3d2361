//! Makes a weight a share of the whole machine.
//!
//! Cgroups divide the time of each processor separately. If a service with one thread runs beside
//! one with threads on all processors, its weight counts on one processor only, against a part of
//! the other's weight. Therefore, if a service has to wait and has had less than its share of the
//! total, its weight is raised for a while.

use std::collections::BTreeMap;

/// A service with a cgroup, among the services of the same parent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShareState {
    /// The service whose cgroup contains the cgroup of this service, or 0.
    pub parent: u16,
    pub weight: u32,
    /// In processors; infinite without a cap.
    pub cap: f64,
    /// The processor time and the waiting time since the previous step, of the service itself and
    /// of the services below it.
    pub own: CpuShare,
    pub descendants: CpuShare,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CpuShare {
    pub cpu_ns: u64,
    pub wait_ns: u64,
}

/// The factor of each service's weight, and the weight that its cgroup has.
#[derive(Debug, Default)]
pub struct FairShare {
    factors: BTreeMap<u16, f64>,
    set: BTreeMap<u16, u32>,
}

/// Shares can be out of balance only if there are two processors or more. With two, a service that
/// uses one of them contends there with half of the weight of a service that uses both. If both
/// services have the same weight, this factor gives the first one 16/17 of its processor.
const MAX_FACTOR: f64 = 8.0;
const STEP: f64 = 1.5;
/// Factor of the slower decrease when a service has exactly its share.
const DECAY: f64 = 0.95;
/// The part of a share by which a tick of the scheduler may distort a step.
const TOLERANCE: f64 = 0.05;

impl CpuShare {
    fn sum(self) -> u64 {
        self.cpu_ns + self.wait_ns
    }

    pub fn add(&mut self, more: Self) {
        self.cpu_ns += more.cpu_ns;
        self.wait_ns += more.wait_ns;
    }
}

impl ShareState {
    fn had(&self) -> CpuShare {
        let mut had = self.own;
        had.add(self.descendants);
        had
    }
}

/// The share of each sibling in their total (max-min fairness): a service that wanted less than its
/// part by weight gets what it wanted, and the others divide the rest by weight.
fn max_min_shares(mut siblings: Vec<(u16, &ShareState)>, elapsed_ns: u64) -> Vec<(u16, f64)> {
    let wanted = |one: &ShareState| (one.had().sum() as f64).min(one.cap * elapsed_ns as f64);
    let weight = |one: &ShareState| f64::from(one.weight);
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

impl FairShare {
    pub fn is_balanced(&self) -> bool {
        self.factors.is_empty() && self.set.is_empty()
    }

    /// Advances by `elapsed_ns`, and returns the weights to set.
    pub fn step(&mut self, all: &BTreeMap<u16, ShareState>, elapsed_ns: u64) -> Vec<(u16, u32)> {
        let mut siblings: BTreeMap<u16, Vec<(u16, &ShareState)>> = BTreeMap::new();
        for (number, one) in all {
            siblings.entry(one.parent).or_default().push((*number, one));
        }
        let shares: BTreeMap<u16, f64> = siblings
            .into_values()
            .flat_map(|siblings| max_min_shares(siblings, elapsed_ns))
            .collect();
        let mut wanted = Vec::new();
        for (number, one) in all {
            let before = self.factors.get(number).copied().unwrap_or(1.0);
            let share = shares[number];
            let (had, off) = (one.had(), TOLERANCE * share);
            let missing = share - had.cpu_ns as f64;
            // Threads of the parent itself contend with this service, and have no weight of their
            // own: a higher weight here would take time from them.
            let is_beside_parent =
                all.get(&one.parent).is_some_and(|parent| parent.own.sum() as f64 > off);
            let after = if missing.min(had.wait_ns as f64) > off && !is_beside_parent {
                before * STEP
            } else if -missing > off {
                before / STEP
            } else {
                before * DECAY
            };
            let after = after.clamp(1.0, MAX_FACTOR);
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

    /// Records the weight that was set; `own` is the weight in the file.
    pub fn record_weight(&mut self, number: u16, weight: u32, own: u32) {
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

    fn sharer(cpu_ms: u64, wait_ms: u64) -> ShareState {
        let [cpu_ns, wait_ns] = [cpu_ms, wait_ms].map(|ms| ms * 1_000_000);
        let own = CpuShare { cpu_ns, wait_ns };
        ShareState {
            parent: 0,
            weight: 100,
            cap: f64::INFINITY,
            own,
            descendants: CpuShare::default(),
        }
    }

    /// The weights of services 2 and 3 after some steps.
    fn weights_after(steps: usize, shares: &mut FairShare, all: [ShareState; 2]) -> [u32; 2] {
        let all: BTreeMap<u16, ShareState> = [2, 3].into_iter().zip(all).collect();
        for _ in 0..steps {
            for (number, weight) in shares.step(&all, ELAPSED) {
                shares.record_weight(number, weight, all[&number].weight);
            }
        }
        [2, 3].map(|number| shares.set.get(&number).copied().unwrap_or(all[&number].weight))
    }

    #[test]
    fn starved_service_gains_weight() {
        let mut shares = FairShare::default();
        let lacking = [sharer(66, 34), sharer(134, 900)];
        assert_eq!(weights_after(1, &mut shares, lacking), [150, 100]);
        assert_eq!(weights_after(20, &mut shares, lacking), [800, 100], "no more than that");
        let too_much = [sharer(170, 30), sharer(30, 900)];
        assert_eq!(weights_after(6, &mut FairShare::default(), lacking)[0], 800);
        assert_eq!(weights_after(2, &mut shares, too_much)[0], 355);
        let content = [sharer(98, 2), sharer(102, 900)];
        assert_eq!(weights_after(40, &mut shares, content), [100, 100]);
        assert!(shares.is_balanced());
    }

    #[test]
    fn unused_share_is_redistributed() {
        let idle = sharer(1, 0);
        let capped = ShareState { cap: 0.1, ..sharer(10, 300) };
        for third in [idle, capped] {
            let all = [(2, sharer(60, 400)), (3, sharer(39, 200)), (4, third)].into();
            assert_eq!(FairShare::default().step(&all, ELAPSED), [(3, 150)], "{third:?}");
        }
    }

    #[test]
    fn satisfied_services_keep_their_weight() {
        for all in [
            // Service 2 wants no more, has its share, or has reached its cap.
            [sharer(10, 0), sharer(190, 900)],
            [sharer(100, 50), sharer(100, 900)],
            [ShareState { cap: 0.2, ..sharer(20, 80) }, sharer(180, 900)],
            // Service 2 is alone: service 3 sleeps, or is within another parent.
            [sharer(50, 50), sharer(0, 0)],
            [sharer(50, 50), ShareState { parent: 4, ..sharer(150, 900) }],
        ] {
            assert_eq!(weights_after(5, &mut FairShare::default(), all), [100, 100], "{all:?}");
        }
    }

    #[test]
    fn no_boost_beside_the_parents_own_work() {
        let lacking = [sharer(66, 34), sharer(134, 900)].map(|one| ShareState { parent: 4, ..one });
        let after = |parents: CpuShare| {
            let parent = ShareState { own: parents, ..sharer(0, 0) };
            let all = [(2, lacking[0]), (3, lacking[1]), (4, parent)].into();
            FairShare::default().step(&all, ELAPSED)
        };
        assert_eq!(after(CpuShare::default()), [(2, 150)]);
        assert_eq!(after(CpuShare { cpu_ns: 1_000_000, wait_ns: 30_000_000 }), []);
    }

    #[test]
    fn shares_follow_weights() {
        let heavy = ShareState { weight: 300, ..sharer(120, 60) };
        assert_eq!(
            weights_after(1, &mut FairShare::default(), [heavy, sharer(80, 900)]),
            [450, 100]
        );
        let light = ShareState { weight: 30, ..sharer(50, 60) };
        assert_eq!(weights_after(1, &mut FairShare::default(), [light, sharer(150, 900)])[0], 30);
    }

    #[test]
    fn failed_weights_are_retried() {
        let all = [(2, sharer(66, 34)), (3, sharer(134, 900))].into();
        let mut shares = FairShare::default();
        assert_eq!(shares.step(&all, ELAPSED), [(2, 150)]);
        assert_eq!(shares.step(&all, ELAPSED), [(2, 225)]);
        shares.record_weight(2, 225, 100);
        let nobody = [(2, sharer(0, 0)), (3, sharer(0, 0))].into();
        for _ in 0..20 {
            shares.step(&nobody, ELAPSED);
        }
        assert_eq!(shares.step(&nobody, ELAPSED), [(2, 100)]);
        assert_eq!(shares.step(&nobody, ELAPSED), [(2, 100)]);
    }
}
