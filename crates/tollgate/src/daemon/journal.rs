//! Events as messages to people: in the journal with fields where that listens, else on stderr.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use libsystemd::logging::{Priority, connected_to_journal, journal_send};

use super::control::tell;
use crate::format::{count, printable};
use crate::report::{Event, scoped};

/// Of one program within [`INTERVAL`]; the rest are counted. `tollgate guard events` has them all.
const MOST: u64 = 20;
const INTERVAL: Duration = Duration::from_secs(60);

pub struct Journal {
    is_journal: bool,
    began: Instant,
    told: BTreeMap<String, u64>,
}

/// A line that stands for itself.
pub fn line(event: &Event) -> String {
    let before = &event.sequence[..event.sequence.len().saturating_sub(1)];
    let place =
        event.unit.iter().chain(&event.container).map(|name| format!(" in {name}")).collect::<String>();
    printable(&format!(
        "{} {} ({}){place}: {} after {} (LFC {}): {}",
        event.command,
        event.pid,
        scoped(&event.program, event.scope.as_deref()),
        event.call,
        before.join(" "),
        event.lfc,
        event.what_was_done()
    ))
}

impl Journal {
    pub fn new() -> Self {
        Self { is_journal: connected_to_journal(), began: Instant::now(), told: BTreeMap::new() }
    }

    pub fn tell(&mut self, event: &Event) {
        let program = scoped(&event.program, event.scope.as_deref());
        let told = self.told.entry(program).or_default();
        *told += 1;
        if *told > MOST {
            return;
        }
        if !self.is_journal {
            tell(&line(event));
            return;
        }
        let priority = if event.action == "observe" { Priority::Notice } else { Priority::Warning };
        let fields = [
            ("TOLLGATE_PID", event.pid.to_string()),
            ("TOLLGATE_TID", event.tid.to_string()),
            ("TOLLGATE_PROGRAM", event.program.clone()),
            ("TOLLGATE_SCOPE", event.scope.clone().unwrap_or_default()),
            ("TOLLGATE_UNIT", event.unit.clone().unwrap_or_default()),
            ("TOLLGATE_CONTAINER", event.container.clone().unwrap_or_default()),
            ("TOLLGATE_CALL", event.call.clone()),
            ("TOLLGATE_SEQUENCE", event.sequence.join(" ")),
            ("TOLLGATE_EXPECTED", event.expected.join(" ")),
            ("TOLLGATE_LFC", event.lfc.to_string()),
            ("TOLLGATE_ACTION", event.action.clone()),
            ("TOLLGATE_HELD_NS", event.held_ns.to_string()),
            ("TOLLGATE_LATE_NS", event.late_ns.to_string()),
        ];
        if journal_send(priority, &line(event), fields.into_iter()).is_err() {
            tell(&line(event));
        }
    }

    /// Says of how many events nothing was said.
    pub fn tend(&mut self) {
        if self.began.elapsed() < INTERVAL {
            return;
        }
        self.began = Instant::now();
        for (program, told) in std::mem::take(&mut self.told).into_iter().filter(|(_, told)| *told > MOST) {
            let more = count(told - MOST);
            tell(&format!("{more} more unusual calls of {} in the last minute", printable(&program)));
        }
    }
}
