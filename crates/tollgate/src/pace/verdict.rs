//! The verdict of a comparison: whether pace needs less energy than other policies.

use ::pace::MIN_SAMPLES;
use serde::Serialize;
use stats::bootstrap::quotient_of_sums;

use super::policy::{PolicyName, PolicyRow};
use super::report_format::{CONFIDENCE, ReportedInterval, SEED, or_dash, tenths};

/// RightSpeed met its targets within 1.5 percentage points (abstract of the paper). A policy that
/// does so counts as meeting the target.
pub const TARGET_TOLERANCE: f64 = 0.015;

/// The result of a comparison of pace with the cheapest other policy that meets the target. This is
/// neither `four-steps`, which is another way to make the same schedule, nor `clairvoyant`, which
/// no real policy can be.
#[derive(Debug, Serialize)]
pub struct PaceVerdict {
    #[serde(rename = "verdict")]
    pub kind: VerdictKind,
    /// The other policy.
    pub against: Option<PolicyName>,
    /// The energy of pace as a fraction of that of the other policy.
    pub modelled_of_other: Option<ReportedInterval>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerdictKind {
    /// Pace needs less energy.
    Less,
    /// Pace needs more energy.
    More,
    /// The interval of the difference contains 0.
    NoDifference,
    /// Pace misses more deadlines than the target allows.
    MissesTarget,
    /// The energies differ by less than the report shows.
    Same,
    /// The tasks did no work.
    NoWork,
    /// No policy meets the target, not even the fastest speed.
    NoneMeets,
    /// The type has no task to judge.
    NotJudged,
    /// The type has too few tasks to train the policies.
    NotTrained,
}

impl PaceVerdict {
    /// Compares pace with the cheapest other policy that meets the target. `trained` tasks trained
    /// the policies, and `rows` has the results of the judged ones. `energies` returns the energy
    /// of each of these under a policy.
    pub fn of(
        target: f64,
        trained: usize,
        rows: &[PolicyRow],
        energies: impl Fn(PolicyName) -> Vec<f64>,
    ) -> Self {
        let own = energies(PolicyName::Pace);
        if own.is_empty() {
            return Self::without_other(VerdictKind::NotJudged);
        }
        // Up to this number, all estimators run the tasks at the fastest level.
        if trained < MIN_SAMPLES {
            return Self::without_other(VerdictKind::NotTrained);
        }
        let allowed = 1.0 - target + TARGET_TOLERANCE;
        // With a low target, the tolerance would allow that no task meets its deadline.
        let meets = |row: &PolicyRow| {
            row.missed_share.is_some_and(|share| share.estimate <= allowed && share.estimate < 1.0)
        };
        let pace_meets = rows.iter().any(|row| row.policy == PolicyName::Pace && meets(row));
        let others = rows.iter().filter(|row| {
            !matches!(
                row.policy,
                PolicyName::Pace | PolicyName::FourSteps | PolicyName::Clairvoyant
            )
        });
        let best = others
            .filter(|row| meets(row))
            .min_by(|a, b| a.modelled_energy_j.total_cmp(&b.modelled_energy_j));
        let Some(best) = best else { return Self::without_other(VerdictKind::NoneMeets) };
        // There is no quotient if the tasks have no work.
        let ratio = quotient_of_sums(&own, &energies(best.policy), CONFIDENCE, SEED);
        let ratio = ratio.map(ReportedInterval::from);
        let kind = match ratio {
            _ if !pace_meets => VerdictKind::MissesTarget,
            None => VerdictKind::NoWork,
            Some(ratio) if ratio.is_about_one() => VerdictKind::Same,
            Some(ReportedInterval { high, .. }) if high < 1.0 => VerdictKind::Less,
            Some(ReportedInterval { low, .. }) if low > 1.0 => VerdictKind::More,
            Some(_) => VerdictKind::NoDifference,
        };
        Self { kind, against: Some(best.policy), modelled_of_other: ratio }
    }

    /// A verdict without another policy to compare pace with.
    fn without_other(kind: VerdictKind) -> Self {
        Self { kind, against: None, modelled_of_other: None }
    }

