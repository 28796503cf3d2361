//! Chooses an estimator by replay.

use crate::estimator::{DistributionModel, Estimator, SampleSelection};
use crate::levels::Levels;
use crate::policies::{Learner, ScheduleRule, TypeKnowledge};
use crate::replay::{TraceTask, replay};

/// The selections from which the estimator of a type is chosen. The paper does not say which one
/// RightSpeed uses; 0.95 is PACE's factor for aged samples.
const SELECTIONS: [SampleSelection; 4] = [
    SampleSelection::All,
    SampleSelection::Recent(30),
    SampleSelection::LongShort,
    SampleSelection::Aged(0.95),
];
const MODELS: [DistributionModel; 5] = [
    DistributionModel::Samples,
    DistributionModel::Histogram,
    DistributionModel::Gamma,
    DistributionModel::Normal,
    DistributionModel::Kernel,
];

/// The estimators from which that of a type is chosen.
pub fn candidate_estimators() -> Vec<Estimator> {
    let of = |selection: &SampleSelection| {
        MODELS.map(|model| Estimator { selection: *selection, model })
    };
    SELECTIONS.iter().flat_map(of).collect()
}

/// Returns the index of the best estimator for these tasks. Of the estimators with which the
/// schedules of `lambda_rule` would have met the target, this is the one that would have needed the
/// least energy. If there is no such estimator, it is the one that would have met the most
/// deadlines. Because the estimator was chosen for these tasks, only other tasks show how good it
/// is. Returns `None` without estimators. Calls `on_replay` after the replay with each estimator.
pub fn choose_estimator(
    levels: &Levels,
    tasks: &[TraceTask],
    target: f64,
    estimators: &[Estimator],
    on_replay: impl Fn(),
) -> Option<usize> {
    let tasks: Vec<_> = tasks.iter().map(|task| TraceTask { kind: 0, ..*task }).collect();
    let outcomes = estimators.iter().enumerate().map(|(index, estimator)| {
        let known = TypeKnowledge { target, estimator: *estimator, samples: Vec::new() };
        let mut learner = Learner::new(levels, ScheduleRule::Lambda, vec![known]);
        let outcome = replay(levels, &tasks, &mut learner);
        let met = outcome.met(&tasks).into_iter().filter(|is_met| *is_met).count();
        let wanted = (target * tasks.len() as f64).ceil() as usize;
        on_replay();
        (wanted.saturating_sub(met), outcome.energy(), index)
    });
    let best = outcomes.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    best.map(|(_, _, index)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::levels::Level;

    /// When the work falls to a third, an estimator of recent samples needs less energy.
    #[test]
    fn recent_samples_win_after_a_change() {
        let level = |(mhz, watts): (f64, f64)| Level { hz: mhz * 1e6, watts };
        let levels =
            Levels::new([(300.0, 2.0), (500.0, 3.6), (700.0, 6.0)].map(level).into(), 0.0).unwrap();
        let task = |index: u32| TraceTask {
            kind: 0,
            begin: f64::from(index) * 0.1,
            cycles: if index < 100 { 30e6 } else { 10e6 } + f64::from(index % 5) * 1e5,
            deadline: 0.05,
        };
        let tasks: Vec<_> = (0..300).map(task).collect();
        let of = |selection| Estimator { selection, model: DistributionModel::Samples };
        let estimators = [of(SampleSelection::All), of(SampleSelection::Recent(20))];
        assert_eq!(choose_estimator(&levels, &tasks, 0.9, &estimators, || ()), Some(1));
        assert_eq!(choose_estimator(&levels, &tasks, 0.9, &[], || ()), None);
    }
}
