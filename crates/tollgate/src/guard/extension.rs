//! The guard of a running session.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use kernel::gate::{Gate, Lock};
use kernel::session::Session;
use kernel::wire;

use super::event_recorder::EventRecorder;
use super::hold_control::HoldControl;
use super::policy::{Mode, Policy};
use super::program_table::ProgramTable;
use super::report::GuardReport;
use super::requests::Status;
use super::response_text::response_text;

/// The guard of one session: the programs that it tracks, what it does to their processes, and the
/// events that it reports.
pub struct Guard {
    pub programs: ProgramTable,
    pub holds: HoldControl,
    pub events: EventRecorder,
    /// How the guard responds, for display.
    response: String,
}

impl Guard {
    /// Starts the guard of a session that has no tasks yet.
    pub fn start(gate: &Gate, lock: &Lock, session: &Session, policy: Policy) -> Result<Self> {
        let response = response_text(&policy, gate.sessions.read(session.index).mask);
        let programs = ProgramTable::start(gate, lock, session.index, policy)?;
        let holds = HoldControl::start(gate, session.index, &programs.policy)?;
        Ok(Self { programs, holds, events: EventRecorder::start(), response })
    }

    /// What the guard does about anomalies.
    pub fn mode(&self) -> Mode {
        self.programs.policy.mode
    }

    /// Handles an event of a tracked program.
    pub fn on_event(&mut self, event: &wire::guard_event) {
        let Some((program, activity)) = self.programs.get_mut(event.profile_slot) else { return };
        activity.add(event);
        self.holds.on_event(event, program);
        self.events.record(event, program);
    }

    /// Does what is due. Must be called at least as often as [`Guard::deadline`] requires.
    pub fn tend(&mut self, gate: &Gate) -> Result<()> {
        self.holds.tend(gate, &self.programs);
        self.programs.tend(gate)?;
        self.holds.tend_watchdog(gate)
    }

    /// The time until the next release or training stop, at most `longest`.
    pub fn deadline(&self, longest: Duration) -> Duration {
        self.programs.deadline(self.holds.deadline(longest))
    }

    /// The report, with the events that have not been taken yet, and without what is read from the
    /// gate at the end.
    pub fn report(&mut self) -> GuardReport {
        GuardReport {
            mode: self.mode().name().into(),
            response: self.response.clone(),
            programs: self.programs.reports(),
            events: self.events.take(),
            events_left_out: self.events.left_out(),
            unidentified: self.programs.ended_too_soon(),
            ..GuardReport::default()
        }
    }

    /// The state of the guard. `since` is the start of the daemon.
    pub fn status(&self, gate: &Gate, since: SystemTime, losses: BTreeMap<String, u64>) -> Status {
        Status {
            schema: "tollgate-guard-status/1".into(),
            mode: self.mode().name().into(),
            response: self.response.clone(),
            is_off: self.holds.is_off(),
            pid: std::process::id(),
            since: humantime::format_rfc3339_seconds(since).to_string(),
            held_most: self.holds.max_held(),
            held: self.holds.held(gate, &self.programs),
            programs: self.programs.reports(),
            foreign_continues: self.holds.foreign_continues(gate),
            unidentified: self.programs.ended_too_soon(),
            losses,
        }
    }
}
