//! The distribution of the work of a type's tasks, as the steps of its survival function.

use std::ops::Range;

/// A distribution of work. It has amounts of work in ascending order, each with the probability
/// that a task needs more. Between two amounts, the probability of the smaller one holds, so that
/// the curve never understates the work.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkCurve {
    cycles: Vec<f64>,
    survival: Vec<f64>,
}

/// The number of steps in which a continuous distribution is represented.
const STEPS: usize = 256;

impl WorkCurve {
    /// The distribution of samples with weights. A sample is left out unless its work and its
    /// weight are both positive and finite. Returns `None` if no sample is left.
    pub fn of_samples(samples: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let is_usable = |value: f64| value > 0.0 && value.is_finite();
        let mut samples: Vec<_> = samples
            .into_iter()
            .filter(|(cycles, weight)| is_usable(*cycles) && is_usable(*weight))
            .collect();
        samples.sort_by(|a, b| a.0.total_cmp(&b.0));
        let total: f64 = samples.iter().map(|(_, weight)| weight).sum();
        let mut curve = Self { cycles: Vec::new(), survival: Vec::new() };
        let mut below = 0.0;
        for (cycles, weight) in samples {
            below += weight;
            if curve.cycles.last() == Some(&cycles) {
                curve.cycles.pop();
                curve.survival.pop();
            }
            curve.cycles.push(cycles);
            curve.survival.push((1.0 - below / total).max(0.0));
        }
        // The weights may not add up to exactly 1.
        *curve.survival.last_mut()? = 0.0;
        Some(curve)
    }

    /// The distribution with the cumulative distribution function `cdf`, cut off at `most` cycles.
    pub(crate) fn of_cdf(most: f64, cdf: impl Fn(f64) -> f64) -> Self {
        let cycles: Vec<_> = (1..=STEPS).map(|step| most * step as f64 / STEPS as f64).collect();
        let mut survival: Vec<_> =
            cycles.iter().map(|cycles| (1.0 - cdf(*cycles)).clamp(0.0, 1.0)).collect();
        survival[STEPS - 1] = 0.0;
        Self { cycles, survival }
    }

    /// The probability that a task needs more than this work.
    pub fn survival(&self, cycles: f64) -> f64 {
        match self.cycles.partition_point(|step| *step <= cycles) {
            0 => 1.0,
            steps => self.survival[steps - 1],
        }
    }

    /// The smallest amount of the curve that at least this share of the tasks does not exceed. If
    /// the share is the target of a type, this amount is its pre-deadline cycles.
    pub fn quantile(&self, share: f64) -> f64 {
        // A survival that should be 1 - share may be a little more because of rounding errors.
        let last = self.cycles.len() - 1;
        self.cycles[self.first_step(1.0 - share + 1e-12, 0..last)]
    }

    /// The expected work between two amounts: the integral of the survival function.
    pub(crate) fn expected_between(&self, from: f64, to: f64) -> f64 {
        let (mut sum, mut at) = (0.0, from);
        let mut step = self.cycles.partition_point(|step| *step <= from);
        // No task needs more than the greatest amount.
        while at < to && step < self.cycles.len() {
            let next = self.cycles[step].min(to);
            sum += self.survival(at) * (next - at);
            (at, step) = (next, step + 1);
        }
        sum
    }

    /// The first of these steps at which a task needs more with at most this probability. Returns
    /// the end of the range if there is none.
    pub(crate) fn first_step(&self, probability: f64, steps: Range<usize>) -> usize {
        let survival = &self.survival[steps.clone()];
        steps.start + survival.partition_point(|survival| *survival > probability)
    }

    /// The amounts at which the probability falls, in ascending order.
    pub fn amounts(&self) -> &[f64] {
        &self.cycles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curve_of_samples() {
        let curve =
            WorkCurve::of_samples([3.0, 1.0, 2.0, 2.0].map(|cycles| (cycles, 1.0))).unwrap();
        let survival: Vec<_> =
            [0.0, 0.9, 1.0, 1.5, 2.0, 2.9, 3.0, 9.0].map(|w| curve.survival(w)).into();
        assert_eq!(survival, [1.0, 1.0, 0.75, 0.75, 0.25, 0.25, 0.0, 0.0]);
        assert_eq!(
            [0.0, 0.25, 0.26, 0.75, 0.76, 1.0].map(|p| curve.quantile(p)),
            [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
        );
        // The whole integral is the mean of the samples.
        assert!((curve.expected_between(0.0, 5.0) - 2.0).abs() < 1e-12);
        assert!((curve.expected_between(1.5, 2.5) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn unusable_samples_are_left_out() {
        let curve = |samples: &[(f64, f64)]| WorkCurve::of_samples(samples.iter().copied());
        assert_eq!(curve(&[]), None);
        assert_eq!(curve(&[(f64::NAN, 1.0), (-1.0, 1.0), (0.0, 1.0), (2.0, 0.0)]), None);
        assert_eq!(curve(&[(f64::INFINITY, 1.0), (2.0, 1.0)]), curve(&[(2.0, 3.0)]));
    }
}
