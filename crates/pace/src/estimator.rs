//! Estimates the distribution of a type's work from its earlier tasks.

use statrs::distribution::{ContinuousCDF as _, Gamma, Normal};

use crate::curve::WorkCurve;

/// The samples that an estimator uses, and their weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SampleSelection {
    /// All samples with the same weight.
    All,
    /// This number of the latest samples, with the same weight.
    Recent(usize),
    /// The latest twelve samples, of which the latest three have three times the weight. This is
    /// our reading of PACE's LongShort, after Govil, Chan and Wasserman, "Comparing Algorithms for
    /// Dynamic Speed-Setting of a Low-Power CPU", MobiCom 1995.
    LongShort,
    /// All samples. The weight of each is that of the next later one times this factor.
    Aged(f64),
}

/// The form of the estimated distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DistributionModel {
    /// The distribution of the samples themselves.
    Samples,
    /// A histogram with as many bins of equal width as the square root of the number of samples.
    Histogram,
    /// A gamma distribution with the mean and the variance of the samples.
    Gamma,
    /// A normal distribution with the mean and the variance of the samples, truncated at 0.
    Normal,
    /// A normal kernel with Silverman's bandwidth at each sample. The part below 0 is reflected.
    Kernel,
}

/// A way to estimate the distribution of work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimator {
    /// Which samples count.
    pub selection: SampleSelection,
    /// The form of the distribution.
    pub model: DistributionModel,
}

/// A continuous distribution is cut off at this number of standard deviations above the mean.
const TAIL: f64 = 8.0;
const LONG: usize = 12;
const SHORT: usize = 3;
const SHORT_WEIGHT: f64 = 3.0;
/// A sample with less than this part of the latest sample's weight is left out.
const MIN_WEIGHT: f64 = 1e-6;

impl SampleSelection {
    /// The weights of the selected ones of `samples` samples. The weight of the latest sample is
    /// the last one.
    fn weights(self, samples: usize) -> Vec<f64> {
        match self {
            Self::All => vec![1.0; samples],
            Self::Recent(most) => vec![1.0; samples.min(most.max(1))],
            Self::LongShort => {
                let mut weights = vec![1.0; samples.min(LONG)];
                weights.iter_mut().rev().take(SHORT).for_each(|weight| *weight = SHORT_WEIGHT);
                weights
            }
            Self::Aged(factor) => {
                let mut weights: Vec<_> = std::iter::successors(Some(1.0), |w| Some(w * factor))
                    .take(samples)
                    .take_while(|weight| *weight >= MIN_WEIGHT)
                    .collect();
                weights.reverse();
                weights
            }
        }
    }
}

impl Estimator {
    /// The number of samples that the estimator uses if there are this many.
    pub(crate) fn selected(&self, samples: usize) -> usize {
        self.selection.weights(samples).len()
    }

    /// Estimates the distribution from the work of earlier tasks in cycles, the latest one last.
    /// Returns `None` without a positive sample.
    pub fn curve(&self, samples: &[f64]) -> Option<WorkCurve> {
        let weights = self.selection.weights(samples.len());
        let selected = &samples[samples.len() - weights.len()..];
        let weighted: Vec<_> = selected
            .iter()
            .copied()
            .zip(weights)
            .filter(|(cycles, _)| *cycles > 0.0 && cycles.is_finite())
            .collect();
        let spread = Spread::of(&weighted);
        match self.model {
            _ if !spread.has_width() => WorkCurve::of_samples(weighted),
            DistributionModel::Samples => WorkCurve::of_samples(weighted),
            DistributionModel::Histogram => Some(histogram(&weighted, &spread)),
            DistributionModel::Gamma => {
                let variance = spread.deviation.powi(2);
                let gamma =
                    Gamma::new(spread.mean.powi(2) / variance, spread.mean / variance).ok()?;
                Some(WorkCurve::of_cdf(spread.upper(), |cycles| gamma.cdf(cycles)))
            }
            DistributionModel::Normal => {
                let normal = Normal::new(spread.mean, spread.deviation).ok()?;
                Some(WorkCurve::of_cdf(spread.upper(), above_zero(|cycles| normal.cdf(cycles))))
            }
            DistributionModel::Kernel => {
                let standard = Normal::new(0.0, 1.0).ok()?;
                let width = silverman(&weighted, &spread);
                // Work is positive, so the part of a kernel below 0 is reflected.
                let kernel = |cycles: f64, at: f64| {
                    standard.cdf((cycles - at) / width) - standard.cdf((-cycles - at) / width)
                };
                let cdf = |cycles: f64| {
                    let parts = weighted.iter().map(|(at, weight)| weight * kernel(cycles, *at));
                    parts.sum::<f64>() / spread.weight
                };
                Some(WorkCurve::of_cdf(spread.upper(), cdf))
            }
        }
    }
}

/// The part of a distribution above 0, as a distribution.
fn above_zero(cdf: impl Fn(f64) -> f64) -> impl Fn(f64) -> f64 {
    let below = cdf(0.0);
    move |cycles| (cdf(cycles) - below) / (1.0 - below)
}

