//! Logs events: with fields in the journal if that is available, otherwise on stderr.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use libsystemd::logging::{Priority, connected_to_journal, journal_send};

use super::report::{GuardEvent, with_scope};
use crate::background_writer::{BackgroundWriter, WriteTarget};
use crate::format::{count, number_of};
use crate::output::log_message;

/// The number of one program's events that are logged within [`INTERVAL`]. Further events are only
/// counted. `tollgate guard events` lists all of them.
const MAX_EVENTS_PER_MINUTE: u64 = 20;
const INTERVAL: Duration = Duration::from_secs(60);
/// How long the end of the daemon waits for the journal.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Logs the events of a daemon's guard, at a limited rate for each program.
pub struct EventLog {
    /// The writer to the journal, if stderr is connected to it.
    journal: Option<BackgroundWriter<LoggedEvent>>,
    began: Instant,
    /// Events of each program in this interval, including those that were only counted.
    events: BTreeMap<String, u64>,
}

/// An event as the journal gets it.
struct LoggedEvent {
    priority: Priority,
    line: String,
    fields: [(&'static str, String); 19],
}

struct Journal;

impl WriteTarget<LoggedEvent> for Journal {
    fn write(&mut self, entry: LoggedEvent) {
        if journal_send(entry.priority, &entry.line, entry.fields.into_iter()).is_err() {
            log_message(&entry.line);
        }
    }

    fn note_lost(&mut self, lost: u64) {
        let events = number_of(lost as usize, "event");
        log_message(&format!("{events} not logged here: the journal did not take them in time"));
    }
}

impl EventLog {
    /// Connects to the journal, if stderr is connected to it.
    pub fn new() -> Result<Self> {
        let journal = connected_to_journal().then(|| BackgroundWriter::start("journal", Journal));
        let journal = journal.transpose().context("cannot start a thread that logs events")?;
        Ok(Self { journal, began: Instant::now(), events: BTreeMap::new() })
    }

    /// Logs an event, unless its program has had too many in this interval.
    pub fn log_event(&mut self, event: &GuardEvent) {
        let program = with_scope(&event.program, event.scope.as_deref());
        let events = self.events.entry(program).or_default();
        *events += 1;
        if *events > MAX_EVENTS_PER_MINUTE {
            return;
        }
        let line = event.line();
        let Some(journal) = &self.journal else { return log_message(&line) };
        let priority = if event.action == "observe" { Priority::Notice } else { Priority::Warning };
        let fields = [
            ("TOLLGATE_PID", event.pid.to_string()),
            ("TOLLGATE_TID", event.tid.to_string()),
            ("TOLLGATE_PROGRAM", event.program.clone()),
            ("TOLLGATE_SCOPE", event.scope.clone().unwrap_or_default()),
            ("TOLLGATE_COMMAND", event.command.clone()),
            ("TOLLGATE_EXECUTABLE", event.executable.clone().unwrap_or_default()),
            ("TOLLGATE_UID", event.uid.to_string()),
            ("TOLLGATE_USER", event.user.clone().unwrap_or_default()),
            ("TOLLGATE_PARENT_PID", event.parent_pid.map_or(String::new(), |pid| pid.to_string())),
            ("TOLLGATE_PARENT_COMMAND", event.parent_command.clone()),
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
        let length = line.len() + fields.iter().map(|(_, value)| value.len()).sum::<usize>();
        journal.send(LoggedEvent { priority, line, fields }, length);
    }

    /// Logs the number of events that were not logged.
    pub fn tend(&mut self) {
        if self.began.elapsed() < INTERVAL {
            return;
        }
        self.began = Instant::now();
        for (program, events) in std::mem::take(&mut self.events)
            .into_iter()
            .filter(|(_, events)| *events > MAX_EVENTS_PER_MINUTE)
        {
            let more = count(events - MAX_EVENTS_PER_MINUTE);
            log_message(&format!("{more} more events of {} in the last minute", program));
        }
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        if let Some(journal) = &self.journal {
            journal.wait_until_written(Some(END_TIMEOUT), || false);
        }
    }
}
