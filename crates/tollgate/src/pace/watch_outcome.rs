//! What a watch does with its tasks at the end.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ::pace::{LevelFile, MIN_SAMPLES};
use anyhow::Result;

use super::comparison::{announce, report, simulated};
use super::hardware_counts::HardwareCounts;
use super::recorder::{MAX_TASKS, Recorded};
use super::simulate_report::SimulateReport;
use super::trace_file::{self, Trace};
use super::watch_report::{ObservedTasks, WatchReport};
use crate::format::count;
use crate::output::Output;

/// The maximum number of tasks on which the policies are compared: on a set of levels, this takes
/// up to 20 s of processor time, most of it for the choice of the estimators.
const MAX_COMPARED: usize = 20_000;

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
    /// Writes the trace, compares the policies, and returns the section of the report. Sets
    /// `has_unwritten_file` if the trace cannot be written.
    pub fn section(
        self,
        recorded: Recorded,
        hardware: HardwareCounts,
        notes: &mut Vec<String>,
        has_unwritten_file: &mut bool,
    ) -> Result<WatchReport> {
        let trace = recorded.trace();
        if let Some(mut output) = self.trace {
            let mut text = Vec::new();
            trace_file::write(&trace, &mut text)?;
            if let Err(error) = output.write_bytes(&text) {
                notes.push(format!("the trace is lost: {error:#}"));
                *has_unwritten_file = true;
            }
        }
        if recorded.not_kept > 0 {
            notes.push(format!(
                "the report has the tasks of the first week, but at most {}; tasks that are not in \
                it: {}",
                count(MAX_TASKS as u64),
                count(recorded.not_kept as u64)
            ));
        }
        notes.extend(recorded.waits_note());
        let simulation = compare(self.sets, trace, notes)?;
        Ok(WatchReport {
            summary: self.summary,
            observed: ObservedTasks::of(&recorded),
            hardware,
            simulation,
        })
    }
}

/// Compares the policies on the latest tasks, if there are enough.
fn compare(
    sets: Vec<LevelFile>,
    mut trace: Trace,
    notes: &mut Vec<String>,
) -> Result<Option<SimulateReport>> {
    let tasks = trace.tasks.len();
    if tasks == 0 {
        notes.push(
            "no task ended; a task begins when a call that a rule names returns, or when a program \
            begins it"
                .into(),
        );
        return Ok(None);
    }
    if tasks < 2 * MIN_SAMPLES {
        notes.push(format!(
            "a comparison of policies needs at least {} tasks; there were {tasks}",
            2 * MIN_SAMPLES
        ));
        return Ok(None);
    }
    notes.extend(keep_latest(&mut trace, MAX_COMPARED));
    announce(&trace, "; Ctrl-C ends the comparison");
    // The interrupt that has ended the watch is over. The next one ends the comparison.
    kernel::signals::on_interrupt(&INTERRUPTED)?;
    let trace = Arc::new(trace);
    let simulated = simulated(sets, &trace, &INTERRUPTED);
    if simulated.is_none() {
        notes.push("an interrupt has ended the comparison of policies".into());
    }
    Ok(simulated.map(|simulated| report(&simulated, &trace)))
}

/// Leaves out the tasks before the latest `most` ones. Returns a note if there are any.
fn keep_latest(trace: &mut Trace, most: usize) -> Option<String> {
    let all = trace.tasks.len();
    trace.tasks.drain(..all.saturating_sub(most));
    (all > most).then(|| {
        format!(
            "the policies are compared on the latest {} of {} tasks; `tollgate pace simulate` \
            compares them on all tasks of a trace",
            count(most as u64),
            count(all as u64)
        )
    })
}

#[cfg(test)]
mod tests {
    use ::pace::TraceTask;

    use super::*;

    #[test]
    fn latest_tasks_are_compared() {
        let task =
            |index: u32| TraceTask { kind: 0, begin: f64::from(index), cycles: 1.0, deadline: 1.0 };
        let mut trace = Trace { types: Vec::new(), tasks: (0..5).map(task).collect() };
        assert_eq!(keep_latest(&mut trace, 5), None);
        let note = keep_latest(&mut trace, 3).unwrap();
        assert!(note.contains("the latest 3 of 5 tasks"), "{note}");
        assert_eq!(trace.tasks, (2..5).map(task).collect::<Vec<_>>());
    }
}
