//! The report of a run (docs/cost.md).

use serde::{Deserialize, Serialize};
use stats::sign::Verdict;

use super::analysis::{CarryOver, Control, ControlVerdict, Row};
use super::environment::Environment;
use super::measured::{BatchCounts, RawBlock};

pub const SCHEMA: &str = "tollgate.cost/1";

/// The report of `cost run`. `cost compare` reads two of them.
#[derive(Debug, Serialize, Deserialize)]
pub struct CostReport {
    pub schema: String,
    pub command: Vec<String>,
    pub environment: Environment,
    /// Options of the run. `precision` and `limit` are fractions of 1.
    pub precision: f64,
    pub limit: f64,
    pub budget_s: f64,
    pub elapsed_s: f64,
    pub seed: u64,
    /// The run was interrupted, or an arm failed: see `error`.
    pub partial: bool,
    pub error: Option<String>,
    pub counts: Vec<BatchCounts>,
    pub controls: Vec<Control>,
    pub rows: Vec<Row>,
    /// Benchmarks without a row, because noise made their time zero or negative in the first quad.
    #[serde(rename = "drowned")]
    pub below_noise: Vec<String>,
    pub carry_over: Vec<CarryOver>,
    /// Every batch of every block, in the order in which they were timed.
    pub samples: Vec<RawBlock>,
}

/// What the exit status means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conclusion {
    Within,
    DearerOrControlsFailed,
    Inconclusive,
}

impl CostReport {
    /// The number of controls with this verdict.
    pub fn controls_with(&self, verdict: ControlVerdict) -> usize {
        self.controls.iter().filter(|control| control.verdict == verdict).count()
    }

    /// What the rows and controls say together.
    pub fn conclusion(&self) -> Conclusion {
        let has = |verdict| self.rows.iter().any(|row| row.verdict == Some(verdict));
        if self.controls_with(ControlVerdict::Failed) > 0 || has(Verdict::Dearer) {
            Conclusion::DearerOrControlsFailed
        } else if self.controls_with(ControlVerdict::Inconclusive) > 0
            || has(Verdict::Inconclusive)
            || self.controls.is_empty()
            || !self.below_noise.is_empty()
            || self.partial
        {
            Conclusion::Inconclusive
        } else {
            Conclusion::Within
        }
    }
}

impl Conclusion {
    /// The exit status. Errors of Tollgate itself have 125 (crate::exit_status).
    pub fn status(self) -> u8 {
        match self {
            Self::Within => 0,
            Self::DearerOrControlsFailed => 1,
            Self::Inconclusive => 3,
        }
    }
}
