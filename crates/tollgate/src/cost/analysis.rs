//! Computes rows, controls and verdicts from samples.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stats::interval::{Interval, median, median_interval, quotient_interval};
use stats::sequential::error_a_look;
use stats::sign::{Verdict, verdicts};

/// The confidence of both rows and controls.
pub const CONFIDENCE: f64 = 0.95;

/// The time of one benchmark in a block, in nanoseconds per unit.
#[derive(Debug, Clone, Copy)]
pub struct BlockTime {
    /// The median of the batches.
    pub median: f64,
    pub mean: f64,
}

impl BlockTime {
    /// The time of a block from its batches.
    pub fn of(ns: &[f64]) -> Self {
        Self { median: median(ns), mean: ns.iter().sum::<f64>() / ns.len() as f64 }
    }
}

/// Both blocks of an arm in a quad.
pub type BlockPair = [BlockTime; 2];

/// The times of one benchmark: by arm, one pair for each quad that was finished.
pub type ArmTimes = Vec<Vec<BlockPair>>;

/// The differences between an arm and its base, one for each quad.
#[derive(Debug, Default, Clone)]
pub struct Differences {
    /// Log ratios of the block medians.
    pub logs: Vec<f64>,
    /// Log ratios of the block means.
    pub mean_logs: Vec<f64>,
    /// In nanoseconds per unit.
    pub deltas: Vec<f64>,
}

/// The differences between the blocks of an arm and of its base, quad by quad.
pub fn differences(arm: &[BlockPair], base: &[BlockPair]) -> Differences {
    let mut all = Differences::default();
    for (arm, base) in arm.iter().zip(base) {
        let logs = |pair: &BlockPair, part: fn(&BlockTime) -> f64| {
            pair.iter().map(|time| part(time).ln()).sum::<f64>() / 2.0
        };
        let mean = |pair: &BlockPair| (pair[0].median + pair[1].median) / 2.0;
        all.logs.push(logs(arm, |time| time.median) - logs(base, |time| time.median));
        all.mean_logs.push(logs(arm, |time| time.mean) - logs(base, |time| time.mean));
        all.deltas.push(mean(arm) - mean(base));
    }
    all
}

/// Why a benchmark ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoppedBy {
    Precision,
    Time,
    Runs,
    /// In one block, the benchmark's time, which is a difference, was zero or negative because of
    /// noise.
    Noise,
    Interrupt,
}

/// What an arm costs a benchmark.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    pub benchmark: String,
    pub unit: String,
    pub arm: String,
    pub base: String,
    /// Time as a multiple of the base's: median over quads, and its 95 % interval.
    pub ratio: f64,
    pub ratio_low: f64,
    pub ratio_high: f64,
    /// Difference from the base in nanoseconds per unit.
    pub delta: f64,
    pub delta_low: f64,
    pub delta_high: f64,
    /// The ratio of the blocks' means, which include rare events.
    pub mean_ratio: f64,
    pub mean_ratio_low: f64,
    pub mean_ratio_high: f64,
    /// `delta` as a multiple of the floor's delta; null if the floor's interval includes 0.
    pub floors: Option<f64>,
    pub floors_low: Option<f64>,
    pub floors_high: Option<f64>,
    /// The arm that measures this floor.
    pub floor: Option<String>,
    pub quads: usize,
    /// The confidence of each interval: 0.95 or somewhat more. With fewer than six quads, it is
    /// less.
    pub confidence: f64,
    pub stopped_by: StoppedBy,
    /// Events that the arm dropped in all its blocks; null if it does not report them.
    pub loss: Option<u64>,
    /// Null for a floor, which is only a reference for other arms.
    pub verdict: Option<Verdict>,
}

/// The result of a control on one benchmark.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Control {
    pub benchmark: String,
    pub kind: ControlKind,
    pub ratio: f64,
    /// The interval holds simultaneously with those of all other controls, at all looks.
    pub ratio_low: f64,
    pub ratio_high: f64,
    /// The confidence of the interval. With too few quads, it is below that of
    /// [`control_confidence`].
    pub confidence: f64,
    /// The true ratio: 1, or the injected one.
    pub truth: f64,
    pub verdict: ControlVerdict,
}

/// The controls of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ControlKind {
    Aa,
    Injected,
}

/// Whether a control found what it had to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ControlVerdict {
    Passed,
    Failed,
    Inconclusive,
}

