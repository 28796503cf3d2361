//! What counts the cycles of tasks in a session: `cycle-counter` of a file of rules.

use std::path::Path;

use ::pace::CycleCounter;
use anyhow::{Context as _, Result, bail};
use kernel::pace::{CycleEvent, Tracking};

use crate::extension::SessionContext;

/// The help for a file of rules that names a counter that is not available.
pub const HELP: &str = "leave out `cycle-counter`: then cpu-cycles are counted or, if there are \
    none, processor time, times the speed; a later session counts as the first one does";

/// Has the gate count cycles as the rules say; without a counter in the rules, by `cpu-cycles`
/// where the machine has it. Returns the event that it counts, or `None` if the cycles are
/// processor time, times the speed.
///
/// # Errors
/// If the machine does not have the event that the rules name, or if another session counts by
/// another one.
pub fn count_cycles(
    context: &SessionContext<'_>,
    tracking: &Tracking,
    counter: Option<&CycleCounter>,
) -> Result<Option<CycleEvent>> {
    let root = Path::new("/");
    let count = |event| tracking.count_cycles(context.gate, context.session.index, event);
    let wanted = match counter {
        None => return Ok(count(Some(CycleEvent::CPU_CYCLES)).or_else(|_| count(None))?),
        Some(CycleCounter::None) => None,
        Some(CycleCounter::CpuCycles) => Some(CycleEvent::CPU_CYCLES),
        Some(CycleCounter::Event { pmu, config }) => {
            let event = CycleEvent::of_pmu(root, pmu, *config);
            Some(event.with_context(|| format!("this machine has no counters of `{pmu}`"))?)
        }
    };
    let counts = count(wanted)?;
    if counts != wanted {
        let what = match counts {
            Some(event) => format!("the cycle-counter of another session is {}", event.name(root)),
            None => "another session counts the cycles of tasks without a counter".to_owned(),
        };
        bail!("{what}, and all sessions count in the same way: end that session first");
    }
    Ok(counts)
}
