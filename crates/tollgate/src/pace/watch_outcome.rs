//! What a watch does with its tasks at the end.

use ::pace::{LevelFile, MIN_SAMPLES};
use anyhow::Result;

use super::comparison::compare;
use super::pacing_report::MeasuredEnergy;
use super::recorder::Recorded;
use super::trace_file;
use super::watch_report::{ObservedTasks, WatchReport};
use crate::output::Output;

/// What a watch does with its tasks.
pub struct WatchOutcome {
    /// The sets of levels on which the policies are compared.
    pub sets: Vec<LevelFile>,
    /// A sentence about the levels of this machine.
    pub summary: String,
    /// Where the tasks are written to.
    pub trace: Option<Output>,
}

impl WatchOutcome {
    /// Writes the trace, compares the policies, and returns the section of the report.
    pub fn section(
        self,
        recorded: Recorded,
        measured_energy: Option<MeasuredEnergy>,
        notes: &mut Vec<String>,
    ) -> Result<WatchReport> {
        let trace = recorded.trace();
        if let Some(mut output) = self.trace {
            let mut text = Vec::new();
            trace_file::write(&trace, &mut text)?;
            if let Err(error) = output.write_bytes(&text) {
                notes.push(format!("the trace is lost: {error:#}"));
            }
        }
        if recorded.not_kept > 0 {
            notes.push(format!(
                "{} further tasks are not in the report, because it has room for {}",
                recorded.not_kept,
                recorded.tasks.len()
            ));
        }
        notes.extend(recorded.waits_note());
        let simulation = match trace.tasks.len() {
            n if n < 2 * MIN_SAMPLES => {
                notes.push(format!(
                    "a comparison of policies needs at least {} tasks; there were {n}",
                    2 * MIN_SAMPLES
                ));
                None
            }
            _ => Some(compare(&self.sets, &trace)),
        };
        Ok(WatchReport {
            summary: self.summary,
            observed: ObservedTasks::of(&recorded),
            measured_energy,
            simulation,
        })
    }
}