impl ControlVerdict {
    pub fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Inconclusive => "inconclusive",
        }
    }
}

/// The confidence that each control's interval needs so that all intervals hold together.
pub fn control_confidence(controls: usize) -> f64 {
    1.0 - error_a_look(1.0 - CONFIDENCE) / controls.max(1) as f64
}

/// The A/A control. It fails if its interval excludes the true ratio, which is 1.
pub fn aa(benchmark: &str, logs: &[f64], controls: usize) -> Option<Control> {
    let interval = median_interval(logs, control_confidence(controls))?;
    let verdict = match (covers(&interval, 0.0), is_sure(&interval, controls)) {
        (true, _) => ControlVerdict::Passed,
        (false, true) => ControlVerdict::Failed,
        (false, false) => ControlVerdict::Inconclusive,
    };
    Some(control(benchmark, ControlKind::Aa, interval, 1.0, verdict))
}

/// The injected control. It passes if its interval excludes a ratio of 1 and covers the injected
/// ratio. It is inconclusive if the interval is too wide to exclude 1.
pub fn injected(benchmark: &str, logs: &[f64], truth: f64, controls: usize) -> Option<Control> {
    let interval = median_interval(logs, control_confidence(controls))?;
    let verdict = match (covers(&interval, truth.ln()), covers(&interval, 0.0)) {
        _ if !is_sure(&interval, controls) => ControlVerdict::Inconclusive,
        (true, false) => ControlVerdict::Passed,
        (true, true) => ControlVerdict::Inconclusive,
        (false, _) => ControlVerdict::Failed,
    };
    Some(control(benchmark, ControlKind::Injected, interval, truth, verdict))
}

/// Whether the samples suffice to detect the injected time.
pub fn can_detect_injection(logs: &[f64], controls: usize) -> bool {
    median_interval(logs, control_confidence(controls))
        .is_some_and(|interval| is_sure(&interval, controls) && !covers(&interval, 0.0))
}

fn covers(interval: &Interval, log: f64) -> bool {
    interval.low <= log && interval.high >= log
}

/// Whether the interval has the confidence that [`control_confidence`] requires. With too few
/// samples, no interval has it.
fn is_sure(interval: &Interval, controls: usize) -> bool {
    interval.confidence >= control_confidence(controls)
}

fn control(
    benchmark: &str,
    kind: ControlKind,
    interval: Interval,
    truth: f64,
    verdict: ControlVerdict,
) -> Control {
    Control {
        benchmark: benchmark.into(),
        kind,
        ratio: interval.estimate.exp(),
        ratio_low: interval.low.exp(),
        ratio_high: interval.high.exp(),
        confidence: interval.confidence,
        truth,
        verdict,
    }
}

/// What a row is about, why its benchmark ended, and what its arm dropped.
pub struct RowLabel {
    pub benchmark: String,
    pub unit: String,
    pub arm: String,
    pub base: String,
    pub floor: Option<String>,
    pub stopped_by: StoppedBy,
    pub loss: Option<u64>,
}

/// Makes a row. Returns `None` if no quad was finished.
pub fn row(about: RowLabel, own: &Differences, floor: Option<&Differences>) -> Option<Row> {
    let ratio = median_interval(&own.logs, CONFIDENCE)?;
    let mean = median_interval(&own.mean_logs, CONFIDENCE)?;
    let delta = median_interval(&own.deltas, CONFIDENCE)?;
    let floors = floor.and_then(|floor| {
        let quads = own.deltas.len().min(floor.deltas.len());
        quotient_interval(&own.deltas[..quads], &floor.deltas[..quads], CONFIDENCE)
    });
    Some(Row {
        benchmark: about.benchmark,
        unit: about.unit,
        arm: about.arm,
        base: about.base,
        ratio: ratio.estimate.exp(),
        ratio_low: ratio.low.exp(),
        ratio_high: ratio.high.exp(),
        delta: delta.estimate,
        delta_low: delta.low,
        delta_high: delta.high,
        mean_ratio: mean.estimate.exp(),
        mean_ratio_low: mean.low.exp(),
        mean_ratio_high: mean.high.exp(),
        floors: floors.map(|floors| floors.estimate),
        floors_low: floors.map(|floors| floors.low),
        floors_high: floors.map(|floors| floors.high),
        floor: about.floor.filter(|_| floors.is_some()),
        quads: own.logs.len(),
        confidence: ratio.confidence,
        stopped_by: about.stopped_by,
        loss: about.loss,
        verdict: None,
    })
}

