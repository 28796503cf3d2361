//! What a watch does with its tasks at the end.

use std::sync::atomic::AtomicBool;

use ::pace::{LevelFile, MIN_SAMPLES};
use anyhow::Result;

use super::comparison::{report, simulated};
use super::pacing_report::MeasuredEnergy;
use super::recorder::Recorded;
use super::simulate_report::SimulateReport;
use super::trace_file::{self, Trace};
use super::watch_report::{ObservedTasks, WatchReport};
use crate::format::count;
use crate::output::{Output, log_message};

/// The maximum number of tasks on which the policies are compared: on a set of levels, this takes
/// up to 20 s of processor time, most of it for the choice of the estimators.
const MAX_COMPARED: usize = 20_000;
/// A comparison on this many tasks takes a second or more, and is announced.
const ANNOUNCED: usize = 1_000;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

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
        let simulation = compare(&self.sets, trace, notes)?;
        Ok(WatchReport {
            summary: self.summary,
            observed: ObservedTasks::of(&recorded),
            measured_energy,
            simulation,
        })
    }
}

/// Compares the policies on the latest tasks, if there are enough.
fn compare(
    sets: &[LevelFile],
    mut trace: Trace,
    notes: &mut Vec<String>,
) -> Result<Option<SimulateReport>> {
    let tasks = trace.tasks.len();
    if tasks < 2 * MIN_SAMPLES {
        notes.push(format!(
            "a comparison of policies needs at least {} tasks; there were {tasks}",
            2 * MIN_SAMPLES
        ));
        return Ok(None);
    }
    trace.tasks.drain(..tasks.saturating_sub(MAX_COMPARED));
    let compared = count(trace.tasks.len() as u64);
    if trace.tasks.len() < tasks {
        notes.push(format!(
            "the policies are compared on the latest {compared} of {} tasks; `tollgate pace \
            simulate` compares them on all tasks of a trace",
            count(tasks as u64)
        ));
    }
    if trace.tasks.len() >= ANNOUNCED {
        log_message(&format!("comparing policies on {compared} tasks; Ctrl-C ends the comparison"));
    }
    // The interrupt that has ended the watch is over. The next one ends the comparison.
    kernel::signals::on_interrupt(&INTERRUPTED)?;
    let simulated = simulated(sets, &trace, &INTERRUPTED);
    if simulated.is_none() {
        notes.push("an interrupt has ended the comparison of policies".into());
    }
    Ok(simulated.map(|simulated| report(&simulated, &trace)))
}
