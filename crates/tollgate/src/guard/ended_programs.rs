//! Programs that ended before their files could be opened. Nothing of them is stored, so their
//! profiles are soon free for others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::activity::Activity;
use super::report::GuardedProgram;

/// How often profiles are freed. It takes some milliseconds, for one as for many.
const INTERVAL: Duration = Duration::from_millis(100);

/// What such programs did.
#[derive(Default)]
pub struct EndedPrograms {
    /// Their number.
    pub programs: u64,
    /// What those did whose profiles are free.
    calls: u64,
    activity: Activity,
    /// By profile slot: whether the program counts.
    waiting: BTreeMap<u32, bool>,
    latest: Option<Instant>,
}

impl EndedPrograms {
    /// A program has ended that uses this profile. If it does not count, it is not selected.
    pub fn add(&mut self, slot: u32, counts: bool) {
        self.programs += u64::from(counts);
        self.waiting.insert(slot, counts);
    }

    /// The slots of the profiles that are to be freed, if it is time. A process that still runs
    /// keeps its profile.
    pub fn due(&mut self) -> Option<BTreeSet<u32>> {
        let is_time = self.latest.is_none_or(|latest| latest.elapsed() >= INTERVAL);
        if self.waiting.is_empty() || !is_time {
            return None;
        }
        self.latest = Some(Instant::now());
        Some(self.waiting.keys().copied().collect())
    }

    /// The profile of a program is free.
    pub fn free(&mut self, slot: u32, calls: u64, activity: &Activity) {
        if self.waiting.remove(&slot) == Some(true) {
            self.calls += calls;
            self.activity.merge(activity);
        }
    }

    /// The slots of the programs that count and still have their profiles.
    pub fn waiting(&self) -> impl Iterator<Item = u32> {
        self.waiting.iter().filter(|(_, counts)| **counts).map(|(slot, _)| *slot)
    }

    /// One row for all of them. `waiting`: the calls and the activity of those that still have
    /// their profiles.
    pub fn report<'a>(
        &self,
        waiting: impl Iterator<Item = (u64, u64, &'a Activity)>,
    ) -> GuardedProgram {
        let mut activity = Activity::default();
        activity.merge(&self.activity);
        let (mut calls, mut bytes) = (self.calls, 0);
        for (of_program, size, did) in waiting {
            calls += of_program;
            bytes += size;
            activity.merge(did);
        }
        GuardedProgram {
            path: "(ended too soon)".into(),
            state: "training".into(),
            calls,
            bytes,
            ..activity.report()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_one_row() {
        let mut ended = EndedPrograms::default();
        ended.add(1, true);
        ended.add(2, true);
        ended.add(3, false);
        assert_eq!(ended.due(), Some([1, 2, 3].into()));
        assert_eq!(ended.due(), None, "not twice at once");
        let activity = Activity { anomalies: 2, ..Activity::default() };
        ended.free(1, 10, &activity);
        ended.free(3, 100, &activity);
        assert_eq!(ended.waiting().collect::<Vec<_>>(), [2]);
        let row = ended.report([(5, 24, &activity)].into_iter());
        assert_eq!((row.calls, row.bytes, row.anomalies, ended.programs), (15, 24, 4, 2));
    }
}
