//! The document of a run: docs/cost.md describes it.

use serde::{Deserialize, Serialize};
use stats::sign::Verdict;

use super::analysis::{CarryOver, Control, ControlVerdict, Row};
use super::environment::Environment;
use super::lab::{Counts, RawBlock};

pub const SCHEMA: &str = "tollgate.cost/1";

#[derive(Debug, Serialize, Deserialize)]
pub struct Document {
    pub schema: String,
    pub command: Vec<String>,
    pub environment: Environment,
    /// What the run was asked for, as fractions of 1.
    pub precision: f64,
    pub limit: f64,
    pub budget_s: f64,
    pub elapsed_s: f64,
    pub seed: u64,
    /// The run was interrupted, or an arm failed: see `error`.
    pub partial: bool,
    pub error: Option<String>,
    pub counts: Vec<Counts>,
    pub controls: Vec<Control>,
    pub rows: Vec<Row>,
    /// Benchmarks without a row: in the first quad already nothing was left of them after what is subtracted.
    pub drowned: Vec<String>,
    pub carry_over: Vec<CarryOver>,
    /// Every batch of every block, in the order they were timed.
    pub samples: Vec<RawBlock>,
}

/// What the exit status says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conclusion {
    Within,
    DearerOrControlsFailed,
    Inconclusive,
}

impl Document {
    pub fn controls_with(&self, verdict: ControlVerdict) -> usize {
        self.controls.iter().filter(|control| control.verdict == verdict).count()
    }

    pub fn conclusion(&self) -> Conclusion {
        let has = |verdict| self.rows.iter().any(|row| row.verdict == Some(verdict));
        if self.controls_with(ControlVerdict::Failed) > 0 || has(Verdict::Dearer) {
            Conclusion::DearerOrControlsFailed
        } else if self.controls_with(ControlVerdict::Inconclusive) > 0
            || has(Verdict::Inconclusive)
            || self.controls.is_empty()
            || !self.drowned.is_empty()
            || self.partial
        {
            Conclusion::Inconclusive
        } else {
            Conclusion::Within
        }
    }
}

impl Conclusion {
    /// 125 and up are for errors: crate::cli.
    pub fn status(self) -> u8 {
        match self {
            Self::Within => 0,
            Self::DearerOrControlsFailed => 1,
            Self::Inconclusive => 3,
        }
    }
}