    /// The verdict as text.
    pub fn sentence(&self) -> String {
        let against = self.against.map_or("the fastest speed", PolicyName::name);
        let other = format!("{against}, the cheapest other policy that meets the target");
        match self.kind {
            VerdictKind::Less => {
                format!("Pace needs {} less modelled energy than {other}.", self.difference(-1.0))
            }
            VerdictKind::More => {
                format!("Pace needs {} more modelled energy than {other}.", self.difference(1.0))
            }
            VerdictKind::MissesTarget => {
                format!("Pace misses more deadlines than the target allows, unlike {other}.")
            }
            VerdictKind::NoDifference => {
                format!("The difference from {other}, is not clear: {}.", self.difference(1.0))
            }
            VerdictKind::Same => format!("Pace needs as much modelled energy as {other}."),
            VerdictKind::NoWork => {
                "The tasks in the second half did no work, so there is no verdict.".into()
            }
            VerdictKind::NoneMeets => {
                "No policy meets the target, not even the fastest speed.".into()
            }
            VerdictKind::NotJudged => {
                "Without a task in the second half, there is no verdict.".into()
            }
            VerdictKind::NotTrained => format!(
                "With fewer than {MIN_SAMPLES} tasks in the first half, there is no verdict: pace \
                could not learn their work."
            ),
        }
    }

    /// "12.3 % [11.0, 13.6]": what pace needs beyond the other policy, with this sign.
    fn difference(&self, sign: f64) -> String {
        let difference = |ratio: ReportedInterval| {
            let [a, b, c] = [ratio.estimate, ratio.low, ratio.high]
                .map(|value| tenths(sign * (value - 1.0) * 100.0));
            if sign < 0.0 { format!("{a} % [{c}, {b}]") } else { format!("{a} % [{b}, {c}]") }
        };
        or_dash(self.modelled_of_other, difference)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict of ten tasks, of which `missed` missed the deadline with pace, and which needed
    /// this much energy with pace, and 1 J with the fastest speed.
    fn verdict(target: f64, trained: usize, missed: u64, pace_j: f64) -> PaceVerdict {
        let energies = |policy| vec![if policy == PolicyName::Pace { pace_j } else { 1.0 }; 10];
        let row = |policy, missed| PolicyRow {
            policy,
            modelled_energy_j: energies(policy).iter().sum(),
            modelled_of_fastest: None,
            missed,
            missed_share: ReportedInterval::of_share(missed, 10),
            overlapped: 0,
        };
        let rows = [row(PolicyName::Pace, missed), row(PolicyName::Fastest, 1)];
        PaceVerdict::of(target, trained, &rows, energies)
    }

    #[test]
    fn verdicts_say_what_the_tasks_show() {
        let kind = |target, trained, missed, pace_j| verdict(target, trained, missed, pace_j).kind;
        assert_eq!(kind(0.9, 10, 1, 0.5), VerdictKind::Less);
        assert_eq!(kind(0.9, 10, 1, 1.5), VerdictKind::More);
        assert_eq!(kind(0.9, 10, 1, 1.0001), VerdictKind::Same);
        assert_eq!(kind(0.9, 10, 2, 0.5), VerdictKind::MissesTarget);
        assert_eq!(kind(0.95, 10, 0, 0.5), VerdictKind::NoneMeets);
        assert_eq!(kind(0.9, 9, 1, 0.5), VerdictKind::NotTrained);
        // No target allows that all tasks miss the deadline.
        assert_eq!(kind(0.01, 10, 9, 0.5), VerdictKind::Less);
        assert_eq!(kind(0.01, 10, 10, 0.5), VerdictKind::MissesTarget);
        let idle_row = |policy| PolicyRow {
            policy,
            modelled_energy_j: 0.0,
            modelled_of_fastest: None,
            missed: 0,
            missed_share: ReportedInterval::of_share(0, 10),
            overlapped: 0,
        };
        let idle = [idle_row(PolicyName::Pace), idle_row(PolicyName::Fastest)];
        let idle = PaceVerdict::of(0.9, 10, &idle, |_| vec![0.0; 10]);
        assert_eq!(idle.kind, VerdictKind::NoWork);
        let none = PaceVerdict::of(0.9, 10, &[], |_| Vec::new());
        assert_eq!(none.kind, VerdictKind::NotJudged);
    }

    #[test]
    fn verdicts_are_sentences() {
        let than = "fastest, the cheapest other policy that meets the target.";
        assert_eq!(
            verdict(0.9, 10, 1, 0.5).sentence(),
            format!("Pace needs 50.0 % [50.0, 50.0] less modelled energy than {than}")
        );
        assert_eq!(
            verdict(0.9, 10, 1, 0.9999).sentence(),
            format!("Pace needs as much modelled energy as {than}")
        );
        assert_eq!(
            verdict(0.9, 0, 1, 0.5).sentence(),
            "With fewer than 10 tasks in the first half, there is no verdict: pace could not learn \
             their work."
        );
    }
}
