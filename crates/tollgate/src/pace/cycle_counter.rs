//! What counts the cycles of tasks in a session: `cycle-counter` of a file of rules.

use std::path::Path;

use ::pace::CycleCounter;
use anyhow::{Context as _, Result, anyhow, bail};
use kernel::pace::{CycleEvent, Tracking};

use crate::extension::SessionContext;

/// Has the gate count cycles as the rules say. Returns the event that it counts, or `None` if the
/// cycles are processor time, times the speed.
///
/// # Errors
/// If the machine does not have the event that the rules name, or if another session counts by
/// another one.
pub fn count_cycles(
    context: &SessionContext<'_>,
    tracking: &Tracking,
    counter: &CycleCounter,
) -> Result<Option<CycleEvent>> {
    let root = Path::new("/");
    let count = |event| tracking.count_cycles(context.gate, context.session.index, event);
    let wanted = match counter {
        CycleCounter::Available => {
            return Ok(count(Some(CycleEvent::CPU_CYCLES)).or_else(|_| count(None))?);
        }
        CycleCounter::None => None,
        CycleCounter::CpuCycles => Some(CycleEvent::CPU_CYCLES),
        CycleCounter::Event { pmu, config } => {
            let event = CycleEvent::of_pmu(root, pmu, *config);
            Some(event.with_context(|| format!("this machine has no counters of `{pmu}`"))?)
        }
    };
    let counts = count(wanted).map_err(|error| {
        anyhow!(
            "{error}; without cycle-counter in the file of rules, the cycles of tasks are counted \
            by cpu-cycles or, if there is none, are processor time, times the speed"
        )
    })?;
    if counts != wanted {
        let what = match counts {
            Some(event) => format!("the cycle-counter of another session is {}", event.name(root)),
            None => "another session counts the cycles of tasks without a counter".to_owned(),
        };
        bail!(
            "{what}, and all sessions count in the same way: end that session first, or leave out \
            cycle-counter"
        );
    }
    Ok(counts)
}