struct Spread {
    weight: f64,
    mean: f64,
    deviation: f64,
    most: f64,
}

impl Spread {
    fn of(samples: &[(f64, f64)]) -> Self {
        let weight: f64 = samples.iter().map(|(_, weight)| weight).sum();
        let mean = samples.iter().map(|(cycles, weight)| cycles * weight).sum::<f64>() / weight;
        let variance =
            samples.iter().map(|(cycles, weight)| (cycles - mean).powi(2) * weight).sum::<f64>()
                / weight;
        let most = samples.iter().map(|(cycles, _)| *cycles).fold(0.0, f64::max);
        Self { weight, mean, deviation: variance.sqrt(), most }
    }

    /// Whether the samples differ. Otherwise a continuous distribution has no width.
    fn has_width(&self) -> bool {
        self.deviation > self.mean * 1e-9
    }

    /// The work at which a continuous distribution is cut off.
    fn upper(&self) -> f64 {
        (self.mean + TAIL * self.deviation).max(self.most)
    }
}

fn histogram(samples: &[(f64, f64)], spread: &Spread) -> WorkCurve {
    let bins = (samples.len() as f64).sqrt().ceil().max(1.0);
    let width = spread.most / bins;
    let mut weights = vec![0.0; bins as usize];
    for (cycles, weight) in samples {
        weights[((cycles / width) as usize).min(bins as usize - 1)] += weight / spread.weight;
    }
    WorkCurve::of_cdf(spread.most, |cycles| {
        let whole = ((cycles / width) as usize).min(weights.len());
        let below: f64 = weights[..whole].iter().sum();
        below + weights.get(whole).map_or(0.0, |weight| weight * (cycles / width).fract())
    })
}

/// The bandwidth of the kernels is 0.9 min(σ, IQR / 1.34) n^(-1/5) (Silverman, "Density Estimation
/// for Statistics and Data Analysis", 1986, equation 3.31). With weights, n is Kish's effective
/// number.
fn silverman(samples: &[(f64, f64)], spread: &Spread) -> f64 {
    let squares: f64 = samples.iter().map(|(_, weight)| weight.powi(2)).sum();
    let n = spread.weight.powi(2) / squares;
    let quartiles = WorkCurve::of_samples(samples.iter().copied())
        .map_or(0.0, |curve| curve.quantile(0.75) - curve.quantile(0.25));
    let width =
        if quartiles > 0.0 { spread.deviation.min(quartiles / 1.34) } else { spread.deviation };
    0.9 * width * n.powf(-0.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantile(model: DistributionModel, samples: &[f64], share: f64) -> f64 {
        let estimator = Estimator { selection: SampleSelection::All, model };
        estimator.curve(samples).expect("there are samples").quantile(share)
    }

    #[test]
    fn weights_of_selections() {
        let weights = |selection: SampleSelection, samples| selection.weights(samples);
        assert_eq!(weights(SampleSelection::All, 2), [1.0; 2]);
        assert_eq!(weights(SampleSelection::Recent(3), 5), [1.0; 3]);
        assert_eq!(weights(SampleSelection::LongShort, 4), [1.0, 3.0, 3.0, 3.0]);
        assert_eq!(weights(SampleSelection::LongShort, 20).len(), 12);
        assert_eq!(weights(SampleSelection::Aged(0.5), 3), [0.25, 0.5, 1.0]);
        assert_eq!(weights(SampleSelection::Aged(0.5), 1000).len(), 20);
    }

    /// The gamma model is fitted to quantiles of the exponential distribution, which is a gamma
    /// distribution, and has the same quantiles again.
    #[test]
    fn models_recover_quantiles() {
        let samples: Vec<_> =
            (0..1000).map(|i| -1e6 * (1.0 - (f64::from(i) + 0.5) / 1000.0).ln()).collect();
        for share in [0.5_f64, 0.9, 0.95] {
            let truth = -1e6 * (1.0 - share).ln();
            for model in [
                DistributionModel::Samples,
                DistributionModel::Gamma,
                DistributionModel::Kernel,
                DistributionModel::Histogram,
            ] {
                let found = quantile(model, &samples, share);
                assert!((found / truth - 1.0).abs() < 0.12, "{model:?} {share}: {found} {truth}");
            }
        }
        let normal: Vec<_> = (0..1000)
            .map(|i| Normal::new(1e6, 1e5).unwrap().inverse_cdf((f64::from(i) + 0.5) / 1000.0))
            .collect();
        assert!((quantile(DistributionModel::Normal, &normal, 0.95) / 1.1645e6 - 1.0).abs() < 0.01);
    }

    #[test]
    fn equal_samples_have_no_width() {
        for model in [
            DistributionModel::Samples,
            DistributionModel::Histogram,
            DistributionModel::Gamma,
            DistributionModel::Normal,
            DistributionModel::Kernel,
        ] {
            assert_eq!(quantile(model, &[5.0; 4], 0.5), 5.0, "{model:?}");
            let estimator = Estimator { selection: SampleSelection::All, model };
            assert_eq!(estimator.curve(&[]), None);
            assert_eq!(estimator.curve(&[f64::NAN, 0.0]), None);
        }
    }
}
