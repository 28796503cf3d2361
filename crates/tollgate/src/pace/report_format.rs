//! What the reports of pace have in common: intervals, figures, and tasks that have not ended.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use stats::interval::{Interval, share_interval};

use crate::format::count;

/// The confidence of all intervals.
pub const CONFIDENCE: f64 = 0.95;
/// Any seed would do; a fixed one gives the same intervals in each run.
pub const SEED: u64 = 1;

/// A value with its 95 % interval.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct ReportedInterval {
    pub estimate: f64,
    pub low: f64,
    pub high: f64,
}

impl ReportedInterval {
    /// The share of `part` in `whole`. `None` without a `whole`.
    pub fn of_share(part: u64, whole: u64) -> Option<Self> {
        share_interval(part, whole, CONFIDENCE).map(Self::from)
    }

    /// Whether the whole interval, as a percentage with one decimal, is that of 1.
    pub fn is_about_one(self) -> bool {
        [self.estimate, self.low, self.high].map(|value| tenths(value * 100.0)) == ["100.0"; 3]
    }
}

impl From<Interval> for ReportedInterval {
    fn from(interval: Interval) -> Self {
        Self { estimate: interval.estimate, low: interval.low, high: interval.high }
    }
}

/// "12.3 [11.0, 13.6]", in percent.
pub fn interval(limits: ReportedInterval) -> String {
    let [estimate, low, high] =
        [limits.estimate, limits.low, limits.high].map(|value| tenths(value * 100.0));
    format!("{estimate} [{low}, {high}]")
}

/// One decimal, without a sign before 0.
pub fn tenths(value: f64) -> String {
    // The sum of -0 and 0 is 0.
    format!("{:.1}", (value * 10.0).round() / 10.0 + 0.0)
}

/// A deadline: "28.6", or "3,600,000".
pub fn milliseconds(ms: f64) -> String {
    match ms {
        whole if whole >= 1000.0 && whole.fract() == 0.0 => count(whole as u64),
        ms => ms.to_string(),
    }
}

/// Three significant digits, at most six decimals, or all digits of a whole number.
pub fn significant(value: f64) -> String {
    let digits = match value.abs() {
        _ if value.round() >= 1000.0 => return count(value.round() as u64),
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        value if value >= 1.0 => 2,
        value if value >= 0.1 => 3,
        value if value >= 0.01 => 4,
        value if value >= 0.001 => 5,
        value if value > 0.0 => 6,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// A value as text, or "-" if there is none.
pub fn or_dash<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}

/// Appends the numbers of unfinished and of abandoned tasks.
pub fn write_unended(out: &mut String, unfinished: usize, abandoned: usize) {
    for (tasks, what) in
        [(unfinished, "unfinished tasks"), (abandoned, "tasks that their programs did not end")]
    {
        if tasks > 0 {
            let _ = writeln!(out, "{what}: {}", count(tasks as u64));
        }
    }
}

/// The smallest of ascending values that at least this share of them does not exceed. `None`
/// without a value.
pub fn quantile<T: Copy>(ascending: &[T], share: f64) -> Option<T> {
    let rank = (share * ascending.len() as f64).ceil() as usize;
    ascending.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values() {
        let values: Vec<_> = (1..=100).collect();
        let of = |share| quantile(&values, share);
        assert_eq!([0.0, 0.5, 0.95, 1.0].map(of), [Some(1), Some(50), Some(95), Some(100)]);
        assert_eq!(quantile::<u64>(&[], 0.5), None);
    }

    #[test]
    fn long_deadlines_have_separators() {
        assert_eq!([28.6, 50.0, 3_600_000.0].map(milliseconds), ["28.6", "50", "3,600,000"]);
    }

    #[test]
    fn large_figures_have_separators() {
        let of = [0.12345, 1.2345, 12.345, 123.45, 999.6, 18e6, 18_446_744_073_709.6];
        let texts = ["0.123", "1.23", "12.3", "123", "1,000", "18,000,000", "18,446,744,073,710"];
        assert_eq!(of.map(significant), texts);
    }

    #[test]
    fn small_figures_have_digits() {
        let of = [0.012345, 0.0012345, 0.00012345, 0.000012345, 0.0];
        let texts = ["0.0123", "0.00123", "0.000123", "0.000012", "0.000"];
        assert_eq!(of.map(significant), texts);
    }

    #[test]
    fn nothing_has_no_sign() {
        assert_eq!([-0.04, 0.04, -0.06].map(tenths), ["0.0", "0.0", "-0.1"]);
        let of = |low| ReportedInterval { estimate: 1.0, low, high: 1.0004 };
        assert!(of(0.9996).is_about_one() && !of(0.999).is_about_one());
    }
}