/// The verdicts on rows against a limit such as 0.02. They hold for all rows together and at all
/// looks.
pub fn row_verdicts(logs: &[&[f64]], limit: f64) -> Vec<Verdict> {
    verdicts(logs, (1.0 + limit).ln(), error_a_look(1.0 - CONFIDENCE))
}

/// The carry-over of an arm: blocks of the base right after the arm, compared with the base's other
/// block of the same quad.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CarryOver {
    pub benchmark: String,
    pub after: String,
    pub ratio: f64,
    pub ratio_low: f64,
    pub ratio_high: f64,
}

/// The carry-overs whose intervals do not contain zero. For each arm, `after` has the log ratios of
/// the base blocks right after the arm to the other base blocks.
pub fn carry_over(
    benchmark: &str,
    after: &BTreeMap<String, Vec<f64>>,
    rows: usize,
) -> Vec<CarryOver> {
    let confidence = control_confidence(rows);
    let one = |(arm, logs): (&String, &Vec<f64>)| {
        let interval = median_interval(logs, confidence)?;
        (interval.confidence >= confidence && (interval.low > 0.0 || interval.high < 0.0)).then(
            || CarryOver {
                benchmark: benchmark.into(),
                after: arm.clone(),
                ratio: interval.estimate.exp(),
                ratio_low: interval.low.exp(),
                ratio_high: interval.high.exp(),
            },
        )
    };
    after.iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(times: &[f64]) -> Vec<BlockPair> {
        let time = |median: f64| BlockTime { median, mean: median + 1.0 };
        times.chunks_exact(2).map(|two| [time(two[0]), time(two[1])]).collect()
    }

    #[test]
    fn quads_give_ratios_and_differences() {
        let all = differences(&pairs(&[200.0, 220.0]), &pairs(&[100.0, 110.0]));
        assert!((all.logs[0] - 2f64.ln()).abs() < 1e-12);
        assert!((all.deltas[0] - 105.0).abs() < 1e-12);
        assert!(all.mean_logs[0] < all.logs[0]);
    }

    #[test]
    fn controls_pass_fail_or_say_nothing() {
        let sure: Vec<_> = (0..40).map(|i| 0.0198 + f64::from(i % 5 - 2) * 1e-4).collect();
        let wide: Vec<_> = (0..40).map(|i| 0.0198 + f64::from(i % 5 - 2) * 0.05).collect();
        let verdict = |control: Option<Control>| control.expect("samples").verdict;
        assert_eq!(verdict(injected("x", &sure, 1.02, 1)), ControlVerdict::Passed);
        assert_eq!(verdict(injected("x", &sure, 1.05, 1)), ControlVerdict::Failed);
        assert_eq!(verdict(injected("x", &wide, 1.02, 1)), ControlVerdict::Inconclusive);
        assert_eq!(verdict(aa("x", &sure, 1)), ControlVerdict::Failed);
        assert_eq!(verdict(aa("x", &wide, 1)), ControlVerdict::Passed);
        // A control never fails if its samples are too few for this confidence.
        assert!(control_confidence(40) > 0.9998);
    }

    #[test]
    fn signed_differences_are_not_clamped() {
        let own = differences(&pairs(&[90.0; 40]), &pairs(&[100.0; 40]));
        let about = RowLabel {
            benchmark: "b".into(),
            unit: "call".into(),
            arm: "a".into(),
            base: "off".into(),
            floor: None,
            stopped_by: StoppedBy::Precision,
            loss: None,
        };
        let row = row(about, &own, None).expect("samples");
        assert!(row.delta < 0.0 && row.ratio < 1.0 && row.delta_high < 0.0);
    }

    #[test]
    fn only_significant_carry_over_is_reported() {
        let after = BTreeMap::from([
            ("lens".to_owned(), vec![0.03; 60]),
            ("off".to_owned(), vec![0.0; 60]),
        ]);
        let reported = carry_over("getpid", &after, 2);
        assert_eq!(reported.iter().map(|one| one.after.as_str()).collect::<Vec<_>>(), ["lens"]);
        let few = BTreeMap::from([("lens".to_owned(), vec![0.03; 6])]);
        assert!(carry_over("getpid", &few, 2).is_empty());
    }
}
