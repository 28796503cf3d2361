//! The guard of a running session.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use ::guard::AnomalyLimit;
use anyhow::Result;
use kernel::gate::{Gate, Lock};
use kernel::session::Session;
use kernel::wire;

use super::clock::unix_now;
use super::event_recorder::EventRecorder;
use super::hold_control::HoldControl;
use super::policy::{Mode, Policy};
use super::program_table::ProgramTable;
use super::report::GuardReport;
use super::requests::Status;
use super::response_text::response_text;
use super::tracked_program::TrackedProgram;
use crate::format::{number_of, span};
use crate::output::log_message;

/// The guard of one session: the programs that it tracks, what it does to their processes, and the
/// events that it reports.
pub struct Guard {
    pub programs: ProgramTable,
    pub holds: HoldControl,
    pub events: EventRecorder,
    /// How the guard responds, for display.
    response: String,
    /// The profiles of programs that returned to training, until their processes are released.
    retrained: Vec<u32>,
}

impl Guard {
    /// Starts the guard of a session that has no tasks yet.
    pub fn start(gate: &Gate, lock: &Lock, session: &Session, policy: Policy) -> Result<Self> {
        let response = response_text(&policy, gate.sessions.read(session.index).mask);
        let programs = ProgramTable::start(gate, lock, session.index, policy)?;
        let holds = HoldControl::start(gate, session.index, &programs.policy)?;
        Ok(Self {
            programs,
            holds,
            events: EventRecorder::start(),
            response,
            retrained: Vec::new(),
        })
    }

    /// What the guard does about anomalies.
    pub fn mode(&self) -> Mode {
        self.programs.policy.mode
    }

    /// Handles an event of a tracked program.
    pub fn on_event(&mut self, event: &wire::guard_event) {
        let (limit, wire) = (self.programs.policy.anomaly_limit, self.programs.policy.wire);
        let executable = self.programs.executed.of_event(event).map(str::to_owned);
        let Some((program, activity)) = self.programs.get_mut(event.profile_slot) else { return };
        activity.add(event);
        self.holds.on_event(event, program);
        let retrains = program.count_anomaly(event, &limit, wire.tolerize_limit, unix_now());
        self.events.record(event, program, executable, retrains);
        if retrains {
            activity.retrained += 1;
            print_retraining(program, &limit);
            self.retrained.push(event.profile_slot);
        }
    }

    /// Does what is due. Must be called at least as often as [`Guard::deadline`] requires.
    pub fn tend(&mut self, gate: &Gate) -> Result<()> {
        for profile_slot in self.retrained.drain(..) {
            self.holds.release_program(gate, profile_slot);
        }
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

/// States that a program returned to training, and what to do if it should not have.
fn print_retraining(program: &TrackedProgram, limit: &AnomalyLimit) {
    let title = program.title();
    let anomalies = number_of(limit.limit() as usize, "anomaly");
    log_message(&format!(
        "{title} is in training again and not tested: more than {anomalies} have counted, each at \
        least {} after the one before, so it has probably changed for good. If it was not to \
        change, `tollgate guard sensitize {title}` wipes what it has learned since, and `tollgate \
        guard normalize {title}` has it tested again",
        span(limit.interval().as_secs())
    ));
}
