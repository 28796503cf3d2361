//! Chooses an estimator by replay.

use crate::estimator::Estimator;
use crate::levels::Levels;
use crate::policies::{Learner, ScheduleRule};
use crate::replay::{Task, replay};

/// The index of the estimator with which the λ rule would have needed the least energy for these
/// tasks, of those with which it would have met the target; if there is none, the one with which it
/// would have met the most deadlines. The result has to be judged on other tasks. `None` without
/// estimators.
pub fn choose_estimator(
    levels: &Levels,
    tasks: &[Task],
    target: f64,
    estimators: &[Estimator],
) -> Option<usize> {
    let outcomes = estimators.iter().enumerate().map(|(index, estimator)| {
        let mut learner =
            Learner::new(levels, ScheduleRule::Lambda, *estimator, target, Vec::new());
        let outcome = replay(levels, tasks, &mut learner);
        let met = outcome.met(tasks);
        let wanted = (target * tasks.len() as f64).ceil() as usize;
        (wanted.saturating_sub(met), outcome.energy, index)
    });
    let best = outcomes.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    best.map(|(_, _, index)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimator::{DistributionModel, SampleSelection};
    use crate::levels::Level;

    /// The work falls to a third: an estimator that forgets needs less energy.
    #[test]
    fn recent_samples_win_after_a_change() {
        let level = |(mhz, watts): (f64, f64)| Level { hz: mhz * 1e6, watts };
        let levels =
            Levels::new([(300.0, 2.0), (500.0, 3.6), (700.0, 6.0)].map(level).into(), 0.0).unwrap();
        let task = |index: u32| Task {
            begin: f64::from(index) * 0.1,
            cycles: if index < 100 { 30e6 } else { 10e6 } + f64::from(index % 5) * 1e5,
            deadline: 0.05,
        };
        let tasks: Vec<_> = (0..300).map(task).collect();
        let of = |selection| Estimator { selection, model: DistributionModel::Samples };
        let estimators = [of(SampleSelection::All), of(SampleSelection::Recent(20))];
        assert_eq!(choose_estimator(&levels, &tasks, 0.9, &estimators), Some(1));
        assert_eq!(choose_estimator(&levels, &tasks, 0.9, &[]), None);
    }
}
